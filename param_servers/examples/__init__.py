"""Small whole programs that use this package alone.

In: a model and data of their own. Out: a trained model.
Never: reinforcement learning.
"""
