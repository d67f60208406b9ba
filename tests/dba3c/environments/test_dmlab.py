"""DeepMind Lab's adapter against a stand-in of the documented API and its level cache."""

import errno
import importlib.util
import os
import stat
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from dba3c.environments.config import EnvironmentConfig
from dba3c.environments.dmlab import LevelCache
from dba3c.environments.factory import make_vector_environment
from dba3c.errors import UserError

FORWARD, FIRE = 0, 8
CONFIG = EnvironmentConfig(env_id="dmlab/explore_goal_locations_small")


@pytest.fixture
def lab(monkeypatch):
    """The stand-in, imported afresh as deepmind_lab."""
    path = Path(__file__).with_name("fake_deepmind_lab.py")
    spec = importlib.util.spec_from_file_location("deepmind_lab", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, "deepmind_lab", module)
    return module


def test_a_level_of_dmlab30_is_played_at_72_by_96_with_nine_actions_and_frame_skip_four(lab):
    envs = make_vector_environment(CONFIG, 2, seed=0)
    assert envs.reset().shape == (2, 3, 72, 96)
    assert envs.action_space.n == 9
    inner = envs._copies.envs[0]._lab
    assert inner.level == "contributed/dmlab30/explore_goal_locations_small"
    assert inner.config == {"width": "96", "height": "72", "logLevel": "WARN"}
    transition = envs.step(np.array([FORWARD, FIRE]))
    assert transition.reward.tolist() == [1.0, 0.0]
    assert transition.observation[0, 0, 0, 0] == 4


def test_the_clock_truncates_and_the_last_screen_stands_for_the_one_the_api_refuses(lab):
    envs = make_vector_environment(CONFIG, 1, seed=0)
    envs.reset()
    transitions = [envs.step(np.array([FORWARD])) for _ in range(32)]
    assert [t for t, transition in enumerate(transitions) if transition.truncated[0]] == [29]
    assert (transitions[29].observation == transitions[28].observation).all()
    (episode,) = transitions[29].episodes
    assert (episode.score, episode.length_steps, episode.truncated) == (30.0, 30, True)
    assert not transitions[30].valid[0] and transitions[31].valid[0]


def test_other_levels_keep_their_names_and_evaluation_has_its_own_maps(lab):
    envs = make_vector_environment(EnvironmentConfig(env_id="dmlab/lt_chasm"), 1, seed=0, view="evaluation")
    inner = envs._copies.envs[0]._lab
    assert inner.level == "lt_chasm"
    assert inner.config["mixerSeed"] == str(0x600D5EED) and inner.config["allowHoldOutLevels"] == "true"


def test_paths_reach_the_module(lab, tmp_path):
    config = EnvironmentConfig(env_id="dmlab/psychlab_visual_search", dmlab_home="/opt/lab", dmlab_dataset="/data")
    envs = make_vector_environment(config, 1, seed=0)
    assert lab.runfiles == ["/opt/lab"]
    assert envs._copies.envs[0]._lab.config["datasetPath"] == "/data"


def test_maps_are_compiled_once_for_all_actors(lab, tmp_path):
    config = EnvironmentConfig(env_id=CONFIG.env_id, dmlab_level_cache=str(tmp_path / "cache"))
    for actor in range(3):
        envs = make_vector_environment(config, 4, seed=actor)
        for _ in range(3):
            envs.reset()
    assert len(lab.compiled) == len(set(lab.compiled)) <= 5


def test_the_same_seed_gives_the_same_levels(lab):
    def first(seed):
        envs = make_vector_environment(CONFIG, 4, seed)
        screens = [envs.reset()] + [envs.step(np.zeros(4, np.int64)).observation for _ in range(249)]
        return np.stack(screens)

    assert (first(1) == first(1)).all()
    assert (first(1) != first(2)).any()


def test_without_the_module_one_line_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "deepmind_lab", None)
    with pytest.raises(UserError, match="needs the module deepmind_lab, built from source: see docs/environments.md"):
        make_vector_environment(CONFIG, 1, seed=0)


def test_writers_at_once_leave_one_whole_map_and_no_scraps(tmp_path):
    cache = LevelCache(tmp_path / "cache")
    compiled = tmp_path / "compiled.pk3"
    compiled.write_bytes(b"map" * 100_000)
    writers = [threading.Thread(target=cache.write, args=("key", str(compiled))) for _ in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(timeout=30)
    files = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert files == [cache.path_of("key")]
    assert files[0].read_bytes() == b"map" * 100_000
    fetched = tmp_path / "fetched.pk3"
    assert cache.fetch("key", str(fetched)) and fetched.read_bytes() == compiled.read_bytes()
    assert not cache.fetch("another", str(fetched))


def test_every_user_that_the_umask_lets_may_read_a_cached_level(tmp_path):
    cache = LevelCache(tmp_path / "cache")
    compiled = tmp_path / "compiled.pk3"
    compiled.write_bytes(b"map")
    before = os.umask(0o022)
    try:
        cache.write("key", str(compiled))
    finally:
        os.umask(before)
    assert stat.S_IMODE(cache.path_of("key").stat().st_mode) == 0o644


def test_a_cached_level_that_cannot_be_read_is_compiled(tmp_path):
    cache = LevelCache(tmp_path / "cache")
    cache.path_of("key").mkdir(parents=True)  # what root cannot read either
    assert not cache.fetch("key", str(tmp_path / "fetched.pk3"))


@pytest.mark.parametrize(
    ("call", "code"),
    [
        ("pathlib.Path.mkdir", errno.EROFS),
        ("pathlib.Path.mkdir", errno.EACCES),
        ("os.fsync", errno.ENOSPC),
        ("os.replace", errno.ESTALE),
    ],
)
def test_a_disk_that_keeps_no_map_costs_a_warning_and_leaves_no_scraps(tmp_path, monkeypatch, caplog, call, code):
    def fail(*arguments, **options):
        raise OSError(code, os.strerror(code))

    cache = LevelCache(tmp_path / "cache")
    compiled = tmp_path / "compiled.pk3"
    compiled.write_bytes(b"map")
    monkeypatch.setattr(call, fail)
    cache.write("key", str(compiled))
    assert f"does not keep a map: [Errno {code}]" in caplog.text
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
