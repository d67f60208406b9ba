"""The one error a user can cause: its message is one line that says what is wrong and what to do."""


class UserError(Exception):
    """Bad input. The CLI prints the message as one line, without a traceback, and exits non-zero."""
