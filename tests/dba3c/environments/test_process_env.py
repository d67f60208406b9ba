"""Environments in processes of their own: the same games, and an end to those that hang or die."""

import os
import signal
import struct
import sys
import textwrap
import time
from contextlib import nullcontext
from dataclasses import replace
from multiprocessing.connection import Pipe
from pathlib import Path

import numpy as np
import psutil
import pytest
from gymnasium.spaces import Box

from dba3c.environments import process_env
from dba3c.environments.config import EnvironmentConfig
from dba3c.environments.process_env import EnvironmentDied, EnvironmentHangs, ProcessEnv
from dba3c.environments.protocol import EnvironmentFailed
from dba3c.errors import UserError
from param_servers.timeouts import AwakeClock
from tests.waiting import wait_until

GAMES = """
    import multiprocessing, os, random, subprocess, time

    import gymnasium
    import numpy as np

    class Game(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(0, 100, (1,), np.float32)
        action_space = gymnasium.spaces.Discrete(3, start=5)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.t = 0
            return np.zeros(1, np.float32), {}

        def step(self, action):
            print("games may print")
            self.t += 1
            if self.t == 2:
                self.at_two()
            return np.array([self.t], np.float32), float(action), False, False, {"score_reward": 1.0}

        def at_two(self):
            pass

    class FromTheGeneratorOfAllCode(Game):
        def step(self, action):
            drawn = np.random.random() + random.random()
            return np.array([drawn], np.float32), 0.0, False, False, {}

    class Hanging(Game):
        def at_two(self):
            time.sleep(3600)

    class LargeAndSometimesHanging(Game):
        observation_space = gymnasium.spaces.Box(0, 255, (64, 72, 96), np.uint8)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return np.zeros((64, 72, 96), np.uint8), {}

        def step(self, action):
            if action == 7:
                time.sleep(3600)
            return np.full((64, 72, 96), action, np.uint8), 0.0, False, False, {}

    class Picky(Game):
        def step(self, action):
            number = np.asarray(action)
            assert number.dtype == self.action_space.dtype and number.shape == self.action_space.shape
            if number.shape:
                action *= 2
            return np.full(1, number.sum(), np.float32), 0.0, False, False, {}

    class Shaped(Game):
        def step(self, action):
            observation, reward, *_ = super().step(action)
            return observation, np.array([reward]), self.t == 3, False, {"score_reward": 1.0} if self.t == 3 else {}

    class Whole(Picky):
        action_space = gymnasium.spaces.Discrete(3, start=1, dtype=np.int32)

    class Several(Picky):
        action_space = gymnasium.spaces.MultiDiscrete([2, 3], dtype=np.int32)

    class Continuous(Picky):
        action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    class Dying(Game):
        def at_two(self):
            os._exit(7)

    class DyingWithAChild(Game):
        def at_two(self):
            if child := os.fork():
                open("child", "w").write(str(child))
                os._exit(7)
            os.execvp("sleep", ["sleep", "60"])

    class ToldToTerminate(Game):
        def at_two(self):
            os.kill(os.getpid(), 15)

    def run(ready):
        ready.set()
        time.sleep(3600)

    class RestartingItsPrograms(Game):
        def reset(self, *, seed=None, options=None):
            if hasattr(self, "program"):
                self.program.terminate()
                self.program.wait()
                self.fork.terminate()
                self.fork.join()
            self.program, ready = subprocess.Popen(["sleep", "3600"]), multiprocessing.Event()
            self.fork = multiprocessing.get_context("fork").Process(target=run, args=(ready,), daemon=True)
            self.fork.start()
            ready.wait()
            return super().reset(seed=seed)

        def close(self):
            self.program.kill()

    class Raising(Game):
        def at_two(self):
            raise ArithmeticError("two is too many")

    class Verbose(Game):
        def at_two(self):
            raise ArithmeticError("ä" * (4 << 20))

    class Unmakable(Game):
        def __init__(self):
            raise OSError("no such map")
"""


@pytest.fixture(autouse=True)
def started_before_anything_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first answer's time is also Python's and NumPy's, which take seconds on a busy machine."""
    begin = ProcessEnv.__init__

    def begin_and_wait(env: ProcessEnv, config: EnvironmentConfig) -> None:
        begin(env, config)
        assert env._pipe.poll(120)
        env._asked_s = time.monotonic()

    monkeypatch.setattr(ProcessEnv, "__init__", begin_and_wait)


@pytest.fixture
def config(tmp_path, monkeypatch):
    """Makes the configuration of one of the games above."""
    (tmp_path / "process_games.py").write_text(textwrap.dedent(GAMES))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    yield lambda name, **options: EnvironmentConfig(
        env_id=f"process_games:{name}", environment_processes=True, **options
    )
    sys.modules.pop("process_games", None)


def test_processes_play_the_same_games_as_the_loop(made):
    loop = EnvironmentConfig(env_id="Pendulum-v1")
    vectors = [made(loop, 2, seed=3), made(replace(loop, environment_processes=True), 2, seed=3)]
    assert (vectors[0].reset() == vectors[1].reset()).all()
    generator = np.random.default_rng(0)
    for _ in range(210):
        actions = generator.normal(size=(2, 1)).astype(np.float32)
        one, other = (envs.step(actions) for envs in vectors)
        assert all((a == b).all() for a, b in zip(one[:5], other[:5], strict=True))
        assert one.episodes == other.episodes


def test_what_draws_from_the_generator_that_all_code_shares_repeats_by_the_seed(made, config):
    first, again, other = (made(config("FromTheGeneratorOfAllCode"), 2, seed=seed) for seed in (3, 3, 4))
    shown = []
    for envs in (first, again, other):
        envs.reset()
        shown.append(envs.step(np.zeros(2, np.int64)).observation.tolist())
    assert shown[0] == shown[1] != shown[2] and shown[0][0] != shown[0][1]


def test_a_search_path_with_more_than_words_in_it_is_handed_on(made, config, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [*sys.path, tmp_path])  # a Path, which imports pass over
    assert made(config("Game"), 1, seed=0).reset().shape == (1, 1)


def test_actions_start_where_the_environment_starts_them_and_scores_are_its_own(made, config):
    envs = made(config("Game"), 2, seed=0)
    envs.reset()
    transition = envs.step(np.array([0, 2]))
    assert (transition.reward.tolist(), transition.gained.tolist()) == ([5.0, 7.0], [1.0, 1.0])


def test_a_score_that_is_told_at_the_end_alone_is_that_of_the_process_too(made, config):
    envs = made(config("Shaped"), 1, seed=0)
    envs.reset()
    transitions = [envs.step(np.array([1])) for _ in range(3)]
    assert [transition.reward.tolist() for transition in transitions] == [[6.0]] * 3
    assert [episode.score for episode in transitions[-1].episodes] == [1.0]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("Hanging", r"EnvironmentHangs: no answer within 5 s; its process is ended"),
        ("Dying", r"EnvironmentDied: its process ended with exit code 7"),
        ("Raising", r"ArithmeticError: two is too many"),
    ],
)
def test_what_hangs_dies_or_raises_is_named_and_restarted_then_given_up(made, config, name, line):
    envs = made(config(name, environment_timeout_s=5.0, environment_restarts=1), 1, seed=0)
    envs.reset()
    envs.step(np.array([0]))
    broken = envs.step(np.array([0]))
    assert line in broken.failures[0] and "environment 0 (seed " in broken.failures[0]
    assert ", step 2)" in broken.failures[0]
    assert not broken.valid[0] and broken.truncated[0]
    assert envs.step(np.array([0])).observation[0, 0] == 0  # the new one's reset
    envs.step(np.array([0]))
    with pytest.raises(EnvironmentFailed, match="given up after 1 restarts"):
        envs.step(np.array([0]))


def test_one_that_hangs_does_not_take_those_with_it_whose_answers_a_pipe_cannot_hold(made, config):
    envs = made(config("LargeAndSometimesHanging", environment_timeout_s=8.0), 3, seed=0)
    envs.reset()
    hung = envs.step(np.array([2, 0, 1]))
    assert [line.partition(" (seed")[0] for line in hung.failures] == [
        "process_games:LargeAndSometimesHanging environment 0"
    ]
    assert hung.valid.tolist() == [False, True, True]
    assert (hung.observation[1] == 5).all() and (hung.observation[2] == 6).all()


@pytest.mark.parametrize(
    ("name", "actions", "shown"),
    [
        ("Whole", np.array([2]), 3.0),
        ("Several", np.array([[1, 2]]), 6.0),
        ("Continuous", np.array([[0.5, 0.25]], np.float32), 1.5),
    ],
)
@pytest.mark.parametrize("processes", [False, True], ids=["loop", "processes"])
def test_actions_have_the_environment_s_dtype_and_may_be_written_to(made, config, name, actions, shown, processes):
    given = actions.copy()
    envs = made(replace(config(name, environment_restarts=0), environment_processes=processes), 1, seed=0)
    envs.reset()
    assert envs.step(given).observation[0, 0] == shown
    assert (given == actions).all()


def test_a_game_that_cannot_be_made_is_one_line(made, config):
    with pytest.raises(UserError, match="process_games:Unmakable cannot be made: .*OSError: no such map"):
        made(config("Unmakable"), 2, seed=0)


def test_a_line_of_any_length_is_cut_and_names_what_was_raised(made, config):
    envs = made(config("Verbose"), 1, seed=0)
    envs.reset()
    envs.step(np.array([0]))
    (line,) = envs.step(np.array([0])).failures
    assert "ArithmeticError: ää" in line and len(line.encode()) < 2 << 20


@pytest.mark.parametrize(
    ("said", "line"),
    [
        (struct.pack("!i", 2 << 20) + b"no answer has so many", "answered with too large a message"),
        (struct.pack("!i", 100) + b"less than 100", "its process ended with exit code"),
    ],
    ids=["larger than its space", "died in the middle"],
)
def test_an_answer_that_cannot_be_one_is_named_and_not_waited_for(config, said, line):
    env = ProcessEnv(config("Game"))
    _ = env.observation_space
    env._pipe.close()
    env._pipe, theirs = Pipe()
    env.send_reset(0)
    theirs.recv_bytes()
    os.write(theirs.fileno(), said)
    theirs.close()
    with pytest.raises(EnvironmentDied, match=line):
        env.reset()
    env.close()


def test_one_that_is_stopped_in_the_middle_of_its_answer_is_named_and_not_waited_for(config):
    env = ProcessEnv(config("LargeAndSometimesHanging", environment_timeout_s=60.0))
    env.reset()
    (process,) = [child for child in psutil.Process().children() if child.pid == env._process.pid]
    env.send_step(5)
    assert env._pipe.poll(60)
    env._timeout_s = 2.5
    process_env._bound_reads(env._pipe, 2.5)
    process.suspend()  # a socket holds about half of its answer
    wait_until(lambda: process.status() == psutil.STATUS_STOPPED, "it to be stopped")
    with pytest.raises(EnvironmentHangs, match="nothing more of its answer within 2.5 s"):
        env.step(5)
    env.close()
    assert not process.is_running()


def test_the_spaces_of_a_large_image_are_few_words():
    image = Box(0, 255, (3, 1024, 1024), np.uint8)
    described = process_env._described(image)
    assert len(str(described)) < 200
    assert process_env._space(described) == image


def test_one_that_dies_is_named_at_once_also_where_it_has_a_child_of_its_own(config):
    env = ProcessEnv(config("DyingWithAChild", environment_timeout_s=20.0))
    try:
        env.reset()
        env.step(5)
        with pytest.raises(EnvironmentDied, match="exit code 7"):
            env.step(5)
        os.kill(int(Path("child").read_text()), signal.SIGKILL)
    finally:
        env.close()


def test_what_an_environment_starts_can_be_terminated(config):
    env = ProcessEnv(config("RestartingItsPrograms"))
    try:
        env.reset()
        env.reset()
    finally:
        env.close()


def test_while_this_process_is_stopped_nobody_is_late_and_those_that_hang_share_one_timeout(monkeypatch):
    class Slow:
        needs_s = 0.9  # once those before it have left the core to it

        def send_bytes(self, question):
            pass

        def poll(self, seconds):
            nonlocal now_s
            passed_s = min(seconds, self.needs_s)
            now_s, self.needs_s = now_s + passed_s, self.needs_s - passed_s
            return self.needs_s <= 0

        def recv_bytes(self, largest):
            return process_env._ANSWER

    now_s = 1000.0
    monkeypatch.setattr(ProcessEnv, "_now_s", AwakeClock(1.0, lambda: now_s).now_s)
    envs = [ProcessEnv.__new__(ProcessEnv) for _ in range(4)]
    for needs_s in (0.9, 3600.0):
        for env in envs:
            env._pipe, env._unanswered, env._timeout_s = Slow(), 0, 4.0
            env._pipe.needs_s = needs_s
            env._ask(b"")
        now_s += 100.0
        woke_s = now_s
        for env in envs:
            with pytest.raises(EnvironmentHangs) if needs_s > 4.0 else nullcontext():
                assert env._answer(1) == b""
    assert woke_s + 3.5 < now_s <= woke_s + 4.0


def test_what_ends_all_processes_of_a_job_ends_none_in_the_middle_of_a_step(made, config):
    envs = made(config("ToldToTerminate", environment_restarts=0), 2, seed=0)
    envs.reset()
    assert [envs.step(np.array([5, 5])).valid.all() for _ in range(3)] == [True] * 3


def test_closing_ends_every_process(made, config):
    envs = made(config("Game"), 3, seed=0)
    envs.reset()
    alive = [process for process in psutil.Process().children() if process.status() != psutil.STATUS_ZOMBIE]
    children = [process for process in alive if "process_env" in " ".join(process.cmdline())]
    assert len(children) == 3
    envs.close()
    assert not any(process.is_running() for process in children)
