"""Full games with a checkpoint: who plays, by which protocol, and what the scores say.

In: a checkpoint. Out: scores of whole, unclipped games with mean, median and interquartile mean.
Never: training's view of a game (lost lives, clipped rewards) taken for its score.
"""
