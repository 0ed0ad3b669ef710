"""The exception for errors that the user can fix."""


class BadInput(ValueError):
    """Input, a flag or a file that cannot be used as it is.

    The message is one line that says what was found, what was wanted and how to fix it. Every
    command prints it on stderr and exits with status 2, as it does for an OSError.
    """
