"""docs/metrics.md names what the code records and draws."""

from pathlib import Path

from dba3c.metrics import registry as metric_registry

DOCS = Path(__file__).resolve().parents[3] / "docs" / "metrics.md"


def test_the_document_has_a_row_with_a_meaning_for_each_metric_and_each_chart_and_for_nothing_else():
    lines = [line.strip("| ") for line in DOCS.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    rows = [[cell.strip("` ") for cell in line.split(" | ")] for line in lines]
    assert all(cell for row in rows for cell in row[:3])
    recorded = {
        (m.name, m.unit.replace("|", "\\|"), m.reduction, m.chart) for m in metric_registry.METRICS if m.kind != "chart"
    }
    drawn = {(chart, metric.unit) for chart, metric in metric_registry.charts().items() if metric.kind == "chart"}
    assert {(*row[:3], *row[4:]) if len(row) > 4 else (*row[:3], "") for row in rows if len(row) >= 4} == recorded
    of_each_worker = {row[0] for row in rows if len(row) == 3 and "/" not in row[0]}
    assert {tuple(row[:2]) for row in rows if len(row) == 3 and "/" in row[0]} == drawn
    assert of_each_worker == set(metric_registry.PER_WORKER_CHARTS)
    assert {row[0] for row in rows if len(row) == 2} == set(metric_registry.SECTIONS)


def test_every_chart_has_a_name_of_its_own_in_one_of_six_groups_of_the_trackers():
    names = {chart: metric_registry.tracker_name(chart) for chart in metric_registry.charts()}
    assert len(set(names.values())) == len(names)
    assert {name.split("/")[0] for name in names.values()} == set(metric_registry.TRACKER_GROUPS)
    assert metric_registry.tracker_name("worker-3/score") == "workers/score_worker-3"
    text = DOCS.read_text(encoding="utf-8")
    assert all(f"- `{group}/`: " in text for group in (*metric_registry.TRACKER_GROUPS, "workers"))


def test_a_metric_is_defined_once():
    names = [(metric.kind, metric.name) for metric in metric_registry.METRICS]
    assert len(set(names)) == len(names)


def test_a_chart_has_one_meaning_in_each_tracker():
    drawn = [(metric.chart, metric.unit) for metric in metric_registry.METRICS if metric.chart]
    units = dict(drawn)
    assert all(units[chart] == unit for chart, unit in drawn)
