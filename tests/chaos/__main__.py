"""`python -m tests.chaos --minutes 10 [--seed N]`: see `campaign`. Exit code 1 when something did not hold."""

from __future__ import annotations

import argparse
import secrets
import sys

import torch

from tests.chaos.campaign import Campaign, ending_on_signals


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 30))
    parser.add_argument("--without", action="append", default=[], help="a kind of fault, or an ending, to leave out")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"seed {arguments.seed}: make chaos SEED={arguments.seed} MINUTES={arguments.minutes:g}", flush=True)
    campaign = Campaign(arguments.seed, arguments.minutes, lambda line: print(line, flush=True), arguments.without)
    with ending_on_signals():
        campaign.play()
    for finding in campaign.findings:
        print(f"FINDING (SEED={arguments.seed}): {finding}", flush=True)
    verifier = campaign.verifier
    print(
        f"{campaign.lives} lives, {campaign.faults} faults, {verifier.steps_checked} steps replayed bit by bit, "
        f"{verifier.checkpoints_checked} checkpoints compared: {len(campaign.findings)} findings",
        flush=True,
    )
    return 1 if campaign.findings else 130 if campaign.interrupted else 0


if __name__ == "__main__":
    sys.exit(main())
