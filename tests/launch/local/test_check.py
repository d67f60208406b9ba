"""What is looked at before a run is started, in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from launch.cli.options import parse_train
from launch.local import check

WORDS = ["CartPole-v1", "--network", "mlp", "--precision"]


@pytest.mark.parametrize(
    ("precision", "bfloat16_s", "said"),
    [
        ("bfloat16", 1.7, "bfloat16 takes 1.7 times as long as float32 on this processor: --precision float32"),
        ("bfloat16", 0.5, ""),
        ("float32", 1.7, ""),
    ],
)
def test_only_who_computes_in_bfloat16_hears_that_it_is_the_slower_one_here(
    precision: str,
    bfloat16_s: float,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(check, "_product_s", lambda dtype: bfloat16_s if dtype == torch.bfloat16 else 1.0)
    config = parse_train([*WORDS, precision]).config(1)
    assert check.main([config.to_json(), str(tmp_path / "run"), ""]) == 0
    assert capsys.readouterr().err.strip() == (f"dba3c: warning: {said}" if said else "")
