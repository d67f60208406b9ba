"""From what an exchange answers to lines in this process's metrics file."""

from __future__ import annotations

from collections.abc import Sequence

from dba3c.environments.protocol import Episode, Experience
from dba3c.metrics.writer import MetricsWriter, Sections
from param_servers.exchange import Receipt


class GradientRecorder:
    """Writes down what each gradient was: an accepted one is data, a dropped one only experience.

    Experience is what was stepped, whether a gradient of it is answered or not: `finish` writes down the last of it.

    Args:
        counts: whether its gradients are counted; those of a worker's other lanes are part of its first lane's.
    """

    def __init__(self, metrics: MetricsWriter, counts: bool = True) -> None:
        self.metrics = metrics
        self._counts = counts
        self._step = 0
        self._experience = Experience()
        self._episodes: list[Episode] = []

    def stepped(self, step: int, experience: Experience, episodes: list[Episode], failures: Sequence[str] = ()) -> None:
        """Environments were stepped with the parameters of ``step``; the next ``record`` writes it down."""
        self._step = step
        self._experience = self._experience.plus(experience)
        self._episodes += episodes
        for failure in failures:
            self.metrics.record_event("environment_restarted", failure, step)

    def record(
        self, receipt: Receipt, pulled_step: int, data_points: int, numbers: dict[str, float], sections: Sections
    ) -> None:
        """One gradient of ``data_points`` on the parameters of ``pulled_step``, and the games that have ended since."""
        dropped = not receipt.accepted and receipt.reason == "stale"
        # an update does not count for its own gradient's delay: on time is 0
        delay = max(0, receipt.step - pulled_step - receipt.accepted)
        values: dict[str, float] = {
            **self._take(receipt.step),
            "data_points": data_points if receipt.accepted else 0,
            **dict.fromkeys(("staleness_mean", "staleness_min", "staleness_max"), delay),
            **numbers,
        }
        if self._counts:
            rejected = not receipt.accepted and not dropped
            values |= {"accepted": receipt.accepted, "dropped": dropped, "rejected": rejected}
        if receipt.norms is not None:
            values |= dict(zip(("gradient_norm", "gradient_norm_clipped"), receipt.norms, strict=True))
        self.metrics.record_step(receipt.step, values, sections.take())

    def finish(self) -> None:
        """No gradient will be answered any more."""
        if self._experience.agent_steps or self._episodes:
            self.metrics.record_step(self._step, self._take(self._step))

    def _take(self, step: int) -> dict[str, int]:
        """What was done since the last call, for the record of ``step``; its games are written down here."""
        taken, self._experience = self._experience, Experience()
        episodes, self._episodes = self._episodes, []
        for episode in episodes:
            self.metrics.record_episode(step, episode)
        return taken._asdict()
