"""Trackers: small adapters of one protocol, each driven by a thread of its own; several may be driven at once.

In: points and events. Out: what the tracker makes of them.
Never: a run that waits for its tracker, or fails with it.
"""
