"""Node lists in every form Slurm prints."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from dba3c.errors import UserError
from launch.cluster.nodelist import expand, parse_tasks_per_node

FORMS = {
    "node1": ["node1"],
    "node[1-3]": ["node1", "node2", "node3"],
    "p[0900-0902],q12,r[1-3,7]s[01-02]": [
        *["p0900", "p0901", "p0902", "q12"],
        *["r1s01", "r1s02", "r2s01", "r2s02", "r3s01", "r3s02", "r7s01", "r7s02"],
    ],
    "n[08-11]": ["n08", "n09", "n10", "n11"],
    "n[8-11]": ["n8", "n9", "n10", "n11"],
    "a[1,3-4]-ib": ["a1-ib", "a3-ib", "a4-ib"],
    "gpu-a,gpu-b": ["gpu-a", "gpu-b"],
    "c[1-2],c[7]": ["c1", "c2", "c7"],
    "r[1-2]n[1-2]c[0-1]": [f"r{r}n{n}c{c}" for n in (1, 2) for r in (1, 2) for c in (0, 1)],
    "host.example.org": ["host.example.org"],
    "x[099-101]": ["x099", "x100", "x101"],
}


@pytest.mark.parametrize("nodelist", FORMS)
def test_a_list_expands_to_its_nodes_in_slurm_s_order(nodelist: str) -> None:
    assert expand(nodelist) == FORMS[nodelist]


def test_ranges_names_and_double_brackets_mix() -> None:
    assert len(expand("p[0900-0910],q12,r[1-3,7]s[01-02]")) == 11 + 1 + 8


@pytest.mark.skipif(shutil.which("scontrol") is None, reason="scontrol is not installed")
@pytest.mark.parametrize("nodelist", [form for form in FORMS if not form.endswith("-ib")])  # it refuses suffixes
def test_scontrol_reads_the_list_as_we_do(nodelist: str, tmp_path: Path) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=x\nSlurmctldHost=localhost\nNodeName=localhost\n")
    answer = subprocess.run(
        ["scontrol", "show", "hostnames", nodelist],
        env={"SLURM_CONF": str(conf), "PATH": "/usr/bin:/bin:/usr/local/bin"},
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    assert answer.stdout.split() == expand(nodelist)


@pytest.mark.parametrize(
    ("nodelist", "reason"),
    [
        ("", "empty name"),
        ("a,,b", "empty name"),
        ("n[1-3", "unmatched brackets"),
        ("n1-3]", "unmatched brackets"),
        ("n[[1]]", "unmatched brackets"),
        ("n[3-1]", "runs backwards"),
        ("n[a-b]", "no number or range"),
        ("n[]", "no number or range"),
        ("n[1-999999999]", "more than 100,000 nodes"),
        ("n[1-1000]m[1-1000]", "more than 100,000 nodes"),
    ],
)
def test_what_is_no_node_list_is_refused_in_one_line(nodelist: str, reason: str) -> None:
    with pytest.raises(UserError) as refused:
        expand(nodelist)
    assert reason in str(refused.value)
    assert "\n" not in str(refused.value)


def test_tasks_per_node_expand() -> None:
    assert parse_tasks_per_node("2(x3),1") == [2, 2, 2, 1]
    assert parse_tasks_per_node("1(x64)") == [1] * 64
    with pytest.raises(UserError, match=r"should look like 2\(x3\),1"):
        parse_tasks_per_node("2x3")
