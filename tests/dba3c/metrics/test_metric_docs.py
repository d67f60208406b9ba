"""docs/metrics.md says what the code says."""

from pathlib import Path

from dba3c.metrics import registry as metric_registry

DOCS = Path(__file__).resolve().parents[3] / "docs" / "metrics.md"


def test_the_document_is_what_the_registry_generates():
    assert DOCS.read_text(encoding="utf-8") == metric_registry.render(), (
        "run: python -m dba3c.metrics.registry > docs/metrics.md"
    )


def test_every_metric_has_a_unit_and_a_meaning():
    assert all(metric.unit and metric.meaning for metric in metric_registry.METRICS)


def test_a_chart_has_one_meaning_in_each_tracker():
    drawn = [(metric.chart, metric.unit) for metric in metric_registry.METRICS if metric.chart]
    units = dict(drawn)
    assert all(units[chart] == unit for chart, unit in drawn)
