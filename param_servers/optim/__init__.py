"""Update rules on flat slices, and the clipping of a worker's gradient.

In: parameters [P] float32, a mean gradient [P], a learning rate. Out: the parameters one step on, in place.
Never: a process, a message, a file.
"""
