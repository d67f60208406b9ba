"""What an exchange costs, measured: on this machine, over lanes, and among emulated hosts.

In: sizes, rates, delays, compute times. Out: a row or table of times, bytes and processor shares.
Never: a learned score, or a figure without its command.
"""
