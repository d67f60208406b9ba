"""Atari through ale-py's C++ vector environment: the game, the view an agent has of it, and the named protocols.

In: an EnvironmentConfig of an ALE id. Out: a VectorEnvironment of uint8 [N, stack, 84, 84] views, or a camera.
Never: a score without the protocol it was played by.
"""
