"""Declared grids of runs (points × seeds), what they add up to, and the figures made of them."""
