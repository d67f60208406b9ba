"""The real consoles: what ale-py does is what the room says it does."""

from dataclasses import replace

import numpy as np
import pytest

from dba3c.environments.atari_protocols import with_protocol
from dba3c.environments.config import EnvironmentConfig
from dba3c.errors import UserError

NO_STICKY = with_protocol(EnvironmentConfig(), "v4-no-sticky")
FIRE = 1


def play(envs, steps, action=0):
    actions = np.full(envs.num_envs, action)
    return [envs.step(actions) for _ in range(steps)]


def test_a_lost_life_neither_resets_the_game_nor_costs_a_step(made):
    """Firing for ever loses Breakout's five lives one by one; only the fifth ends the game."""
    envs = made(replace(NO_STICKY, episodic_life=True), 1, seed=3)
    envs.reset()
    ended, transitions = 0, []
    while not transitions or not transitions[-1].episodes:
        transitions += play(envs, 1, FIRE)
        ended += int(transitions[-1].terminated[0])
        assert len(transitions) < 2000
    assert ended == 5
    assert all(t.valid[0] for t in transitions)
    assert transitions[-1].episodes[0].length_steps == len(transitions)
    after = play(envs, 2, FIRE)
    assert [bool(t.valid[0]) for t in after] == [False, True]
    assert [bool(t.first[0]) for t in (*transitions, *after)] == [False] * len(transitions) + [True, False]


def test_after_a_reset_the_ball_flies_and_after_a_lost_life_it_waits_for_fire(made):
    """The FIRE trap of Breakout: doing nothing loses exactly the first life, then the game stands still."""
    envs = made(replace(NO_STICKY, episodic_life=True), 1, seed=1)
    envs.reset()
    assert sum(int(t.terminated[0]) for t in play(envs, 400)) == 1


def test_fire_on_life_loss_plays_all_lives_of_a_player_who_does_nothing(made):
    config = replace(NO_STICKY, episodic_life=True, fire_on_life_loss=True)
    envs = made(config, 1, seed=1)
    envs.reset()
    transitions = play(envs, 400)
    lost = [i for i, t in enumerate(transitions) if t.terminated[0]]
    assert len(lost) >= 5
    assert all(not transitions[i + 1].valid[0] for i in lost if i + 1 < len(transitions))


def test_observations_are_never_written_to_again(made):
    envs = made(NO_STICKY, 2, seed=5)
    kept = [envs.reset()]
    copies = [kept[0].copy()]
    for t in range(20):
        transition = envs.step(np.full(2, t % 4))
        kept.append(transition.observation)
        copies.append(transition.observation.copy())
    assert all((a == b).all() for a, b in zip(kept, copies, strict=True))


def test_raw_scores_are_known_although_rewards_are_clipped(made):
    """Space Invaders pays 5 to 30 points per invader."""
    envs = made(replace(NO_STICKY, env_id="ALE/SpaceInvaders-v5"), 4, seed=2)
    envs.reset()
    clipped, scores = 0.0, []
    for _ in range(1200):
        transition = envs.step(np.full(4, FIRE))
        assert np.abs(transition.reward).max() <= 1
        clipped += float(transition.reward.sum())
        scores += [episode.score for episode in transition.episodes]
    assert len(scores) >= 4 and min(scores) >= 5
    assert sum(scores) > 2 * clipped


def test_the_frame_limit_truncates_and_bootstraps(made):
    envs = made(replace(NO_STICKY, env_id="ALE/Pong-v5", max_episode_frames=80, noop_max=0), 2, seed=2)
    envs.reset()
    transitions = play(envs, 22)
    assert [i for i, t in enumerate(transitions) if t.truncated.all()] == [19]
    assert not any(t.terminated.any() for t in transitions)
    assert [i for i, t in enumerate(transitions) if not t.valid.any()] == [20]
    assert all(e.truncated and e.length_steps == 20 for e in transitions[19].episodes)


def test_full_action_space_is_18_and_minimal_breakout_is_4(made):
    assert made(NO_STICKY, 1, 0).action_space.n == 4
    assert made(replace(NO_STICKY, full_action_space=True), 1, 0).action_space.n == 18


def test_rgb_planes_are_frame_by_frame_and_channels_first(made):
    """Breakout's walls are gray (142, 142, 142) and its top row of bricks is red: more red than blue."""
    envs = made(replace(NO_STICKY, grayscale=False), 1, seed=0)
    envs.reset()
    observation = play(envs, 4)[-1].observation
    assert observation.shape == (1, 12, 84, 84) and observation.flags.c_contiguous
    red, green, blue = observation[0, 9:12].astype(int)
    assert abs(red[11, 40] - green[11, 40]) <= 2 and red[11, 40] > 100
    top_row_of_bricks = (slice(24, 25), slice(20, 60))
    assert (red[top_row_of_bricks] > blue[top_row_of_bricks] + 50).all()


def test_the_2017_protocol_skips_two_to_four_frames_at_random(made):
    envs = made(replace(with_protocol(NO_STICKY, "2017"), noop_max=0), 1, seed=0)
    envs.reset()
    frames, counted = [0], []
    for _ in range(60):
        counted.append(int(envs.step(np.array([0])).frames[0]))
        frames.append(int(envs._consoles._frames[0]))
    assert counted == np.diff(frames).tolist()
    assert set(counted) == {2, 3, 4}
    assert envs.observation_space.shape == (12, 84, 84)


def test_frames_are_those_of_the_console_and_a_reset_with_its_no_ops_is_none(made):
    envs = made(replace(NO_STICKY, noop_max=30, max_episode_frames=302), 1, seed=0)
    envs.reset()
    transitions = play(envs, 90)
    ends = [i for i, t in enumerate(transitions) if t.truncated[0] or t.terminated[0]]
    assert ends and all(0 < int(transitions[i].frames[0]) <= 4 for i in ends)
    resets = [i for i, t in enumerate(transitions) if not t.valid[0]]
    assert resets and not any(transitions[i].frames[0] for i in resets)
    others = set(range(90)) - set(ends) - set(resets)
    assert {int(transitions[i].frames[0]) for i in others} == {4}


def test_the_2017_protocol_starts_every_game_with_a_black_history(made):
    envs = made(replace(with_protocol(NO_STICKY, "2017"), max_episode_frames=20), 2, seed=0)
    first = envs.reset()
    assert not first[:, :9].any() and first[:, 9:].any()
    transitions = play(envs, 12)
    resets = [(t.observation, i) for t in transitions for i in range(2) if not t.valid[i]]
    assert resets and all(not o[i, :9].any() and o[i, 9:].any() for o, i in resets)
    assert transitions[3].observation[:, :9].any()


def test_resizing_of_the_2017_protocol_is_bilinear_at_pixel_centres(made):
    """Against the formula, slowly: output pixel (i, j) reads the screen at ((i + ½)·210/84 − ½, (j + ½)·160/84 − ½)."""
    envs = made(replace(with_protocol(NO_STICKY, "2017"), frame_stack=1), 1, seed=0)
    resized = envs.reset()[0].astype(float)
    screen = envs._consoles._screens[0].astype(float)
    for i, j in [(0, 0), (11, 40), (25, 30), (60, 41), (80, 83)]:
        y, x = max((i + 0.5) * 210 / 84 - 0.5, 0), max((j + 0.5) * 160 / 84 - 0.5, 0)
        top, left = int(y), int(x)
        down, right = y - top, x - left
        expected = (1 - down) * (1 - right) * screen[top, left] + (1 - down) * right * screen[top, left + 1]
        expected += down * (1 - right) * screen[top + 1, left] + down * right * screen[top + 1, left + 1]
        assert np.abs(resized[:, i, j] - expected).max() <= 1.0


def test_an_unknown_game_is_refused_with_the_close_ones():
    with pytest.raises(UserError, match=r"unknown Atari game ALE/Brekout-v5: did you mean ALE/Breakout-v5"):
        EnvironmentConfig(env_id="ALE/Brekout-v5")


def test_a_legacy_id_is_told_its_protocol():
    with pytest.raises(UserError, match=r"ALE/Breakout-v5.*--frame-skip 2 4 --repeat-action-probability 0.25"):
        EnvironmentConfig(env_id="Breakout-v0")
