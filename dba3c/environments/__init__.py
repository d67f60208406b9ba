"""What agents play, whatever game is behind it: `docs/environments.md` is the guide.

In: an EnvironmentConfig (an id, how it is played), how many, a seed, a view. Out: a VectorEnvironment: B games stepped
together by autoreset, each step one Transition with rewards, ends, whole games and frames; spaces that networks take.
A file is a family (`config` lists them) or a concept: protocol, config, spaces, normalization, the loop, processes.
Never: an action chosen, a score clipped, an environment that fails in silence or takes its neighbours with it.
"""
