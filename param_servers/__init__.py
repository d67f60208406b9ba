"""Exchanging gradients behind one interface: parameter servers, all-reduce, one process. Knows tensors and steps only."""
