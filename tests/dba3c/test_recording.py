"""Films: every picture of the game, whole files or none."""

from pathlib import Path

import imageio.v2 as imageio
import numpy as np
import pytest

from dba3c.checkpoints import Policy
from dba3c.config import NetworkConfig, TrainConfig
from dba3c.construction import initial_parameters
from dba3c.environments.config import EnvironmentConfig
from dba3c.recording import Film, film_game, save_gif, save_mp4


@pytest.fixture(scope="module")
def config() -> TrainConfig:
    game = EnvironmentConfig(env_id="ALE/Breakout-v5", max_episode_frames=400)
    return TrainConfig(environment=game, network=NetworkConfig(network="small"))


def untrained(config: TrainConfig) -> Policy:
    plan, parameters = initial_parameters(config)
    return Policy(step=0, data_points=0, layout=plan.layout, parameters=parameters)


def test_a_film_shows_the_whole_game_in_colour_and_the_same_seed_films_the_same_game(config: TrainConfig) -> None:
    policy = untrained(config)
    film, again = film_game(config, policy), film_game(config, policy)
    assert film.pictures[0].shape == (210, 160, 3)
    assert len({picture.tobytes() for picture in film.pictures}) > 20
    assert film.score == again.score
    assert all(np.array_equal(a, b) for a, b in zip(film.pictures, again.pictures, strict=True))


def test_an_mp4_decodes_to_as_many_pictures_as_were_filmed(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    pictures = [random.integers(0, 255, (48, 32, 3), dtype=np.uint8) for _ in range(17)]
    save_mp4(Film(pictures, 30.0, score=1.0), tmp_path / "game.mp4")
    with imageio.get_reader(tmp_path / "game.mp4") as reader:
        decoded = list(reader.iter_data())
    assert len(decoded) == 17 and decoded[0].shape == (96, 64, 3)
    assert [path.name for path in tmp_path.iterdir()] == ["game.mp4"]


def test_a_gif_of_a_long_game_is_thinned_out(tmp_path: Path) -> None:
    pictures = [np.full((20, 16, 3), value % 255, np.uint8) for value in range(2000)]
    save_gif(Film(pictures, 30.0, score=1.0), tmp_path / "game.gif")
    assert len(imageio.mimread(tmp_path / "game.gif", memtest=False)) <= 400
