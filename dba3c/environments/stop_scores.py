"""Mean scores at which a game counts as solved, over 50 consecutive games unless said otherwise.

| game | stop score | from |
| --- | --- | --- |
| Breakout, Pong, Riverraid, Seaquest, SpaceInvaders | 300, 10, 4000, 1830, 700 | the 2017 system's own |
| BeamRider, Boxing | 14900, 98 | the scores it published |
| football/academy_empty_goal_close | 0.9 goals a game | ours: nine games of ten scored |
| vizdoom/basic | 75 | ours: a scripted player who walks until he faces the monster and shoots has 76 |
| CartPole-v1, LunarLander-v3, Acrobot-v1, MountainCar-v0 | Gymnasium's `reward_threshold` | its registry |
"""

from __future__ import annotations

import gymnasium
from gymnasium.error import Error

ATARI_STOP_SCORES: dict[str, float] = {
    "ALE/Breakout-v5": 300.0,
    "ALE/Pong-v5": 10.0,
    "ALE/Riverraid-v5": 4000.0,
    "ALE/Seaquest-v5": 1830.0,
    "ALE/SpaceInvaders-v5": 700.0,
    "ALE/BeamRider-v5": 14900.0,
    "ALE/Boxing-v5": 98.0,
}
OTHER_STOP_SCORES: dict[str, float] = {
    "football/academy_empty_goal_close": 0.9,
    "vizdoom/basic": 75.0,
}


def stop_score(env_id: str) -> float | None:
    """The score at which a run of this environment may stop; None where none is known."""
    known = ATARI_STOP_SCORES | OTHER_STOP_SCORES
    if env_id in known:
        return known[env_id]
    try:
        threshold = gymnasium.spec(env_id).reward_threshold
    except Error:
        return None
    return None if threshold is None else float(threshold)
