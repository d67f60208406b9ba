"""A game of a checkpoint as a video, with what the agent thinks drawn over it.

In: a checkpoint and a camera on its environment. Out: videos/*.mp4 or a GIF.
Never: a game that was not played by that checkpoint.
"""
