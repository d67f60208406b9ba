"""What a run measures: written once as append-only records, read, added up, shown and handed to trackers.

In: numbers, where they are measured. Out: metrics/<role>-<rank>.jsonl, and from it charts, a live view, the stop rule.
Never: training that fails because reporting does.
"""
