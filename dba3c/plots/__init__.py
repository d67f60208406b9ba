"""Figures and small committed data, made from run folders and from nothing else."""
