"""The command line: one module a command, the options and the presets.

In: words. Out: a TrainConfig and somebody who acts on it; or one line that says what was wrong with the words.
Never: a process started before its configuration is whole.
"""
