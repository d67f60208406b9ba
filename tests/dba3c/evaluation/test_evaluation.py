"""Full games on real environments, and what is written of them."""

import json
from dataclasses import replace

import pytest
import torch

from dba3c.assembly.model import initial_parameters
from dba3c.config import NetworkConfig, TrainConfig, replace_options
from dba3c.environments.atari_protocols import with_protocol
from dba3c.environments.config import EnvironmentConfig
from dba3c.errors import UserError
from dba3c.evaluation.evaluator import evaluate
from dba3c.evaluation.full_games import GamesAbandoned, protocol_for, stream_seeds
from dba3c.runs.checkpoints import load_parameters
from tests.dba3c.evaluation.conftest import CARTPOLE

PAPER, NO_STICKY = (with_protocol(EnvironmentConfig(), name) for name in ("2017", "v4-no-sticky"))
BREAKOUT = TrainConfig(environment=NO_STICKY, network=NetworkConfig(network="small"))


def test_the_same_seed_plays_the_same_games_and_another_does_not(cartpole):
    _, policy = cartpole
    first, again, other = (evaluate(CARTPOLE, policy, games=5, num_envs=3, seed_index=index) for index in (0, 0, 1))
    assert first.scores == again.scores != other.scores
    assert len(first.scores) == 5 and first.scores == [float(length) for length in first.lengths_steps]


def test_the_file_holds_what_a_score_must_be_quoted_with(cartpole):
    run, policy = cartpole
    evaluation = evaluate(CARTPOLE, policy, games=3, actions="greedy")
    path = evaluation.save(run)
    assert path == run.path / "evaluations" / "step-10-greedy.json"
    written = json.loads(path.read_text())
    assert written["protocol"] == "CartPole-v1 as registered, greedy actions"
    assert written["data_points"] == 1600 and written["seed"] == 0 and written["seed_index"] == 0
    assert written["parameters_sha256"] == policy.sha256 and len(written["config_sha256"]) == 64
    assert written["scores"] == evaluation.scores and written["summary"]["mean"] == sum(evaluation.scores) / 3
    assert load_parameters(run.checkpoints / "step-10").sha256 == policy.sha256  # the manifest's check still passes


def test_breakout_is_played_in_full_games_with_unclipped_scores(make_run, write_checkpoint):
    run = make_run(BREAKOUT)
    policy = load_parameters(write_checkpoint(run, BREAKOUT, step=1))
    evaluation = evaluate(BREAKOUT, policy, games=3, num_envs=2)
    assert evaluation.protocol == "v4-no-sticky, sampled actions"
    assert len(evaluation.scores) == 3
    # five lives of a random policy: each ball takes some thirty steps and more
    assert min(evaluation.lengths_steps) > 100 and not any(evaluation.truncated)


def test_the_2017_protocol_is_greedy_with_its_step_limit_and_guard():
    protocol = protocol_for(TrainConfig(environment=PAPER))
    assert protocol.name == "2017, at most 40,000 steps a game, greedy actions"
    assert protocol.environment.max_episode_frames == 120_000  # frame skip 2, 3 or 4
    assert protocol.environment.stuck_guard_steps == 30
    shorter = protocol_for(TrainConfig(environment=replace(PAPER, max_episode_frames=20_000)))
    assert shorter.environment.max_episode_frames == 20_000 and shorter.actions == "greedy"
    assert shorter.name == "2017 but max_episode_frames=20000, greedy actions"
    sampled = protocol_for(TrainConfig(environment=PAPER), "sampled")
    assert sampled.actions == "sampled" and "sampled actions" in sampled.name


def test_a_2017_game_of_a_stuck_policy_ends(make_run, write_checkpoint):
    config = TrainConfig(environment=PAPER, network=NetworkConfig(network="small"))
    run = make_run(config)
    zeros = torch.zeros_like(initial_parameters(config)[1])  # all logits equal: NOOP for ever, without the guard
    policy = load_parameters(write_checkpoint(run, config, step=1, parameters=zeros))
    evaluation = evaluate(config, policy, games=1)
    assert evaluation.truncated == [False]


def test_seeds_differ_by_run_purpose_and_index():
    seeds = {stream_seeds(*key) for key in [(0, "evaluation", 0), (1, "evaluation", 0), (0, "evaluation", 1)]}
    assert len(seeds | {stream_seeds(0, "recording", 0)}) == 4
    assert stream_seeds(3, "evaluation", 2) == stream_seeds(3, "evaluation", 2)


def test_fewer_games_do_not_replace_more_of_the_same_parameters(cartpole, capsys):
    run, policy = cartpole
    path = evaluate(CARTPOLE, policy, games=4).save(run)
    before = path.read_bytes()
    assert evaluate(CARTPOLE, policy, games=2).save(run) == path and path.read_bytes() == before
    assert "stays as it is: it has 4 games of these parameters, this one 2" in capsys.readouterr().err
    cut_short = replace(evaluate(CARTPOLE, policy, games=5), unfinished=2)  # the short ones of seven
    assert cut_short.save(run) == path and path.read_bytes() == before
    assert "this one 5 and 2 unfinished" in capsys.readouterr().err
    path.unlink()
    cut_short.save(run)
    evaluate(CARTPOLE, policy, games=3).save(run)
    assert len(json.loads(path.read_text())["scores"]) == 3
    replace(evaluate(CARTPOLE, policy, games=2), parameters_sha256="another").save(run)
    assert len(json.loads(path.read_text())["scores"]) == 2
    path.unlink()
    path.mkdir()  # an evaluation that cannot be read is not "none there"
    with pytest.raises(UserError, match="cannot write .*: Is a directory"):
        evaluate(CARTPOLE, policy, games=1).save(run)


def test_what_cannot_be_evaluated_is_refused_in_one_line(cartpole):
    _, policy = cartpole
    with pytest.raises(UserError, match="another network"):
        evaluate(replace_options(CARTPOLE, env_id="Acrobot-v1"), policy, games=1)
    with pytest.raises(UserError, match="at least 1"):
        evaluate(CARTPOLE, policy, games=0)
    with pytest.raises(UserError, match="actions are sampled or greedy, not 'random'"):
        evaluate(CARTPOLE, policy, games=1, actions="random")
    with pytest.raises(UserError, match="seed_index must not be negative, got -1"):
        evaluate(CARTPOLE, policy, games=1, seed_index=-1)
    with pytest.raises(UserError, match="its run kept no observation statistics"):
        evaluate(replace_options(CARTPOLE, normalize_observations=True), policy, games=1)
    with pytest.raises(GamesAbandoned):
        evaluate(CARTPOLE, policy, games=2, should_stop=lambda: "enough")
