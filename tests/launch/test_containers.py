"""No container engine here: what can be checked is the files' rules, their commands, and the entry point itself."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from launch.cli.configuration import fit_config
from launch.cli.options import parse_train
from launch.cluster.launchers import detect
from launch.cluster.topology import Assignment

OnPremise = Callable[..., "subprocess.CompletedProcess[str]"]
ROOT = Path(__file__).resolve().parents[2]
CONTAINERS = ROOT / "launch" / "containers"
DOCKERFILE = (CONTAINERS / "Dockerfile").read_text()


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"\\\n\s*", "", "\n".join(line for line in DOCKERFILE.splitlines() if not line.startswith("#")))
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in text.splitlines() if line.strip()]


def manifests() -> list[dict]:
    return [m for path in (CONTAINERS / "kubernetes").glob("*.yaml") for m in yaml.safe_load_all(path.read_text())]


def arithmetic(words: list[str], environ: dict[str, str]) -> str:
    """The topology of a command as a rank with this environment works it out."""
    place = detect(environ)
    assert words[0] == "train"
    return fit_config(parse_train(words[1:]), place)[1].arithmetic()


def roles_of(words: list[str], environ: dict[str, str]) -> tuple[Assignment, ...]:
    """What a rank with this environment plays."""
    place = detect(environ)
    topology = fit_config(parse_train(words[1:]), place)[1]
    return topology.place(place.tasks_per_node)[place.rank]


def test_the_image_follows_the_rules() -> None:
    names = [name for name, _ in instructions()]
    base = instructions()[0][1]
    assert re.fullmatch(r"[\w./-]+:[\w.-]+", base), f"the base image needs a tag: {base}"
    assert not base.endswith(":latest")
    assert "ADD" not in names
    assert "sudo" not in DOCKERFILE
    assert [value for name, value in instructions() if name == "USER"][-1] == "1000:1000"
    for name, value in instructions():
        if name == "RUN" and "pip install" in value:
            assert value.count("pip install") == value.count("--no-cache-dir") == value.count("--constraint")
        if name == "RUN" and "apt-get install" in value:
            assert "--no-install-recommends" in value
            assert "rm -rf /var/lib/apt/lists" in value
        if name == "WORKDIR":
            assert value.startswith("/")
        if name in ("ENTRYPOINT", "CMD"):
            assert isinstance(json.loads(value), list), "exec form: signals must reach dba3c, not a shell"


def test_what_the_image_copies_is_there_and_not_ignored() -> None:
    ignore = (CONTAINERS / "Dockerfile.dockerignore").read_text().splitlines()
    sources = [word for name, value in instructions() if name == "COPY" for word in value.split()[:-1]]
    assert {"launch", "dba3c", "param_servers", "constraints.txt"} <= set(sources)
    for source in sources:
        assert {f"!{place}" for place in (Path(source), *Path(source).parents)} & set(ignore)
        if source != "README.md":
            assert (ROOT / source).exists()


def test_the_image_s_entry_point_starts() -> None:
    entry_point, command = (json.loads(v) for n in ("ENTRYPOINT", "CMD") for name, v in instructions() if name == n)
    program = Path(sys.executable).with_name(entry_point[0])
    assert (
        "sbatch" in subprocess.run([program, *command], capture_output=True, text=True, timeout=60, check=True).stdout
    )


@pytest.mark.parametrize("version", ["1.29", "1.32"])
def test_the_kubernetes_manifests_fit_the_schemas(version: str) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")  # here: it builds parsers for seconds
    kinds = [manifest["kind"] for manifest in manifests()]
    assert sorted(kinds) == ["Job", "NetworkPolicy", "PersistentVolumeClaim", "Service"]
    for manifest in manifests():
        kubernetes_validate.validate(manifest, version, strict=True)


def test_the_kubernetes_job_adds_up_and_its_ranks_find_each_other() -> None:
    job = next(m for m in manifests() if m["kind"] == "Job")
    service = next(m for m in manifests() if m["kind"] == "Service")
    spec = job["spec"]
    pod = spec["template"]["spec"]
    container = pod["containers"][0]
    environ = {entry["name"]: entry.get("value", "a-uid") for entry in container["env"]}
    assert int(environ["DBA3C_WORLD_SIZE"]) == spec["completions"] == spec["parallelism"]
    assert environ["DBA3C_CHIEF_ADDRESS"] == f"{job['metadata']['name']}-0.{service['metadata']['name']}"
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    said = arithmetic(container["args"], {**environ, "JOB_COMPLETION_INDEX": "0"})
    assert said == "8 = 2 servers + 6 workers (5 gradients + 1 backup)"
    assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == manifests()[0]["metadata"]["name"]


def started_by_compose(service: dict, place: Path, *further: str) -> list[str]:
    """The words that dba3c gets in a service's container, `further` of them from `docker compose run SERVICE`."""
    (place / "dba3c").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (place / "dba3c").chmod(0o755)
    entry_point = [re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", word).replace("$$", "$") for word in service["entrypoint"]]
    environ = {"PATH": f"{place}:/usr/bin:/bin"}
    return subprocess.run(
        [*entry_point, *further], env=environ, capture_output=True, text=True, timeout=30, check=True
    ).stdout.splitlines()


def test_words_after_compose_s_service_reach_the_training(tmp_path: Path) -> None:
    services = yaml.safe_load((CONTAINERS / "compose.yaml").read_text())["services"]
    for name in ("train", "rank-0"):
        plain = started_by_compose(services[name], tmp_path)
        assert started_by_compose(services[name], tmp_path, "--lr", "1 2") == [*plain, "--lr", "1 2"]


def test_compose_s_ranks_add_up(tmp_path: Path) -> None:
    compose = yaml.safe_load((CONTAINERS / "compose.yaml").read_text())
    services = compose["services"]
    ranks = [services[name] for name in sorted(services) if name.startswith("rank-")]
    assert [rank["environment"]["RANK"] for rank in ranks] == ["0", "1", "2"]
    for rank in ranks:
        words = started_by_compose(rank, tmp_path)
        assert arithmetic(words, rank["environment"]) == "3 = 1 server + 2 workers (2 gradients + 0 backup)"
    assert (CONTAINERS / services["train"]["build"]["context"] / services["train"]["build"]["dockerfile"]).exists()
    assert services["train"]["stop_grace_period"] == "90s"


def test_a_profile_starts_its_own_services_and_no_other() -> None:
    services = yaml.safe_load((CONTAINERS / "compose.yaml").read_text())["services"]
    profiles: dict[str, set[str]] = {}
    for name, service in services.items():
        (profile,) = service["profiles"]  # a service without one is started with every profile
        profiles.setdefault(profile, set()).add(name)
    assert profiles == {"train": {"train"}, "ranks": {"rank-0", "rank-1", "rank-2"}, "look": {"tensorboard"}}


@pytest.fixture
def on_premise(tmp_path: Path) -> OnPremise:
    """Runs the script with words; instead of training, the rank and the command are printed."""
    fake = tmp_path / "dba3c"
    fake.write_text('#!/bin/sh\necho "$RANK $WORLD_SIZE $MASTER_ADDR $*"\n')
    fake.chmod(0o755)
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    script = CONTAINERS / "on_premise.sh"
    return lambda *words: subprocess.run([script, *words], env=environ, capture_output=True, text=True, timeout=30)


def test_on_premise_the_same_script_makes_a_server_and_workers(on_premise: OnPremise) -> None:
    run = on_premise
    shape = ["ALE/Breakout-v5", "2", "7000", "a"]
    options = "train ALE/Breakout-v5 --servers 1 --workers 2 --port 7000 --run-dir runs/on-premise"
    assert run("server", *shape).stdout == f"0 3 a {options}\n"
    assert run("worker", *shape, "1").stdout == f"2 3 a {options}\n"
    assert run("worker", *shape).returncode == 2  # which worker?
    refused = run("spectator", *shape)
    assert refused.returncode == 2
    assert refused.stderr.startswith("on_premise.sh server|worker|learner|actor GAME NUMBER PORT CHIEF_HOST")
    assert run("server", "ALE/Breakout-v5", "two", "7000", "a").returncode == 2
    assert arithmetic(options.split(), {"RANK": "0", "WORLD_SIZE": "3"}).startswith("3 = 1 server + 2 workers")


def test_on_premise_the_same_script_makes_a_learner_and_its_actors(on_premise: OnPremise) -> None:
    shape = ["football/academy_empty_goal_close", "3", "7000", "a"]
    played = []
    for words in (["learner", *shape], *(["actor", *shape, str(index)] for index in range(3))):
        rank, world, chief, *command = on_premise(*words).stdout.split()
        assert (world, chief) == ("4", "a")
        environ = {"RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": chief}
        assert arithmetic(command, environ) == "4 = 1 learner + 3 actors"
        played += [str(own) for own in roles_of(command, environ)]
    assert played == ["learner 0", "actor 0", "actor 1", "actor 2"]
    assert command[-4:] == ["--port", "7000", "--run-dir", "runs/on-premise"]
    assert on_premise("actor", *shape).returncode == 2  # which actor?


def test_the_image_takes_the_extras_of_an_environment() -> None:
    values = [value for name, value in instructions() if name == "RUN"]
    assert ("ARG", 'EXTRAS=""') in instructions()
    assert any('".${EXTRAS:+[$EXTRAS]}"' in value for value in values)
    named = {extra for listed in re.findall(r"EXTRAS=([\w,]+)", DOCKERFILE) for extra in listed.split(",")}
    project = (ROOT / "pyproject.toml").read_text().split("[project.optional-dependencies]")[1]
    assert {"football", "vizdoom", "mujoco"} <= named
    assert named <= set(re.findall(r"^([\w-]+) = \[", project, re.MULTILINE))
    (football,) = [value for value in values if "football.sh" in value]
    for extras, asked in (("", ""), ("vizdoom", ""), ("football", "wheel"), ("mujoco,football", "wheel")):
        test = football.split(")", 1)[0] + ") echo wheel ;; esac"  # the case's own pattern
        said = subprocess.run(["sh", "-c", test], env={"EXTRAS": extras}, capture_output=True, text=True, timeout=30)
        assert (said.stdout.strip(), said.stderr) == (asked, "")
