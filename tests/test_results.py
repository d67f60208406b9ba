"""`make results`: every figure under results/ is drawn again from the data committed beside it."""

import re
import runpy
import shutil
import sys
from pathlib import Path

import pytest

RESULTS = Path(__file__).resolve().parents[1] / "results"
PLOTS = sorted(RESULTS.glob("*/plot.py"))
PAGES = sorted(RESULTS.glob("**/README.md"))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("script", PLOTS, ids=lambda path: path.parent.name)
def test_every_figure_is_drawn_again_from_committed_data(script: Path, tmp_path: Path, monkeypatch) -> None:
    shutil.copytree(RESULTS, tmp_path / "results")  # with its neighbours: some figures compare two runs
    copy = tmp_path / "results" / script.parent.name
    figures = sorted(path.relative_to(copy) for path in copy.rglob("*.png") if "game" not in path.name)
    for figure in figures:
        (copy / figure).unlink()
    monkeypatch.setattr(sys, "argv", [str(copy / "plot.py")])
    runpy.run_path(str(copy / "plot.py"), run_name="__main__")
    assert [figure for figure in figures if not (copy / figure).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.parent.name)
def test_a_page_of_results_names_only_files_that_are_there(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page} names {target}"


def test_every_study_is_in_the_gallery_once() -> None:
    gallery = (RESULTS / "README.md").read_text(encoding="utf-8")
    for folder in sorted(page.parent.name for page in PAGES if page.parent != RESULTS):
        headings = re.findall(rf"^## \[.*\]\({folder}/\)$", gallery, re.MULTILINE)
        assert len(headings) == 1, f"results/README.md shows {folder} {len(headings)} times"
