"""`make results`: every figure under results/ is drawn again from the data committed beside it."""

import json
import os
import re
import runpy
import shutil
import sys
from pathlib import Path

import pytest
from architectures.costs import read_csv, table
from games import measure as seven_games

from dba3c.errors import UserError
from dba3c.studies.page import add_row, markdown, renew, rows_of, write_rows

RESULTS = Path(__file__).resolve().parents[2] / "results"
PLOTS = runpy.run_path(str(RESULTS / "plot.py"))["FIGURES"]
PAGES = sorted(RESULTS.glob("**/README.md"))


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(RESULTS, tmp_path_factory.mktemp("copy") / "results"))


@pytest.mark.parametrize("name", PLOTS)
def test_every_figure_is_drawn_again_from_committed_data(name: str, copy: Path, monkeypatch) -> None:
    figures = list((copy / name).rglob("*.png"))
    for figure in figures:
        figure.unlink()
    monkeypatch.setattr(sys, "argv", ["plot.py", name])
    runpy.run_path(str(copy / "plot.py"), run_name="__main__")
    assert figures and all(figure.exists() for figure in figures)


def test_every_folder_with_a_figure_is_drawn_by_make_results() -> None:
    assert {path.relative_to(RESULTS).parts[0] for path in RESULTS.rglob("*.png")} == set(PLOTS)


def test_no_script_has_the_name_of_a_folder() -> None:
    """Both are on the path of a test process, and the first to be imported would hide the other."""
    folders = {path.name for path in RESULTS.iterdir() if path.is_dir()}
    assert [str(path) for path in RESULTS.rglob("*.py") if path.stem in folders] == []


def test_every_study_is_in_the_gallery_once() -> None:
    gallery = (RESULTS / "README.md").read_text(encoding="utf-8")
    for folder in sorted(page.parent.name for page in PAGES if page.parent != RESULTS):
        headings = re.findall(rf"^## \[.*\]\({folder}/\)$", gallery, re.MULTILINE)
        assert len(headings) == 1, f"results/README.md shows {folder} {len(headings)} times"


def test_the_tables_of_a_page_are_what_the_data_beside_it_says(copy: Path) -> None:
    costs, inference = copy / "architectures", copy / "inference"
    found = json.loads((inference / "inference.json").read_text())
    tables = runpy.run_path(str(inference / "measure.py"))["tables"](found)
    games = copy / "games"
    scores = seven_games.table(rows_of(games / "scores.csv"))
    for folder, said in ((costs, [table(read_csv(costs / "costs.csv"))]), (inference, tables), (games, [scores])):
        before = (folder / "README.md").read_text(encoding="utf-8")
        renew(folder / "README.md", "2030-01-01, 7 cores of X, commit abc.", *said)
        after = (folder / "README.md").read_text(encoding="utf-8").splitlines()
        changed = [line for line in after if line not in before.splitlines()]
        assert len(changed) == 1 and changed[0].startswith("2030-01-01, 7 cores of X, commit abc.")
    with pytest.raises(UserError, match="has no table"):
        renew(costs / "README.md", "", markdown(["a", "b"], [[1, 2]]))


@pytest.mark.parametrize(
    ("script", "writer", "made"),
    [
        ("algorithms/page.py", "main", ()),
        ("batch_size/page.py", "main", ()),
        ("cluster/page.py", "main", ()),
        ("gpu/measure.py", "write_page", ()),
        ("lanes/measure.py", "write_page", ("",)),
        ("learning_curves/measure.py", "write_page", ()),
        ("peers/measure.py", "page", ()),
        ("peers/scores.py", "page", ()),
        ("throughput/measure.py", "write_page", ("",)),
    ],
)
def test_a_page_is_what_its_script_writes(
    script: str, writer: str, made: tuple[str, ...], copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend((copy / script).parent)
    before = {page: page.read_text(encoding="utf-8") for page in copy.glob("*/README.md")}
    page = (copy / script).with_name("README.md")
    os.utime(page, (1.0, 1.0))
    runpy.run_path(str(copy / script))[writer](*made)
    assert page.stat().st_mtime > 1.0, "it has not written its page"
    assert {page: page.read_text(encoding="utf-8") for page in before} == before


def test_a_line_without_runs_fails_its_figure_unless_it_is_optional(tmp_path: Path) -> None:
    learning = runpy.run_path(str(RESULTS / "plot.py"))["learning"]
    runs = {"Breakout": "breakout_2cores", "lost": "nowhere/seed-*"}
    with pytest.raises(UserError, match="there is no run of lost below"):
        learning({"score": "frames"}, runs)(tmp_path)
    learning({"score": "frames"}, runs, ["lost"])(tmp_path)
    assert (tmp_path / "score.png").exists()


def test_a_page_of_two_measurements_says_of_each_where_it_was_made(tmp_path: Path) -> None:
    page, one, two = tmp_path / "README.md", markdown(["a"], [[1]]), markdown(["b"], [[2]])
    before = "2029-12-31, 7 cores of X, commit abc."
    page.write_text(f"{one}\n\n{before}\n\n{two}\n\n{before}\n")
    now = "2030-01-01, 8 cores of Y, commit def."
    renew(page, now, markdown(["a"], [[3]]))
    assert page.read_text() == f"{markdown(['a'], [[3]])}\n\n{now}\n\n{two}\n\n{before}\n"
    renew(page, now, markdown(["b"], [[4]]))
    assert page.read_text() == f"{markdown(['a'], [[3]])}\n\n{now}\n\n{markdown(['b'], [[4]])}\n\n{now}\n"


def test_rows_are_written_and_read_as_csv_and_as_json_lines(tmp_path: Path) -> None:
    table, lines = tmp_path / "rows.csv", tmp_path / "rows.jsonl"
    assert rows_of(table) == rows_of(lines) == []
    write_rows(table, [{"b": 1, "a": "x, y"}, {"a": 2.5, "c": ""}])
    assert table.read_bytes() == b'b,a,c\n1,"x, y",\n,2.5,\n'
    assert rows_of(table) == [{"b": "1", "a": "x, y", "c": ""}, {"b": "", "a": "2.5", "c": ""}]
    for row in ({"n": 1, "who": "µ"}, {"n": [2.5, None]}):
        add_row(lines, row)
    assert rows_of(lines) == [{"n": 1, "who": "µ"}, {"n": [2.5, None]}]
    with lines.open("a") as file:
        file.write('{"n": ')  # a kill in the middle of a line
    assert len(rows_of(lines)) == 2
    add_row(lines, {"n": 3})
    assert rows_of(lines)[2] == {"n": 3}


@pytest.mark.parametrize("name", ["scaling", "servers"])
def test_the_committed_table_of_the_simulator_is_what_the_model_says(name: str) -> None:
    folder = RESULTS / "simulation"
    rows = runpy.run_path(str(folder / "make_data.py"))[name](json.loads((folder / "config.json").read_text()))
    lines = (folder / f"{name}.csv").read_text().splitlines()[1:]
    assert [",".join(map(str, row)) for row in rows] == lines
