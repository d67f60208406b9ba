"""Measurements of this package, each a command: ``python -m dba3c.benchmarks.throughput``."""
