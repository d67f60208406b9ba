"""Checkpoints: a file a shard, a manifest with their hashes last, and who writes when.

In: a slice and its optimizer state at a step. Out: the newest valid checkpoint, restored exactly.
Never: a half-written one taken for whole, or one removed by who only reads.
"""
