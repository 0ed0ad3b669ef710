"""The exception for errors that the user can fix, and what to quote of others."""

import re


class BadInput(ValueError):
    """Input, a flag or a file that cannot be used as it is.

    The message is one line that says what was found, what was wanted and how to fix it. Every
    command prints it on stderr and exits with status 2, as it does for an OSError.
    """


def first_line(error: Exception) -> str:
    """Return the first line of what an error says, or its type if that is nothing.

    An error of a TensorFlow function begins with the lines of Python that made the operation. What
    went wrong is told after them, before the operation's name, which is left out.
    """
    text = str(error).strip() or type(error).__name__
    told = re.search(r"^(.*)\n\s*\[\[\{\{node", text, re.MULTILINE)
    line = told[1] if told else text.splitlines()[0]
    line = re.sub(r"\{\{.*?\}\} ?| \[Op:\w+\].*", "", line)
    return line[:400].rstrip(". ")
