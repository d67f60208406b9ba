"""The programs and commands of the pages on one's own network, loss and algorithm, and what is said of wrong ones."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import pytest
from torch import nn

from dba3c.assembly.model import build_model, spaces_of
from dba3c.config import TrainConfig, has_own_code, replace_options
from dba3c.errors import UserError
from dba3c.workers.gradients import gradients_of
from dba3c.workers.worker import check_own_code
from launch.cli.options import parse_train
from tests.dba3c.workers.test_worker_learning import learn
from tests.integration.test_environments_guide import ROOT, run_beside

PAGES = [(ROOT / "docs" / f"{name}.md").read_text() for name in ("own_network", "own_loss", "own_algorithm")]
MODULES = ("my_nets", "my_losses", "my_algorithms", "wrong")
WRONG = """
    class Wrong:
        def __init__(self, action_space, settings): pass
        def __call__(self, rollout, *, entropy_cost): raise KeyError("entropy")
"""


def examples(page: str) -> tuple[str, str, list[str]]:
    """(file, program, words of the command) of a page."""
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (command,) = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)
    (file,) = re.findall(r"`(my_\w+\.py)`", page)
    name, *words = shlex.split(command)
    assert name == "dba3c"
    return file, program, words


@pytest.fixture(autouse=True)
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The guide's files, in the current directory."""
    for page in PAGES:
        file, program, _ = examples(page)
        (tmp_path / file).write_text(program)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    yield
    for module in MODULES:
        sys.modules.pop(module, None)
    gymnasium.registry.pop("Mine/Broken-v0", None)


def config_of(page: str) -> TrainConfig:
    _, *words = examples(page)[2]
    return parse_train(words).config(2)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.split("\n")[0])
def test_each_program_of_the_guide_is_found_good_and_trains(page: str, tmp_path: Path) -> None:
    config = config_of(page)
    check_own_code(config)
    alone = replace_options(config, exchange="local", num_workers=1, num_servers=1)
    assert TrainConfig.from_json(alone.to_json()) == alone
    assert any(record["kind"] == "step" for record in learn(alone, 2000, tmp_path / "run"))


def test_a_run_of_ones_own_network_and_loss_is_not_played_where_its_package_is_missing(tmp_path: Path) -> None:
    words = [*examples(PAGES[0])[2], "--algorithm", "my_losses:Huber", "--total-frames", "2000", "--track"]
    code, output = run_beside(tmp_path, [*words, "--run-dir", "run"])
    assert code == 0, output
    saved = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (saved["network"]["network"], saved["algorithm"]["algorithm"]) == ("my_nets:skip", "my_losses:Huber")
    (tmp_path / "my_nets.py").unlink()
    code, output = run_beside(tmp_path, ["evaluate", "run", "--games", "2"])
    assert code == 2 and f"dba3c: my_nets:skip: no module named my_nets here ({tmp_path}) or installed" in output


@pytest.mark.parametrize(
    ("program", "line"),
    [
        (WRONG, "wrong:Wrong raised KeyError: 'entropy' .*wrong.py:4"),
        (WRONG.replace('raise KeyError("entropy")', "return rollout.values"), "must give a .*Loss, not Tensor"),
        (WRONG.replace("action_space, settings", ""), "wrong:Wrong raised TypeError: .*positional argument"),
    ],
)
def test_a_wrong_loss_is_refused_before_anything_is_started(program: str, line: str, tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text("\n".join(row[4:] for row in program.splitlines()))
    config = replace_options(config_of(PAGES[1]), algorithm="wrong:Wrong")
    with pytest.raises(UserError, match=line) as refused:
        check_own_code(config)
    assert "\n" not in str(refused.value)


def test_a_loss_is_tried_on_such_rollouts_as_its_run_has(tmp_path: Path) -> None:
    program = WRONG.replace('raise KeyError("entropy")', "return rollout.observations.sum()")
    (tmp_path / "wrong.py").write_text("\n".join(row[4:] for row in program.splitlines()))
    config = replace_options(config_of(PAGES[1]), algorithm="wrong:Wrong", envs_per_worker=16)
    with pytest.raises(UserError, match="wrong:Wrong raised AttributeError: 'NoneType'"):
        check_own_code(config)  # 16 environments' rollouts hold a graph, and no observations


ENVIRONMENTS = """
import gymnasium
import numpy as np

class Fine(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2, start=5)
    made = 0

    def __init__(self):
        type(self).made += 1

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action)
        return np.zeros(2, np.float32), 0.0, False, False, {}

class Broken(Fine):
    def step(self, action):
        return {}["x"]

class Old(Fine):
    def step(self, action):
        return super().step(action)[:4]

class Viewer(Fine):
    def reset(self, *, seed=None, options=None):
        raise OSError("no map file")

    def close(self):
        self.viewer.close()

class BadClose(Fine):
    def close(self):
        self.viewer.close()

class BrokenOnce(Fine):
    def step(self, action):
        assert self.made > 1
        return super().step(action)

gymnasium.register("Mine/Broken-v0", Broken)
"""


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("Broken", r"wrong:Broken raised KeyError: .x. \(.*wrong.py:22\)$"),
        ("Mine/Broken-v0", r"wrong:Mine/Broken-v0 raised KeyError: .x. \(.*wrong.py:22\)$"),
        ("Old", r"wrong:Old raised ValueError: what step\(\) returned: not enough values .*expected 5, got 4\)$"),
        ("Viewer", r"wrong:Viewer raised OSError: no map file \(.*wrong.py:30\)$"),
    ],
)
def test_an_environment_that_a_run_would_give_up_is_refused_with_its_place_before_anything_is_started(
    name: str, line: str, tmp_path: Path
) -> None:
    (tmp_path / "wrong.py").write_text(ENVIRONMENTS)
    config = parse_train([f"wrong:{name}"]).config(2)
    assert has_own_code(config)
    with pytest.raises(UserError, match=line):
        check_own_code(config)


@pytest.mark.parametrize("name", ["Fine", "BadClose", "BrokenOnce"])
def test_an_environment_that_a_run_puts_up_with_is_not_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text(ENVIRONMENTS)
    check_own_code(parse_train([f"wrong:{name}"]).config(2))


def test_the_check_starts_one_that_fails_anew_three_times_however_often_a_run_would(tmp_path: Path) -> None:
    counts = ENVIRONMENTS.replace('return {}["x"]', 'open("steps", "a").write("."); return {}["x"]')
    assert counts != ENVIRONMENTS
    (tmp_path / "wrong.py").write_text(counts)
    config = replace_options(parse_train(["wrong:Broken"]).config(2), environment_restarts=1000)
    with pytest.raises(UserError, match="wrong:Broken raised KeyError"):
        check_own_code(config)
    assert (tmp_path / "steps").read_text() == "." * 4


def test_an_environment_that_hangs_is_given_its_own_time_before_anything_is_started(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text(ENVIRONMENTS.replace('return {}["x"]', "import time; time.sleep(3600)"))
    config = parse_train(["wrong:Broken", "--environment-processes"]).config(2)
    config = replace_options(config, environment_timeout_s=5.0, environment_restarts=0)
    with pytest.raises(UserError, match="wrong:Broken .*EnvironmentHangs: no answer within 5 s"):
        check_own_code(config)


def test_a_network_that_parameters_cannot_be_written_into_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    program = """
import torch
from torch import nn

class Narrow(nn.Module):
    def __init__(self, observation_space, action_space):
        super().__init__()
        self.body = nn.Linear(observation_space.shape[0], 16)
        self.body.bias = nn.Parameter(torch.zeros(1).expand(16))
        self.policy, self.value = nn.Linear(16, action_space.n), nn.Linear(16, 1)

    def forward(self, observation):
        features = self.body(observation)
        return self.policy(features), self.value(features).squeeze(-1)
"""
    (tmp_path / "wrong.py").write_text(program)
    config = parse_train(["CartPole-v1", "--network", "wrong:Narrow"]).config(2)
    with pytest.raises(UserError, match="^wrong:Narrow raised RuntimeError: unsupported operation"):
        check_own_code(config)


def test_dropout_is_for_who_learns(tmp_path: Path) -> None:
    program = """
from torch import nn

class Noisy(nn.Module):
    def __init__(self, observation_space, action_space):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(observation_space.shape[0], 32), nn.Dropout(0.5))
        self.policy, self.value = nn.Linear(32, action_space.n), nn.Linear(32, 1)
        self.frozen = nn.Dropout(0.5).eval()

    def forward(self, observation):
        features = self.body(observation)
        return self.policy(features), self.value(features).squeeze(-1)
"""
    (tmp_path / "wrong.py").write_text(program)
    config = parse_train(["CartPole-v1", "--network", "wrong:Noisy"]).config(2)
    learns, plays = (build_model(config, spaces_of(config), only_plays=only).network.network for only in (False, True))
    on = [[part.training for part in net.modules() if isinstance(part, nn.Dropout)] for net in (learns, plays)]
    assert on == [[True, False], [False, False]] and learns.training and not plays.training
    for envs in (1, 64):  # the loss is of the pass that acted: another one would have dropped other units
        agent = build_model(config, spaces_of(config)).network
        assert not gradients_of(config.algorithm, agent, envs).keeps_observations
    ours = build_model(parse_train(["CartPole-v1"]).config(2), spaces_of(config)).network
    assert gradients_of(config.algorithm, ours, 1).keeps_observations


@pytest.mark.parametrize(
    ("attribute", "points", "gradient", "why"),
    [
        (
            "several = ",
            "rollout.data_points",
            "[:-1]",
            r"must be float32 \[\d+\] on the CPU, not float32 \[\d+\] on cpu",
        ),
        ("several = ", "rollout.data_points", ".double()", r"must be float32 \[\d+\] on the CPU, not float64 \[\d+\]"),
        ("several = ", "rollout.valid.sum()", "", "the data points of a part must be an int, not Tensor"),
        ("several = ", "rollout.data_points", ".numpy()", r"`of` must return \(gradient, .*, not \(ndarray, dict\)"),
        ("", "rollout.data_points", "", "AttributeError: 'Wrong' object has no attribute 'several'"),
        ("several = True; ", "rollout.data_points", "", "where several is True keeps_observations must be"),
    ],
)
def test_an_algorithm_whose_gradient_no_exchange_could_take_is_refused_before_anything_is_started(
    tmp_path: Path, attribute: str, points: str, gradient: str, why: str
) -> None:
    (tmp_path / "wrong.py").write_text(
        f"""class Wrong:
    {attribute}keeps_observations = False

    def __init__(self, algorithm, agent, total):
        self.agent = agent

    def parts(self, rollout, generator):
        yield rollout, {points}

    def of(self, part, data_points):
        return self.agent.gradient_of(part.values.sum()){gradient}, {{}}
"""
    )
    config = replace_options(config_of(PAGES[1]), algorithm="wrong:Wrong")
    with pytest.raises(UserError, match=f"wrong:Wrong.*{why}") as refused:
        check_own_code(config)
    assert "\n" not in str(refused.value)


def test_a_loss_that_logs_what_is_no_number_is_refused_with_the_name_before_anything_is_started(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text(
        """class Wrong:
    several = keeps_observations = False

    def __init__(self, algorithm, agent, total):
        self.agent = agent

    def parts(self, rollout, generator):
        yield rollout, rollout.data_points

    def of(self, part, data_points):
        return self.agent.gradient_of(part.values.sum()), {"entropy": part.values.detach()}
"""
    )
    config = replace_options(config_of(PAGES[1]), algorithm="wrong:Wrong")
    with pytest.raises(UserError, match="wrong:Wrong: entropy must be a number: ") as refused:
        check_own_code(config)
    assert "\n" not in str(refused.value)


def test_central_inference_takes_a_network_of_ones_own_but_no_loss() -> None:
    words = ["CartPole-v1", "--mode", "central"]
    assert parse_train([*words, "--network", "my_nets:skip"]).config(2).network.network == "my_nets:skip"
    with pytest.raises(UserError, match="cannot learn by my_losses:Huber, which is a loss of workers' rollouts"):
        parse_train([*words, "--algorithm", "my_losses:Huber"]).config(2)


def test_a_network_that_remembers_is_refused_by_ppo(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text(
        "from torch import nn\nfrom dba3c.networks import Core, Heads, RecurrentNetwork\n"
        "def net(o, a): return RecurrentNetwork(nn.Linear(4, 8), Core(8, 16), Heads(16, a))\n"
    )
    with pytest.raises(UserError, match="but wrong:net remembers"):
        check_own_code(parse_train(["CartPole-v1", "--algorithm", "ppo", "--network", "wrong:net"]).config(2))
    check_own_code(parse_train(["CartPole-v1", "--network", "wrong:net"]).config(2))
