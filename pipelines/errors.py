"""The one exception for what a user can mend."""


class BadInput(ValueError):
    """Input, a flag or a file that cannot be used as it is.

    The message is one line: what was got, what was wanted, how to mend it. Every command prints it
    on stderr and ends with exit status 2, as it does for what the operating system refuses.
    """
