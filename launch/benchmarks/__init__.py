"""What the launching costs, measured on a real Slurm of 64 nodes: python -m launch.benchmarks"""
