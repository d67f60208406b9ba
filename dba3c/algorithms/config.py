"""Which algorithm a run learns with, and its coefficients: what losses and whole algorithms are made with, one's own,
too."""

from dataclasses import dataclass

from dba3c.errors import UserError, did_you_mean
from param_servers.config import check_options, option, parse_schedule

ALGORITHMS = ("actor_critic", "vtrace", "ppo", "r2d2", "sac")
REPLAYING = ("r2d2", "sac")
"""Those that learn from a replay."""
OWN = "package.module:loss"
"""What stands for the user's own loss or algorithm, whatever it is called, where options say who reads them."""
POLICY_GRADIENT = f"actor_critic vtrace ppo {OWN}"


@dataclass(frozen=True, kw_only=True)
class AlgorithmConfig:
    """The loss and the experience that one gradient is computed on."""

    algorithm: str = "actor_critic"
    """actor_critic (n-step; mode worker), or vtrace, the V-trace form of the same loss; ppo (mode worker); r2d2, sac
    (mode central); or your own loss, package.module:loss (mode worker)."""

    rollout_length: int = option(5, least=1, mode="worker")
    """T: agent steps each environment takes for one gradient."""

    discount: float = option(0.99, least=0, most=1)
    """γ, per agent step."""

    trace_lambda: float = option(1.0, least=0, most=1, algorithm=POLICY_GRADIENT)
    """λ of the return's recursion; 1 is the n-step return."""

    value_cost: float = option(0.5, least=0, algorithm=POLICY_GRADIENT)
    """Weight of ½(V − R)²: with 1.0 the value loss is the 2017 paper's ½(V − R)²."""

    entropy_cost: str = option("0.01", algorithm=POLICY_GRADIENT)
    """Weight of the policy's entropy: a schedule over data points."""

    policy_clip: str = option("0.2", algorithm=f"ppo {OWN}")
    """ppo: ε, how far a probability ratio may leave 1 before its gradient stops: a schedule over data points."""

    ppo_epochs: int = option(4, least=1, algorithm=f"ppo {OWN}")
    """ppo: passes over a rollout."""

    ppo_minibatches: int = option(4, least=1, algorithm=f"ppo {OWN}")
    """ppo: gradients of a pass."""

    def __post_init__(self) -> None:
        check_options(self, UserError)
        if ":" not in self.algorithm and self.algorithm not in ALGORITHMS:
            close = did_you_mean(self.algorithm, (*ALGORITHMS, OWN))
            raise UserError(f"no algorithm is called {self.algorithm!r}; {close}")
        for name in ("entropy_cost", "policy_clip"):  # one way of writing it: 1e-2 is 0.01
            object.__setattr__(self, name, str(parse_schedule(getattr(self, name))))
        clip = parse_schedule(self.policy_clip)
        if clip.start <= 0 or clip.end < 0:
            raise UserError(f"policy_clip must begin greater than 0 and never fall below it, got {self.policy_clip}")
