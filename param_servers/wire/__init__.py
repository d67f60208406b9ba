"""Authenticated frames between processes, over TCP.

In: messages and the buffers they carry. Out: the same at the peer, or the event that it is gone.
Never: torch, training, or a decision about a step; no pickle, no byte before both sides have proved the secret.
"""
