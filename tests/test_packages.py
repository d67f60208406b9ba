"""What a release is made of: the wheel and the source distribution, installed without this checkout and run."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT_S = 150
PLACES = [place for place in os.environ["PATH"].split(os.pathsep) if "shims" not in place]
PLACES += map(str, Path.home().glob(".pyenv/versions/*/bin"))
OTHER_PYTHONS = {name: shutil.which(name, path=os.pathsep.join(PLACES)) for name in ("python3.10", "python3.13")}

pytestmark = pytest.mark.slow


def run(*words: str | Path, cwd: Path, environ: dict[str, str] | None = None) -> str:
    done = subprocess.run(words, cwd=cwd, env=environ, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the source distribution, which is built from a copy of what is committed."""
    source, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("built")
    for name in run("git", "ls-files", "--", ".", ":!results/*/*", cwd=ROOT).splitlines():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    backend = "import sys; from setuptools import build_meta; print(build_meta.build_sdist(sys.argv[1]))"
    sdist = run(sys.executable, "-c", backend, built, cwd=source).splitlines()[-1]
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--no-deps", "--no-build-isolation")
    run(*pip, "--wheel-dir", built, built / sdist, cwd=built)
    with tarfile.open(built / sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    needed = ("constraints.txt", "Makefile", "CHANGELOG.md", "docs/python.md", "slurm/breakout_64nodes.sh")
    assert {*needed, "launch/containers/Dockerfile", "launch/install/football.sh"} <= held  # an image is built of it
    assert not [name for name in held if name.startswith(("tests", "results"))]
    (made,) = built.glob("*.whl")
    return made


def test_the_wheel_holds_all_packages_their_files_and_the_licence_and_no_test(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (message_from_bytes(archive.read(name)) for name in names if name.endswith("/METADATA"))
    tracked = run("git", "ls-files", "dba3c", "launch", "param_servers", cwd=ROOT).split()
    assert {name for name in tracked if name.endswith((".py", "py.typed"))} <= names
    assert {"launch/install/horovod.sh", "launch/install/football.sh", "launch/containers/kubernetes/run.yaml"} <= names
    assert not [name for name in names if name.startswith("tests")]
    assert metadata["License-Expression"] == "Apache-2.0" and metadata["License-File"] == "LICENSE"
    assert metadata["Keywords"] and metadata.get_all("Project-URL")


@pytest.mark.timeout(TIMEOUT_S + 60)
def test_the_installed_wheel_trains_without_the_checkout(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    of_venv = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip())
    installer = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python, "install", "--no-deps")
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
    run(*installer, wheel, cwd=tmp_path, environ=environ)  # a checkout on PYTHONPATH would pass for it
    (of_venv / "what_it_needs.pth").write_text(sysconfig.get_path("purelib") + "\n")  # torch is not installed twice
    command = python.with_name("dba3c")
    where = run(
        python, "-c", "import dba3c, launch, param_servers as p; print(p.__file__)", cwd=tmp_path, environ=environ
    )
    assert where.startswith(str(of_venv))
    assert run(command, "--version", cwd=tmp_path, environ=environ).startswith("dba3c ")
    words = ("CartPole-v1", "--workers", "1", "--servers", "1", "--total-frames", "2000", "--run-dir", "run")
    run(command, "train", *words, cwd=tmp_path, environ=environ)
    assert "IQM" in run(command, "evaluate", "run", "--games", "2", cwd=tmp_path, environ=environ)


@pytest.mark.parametrize("name", OTHER_PYTHONS)
def test_every_module_compiles_with_the_oldest_and_the_newest_python(name: str, wheel: Path, tmp_path: Path) -> None:
    python = OTHER_PYTHONS[name]
    if python is None:
        pytest.skip(f"{name} is not installed here")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    run(python, "-m", "compileall", "-q", tmp_path, cwd=tmp_path)
