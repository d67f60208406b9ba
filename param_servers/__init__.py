"""Exchanging gradients behind one interface: servers, all-reduce or one process. Knows tensors and steps only."""
