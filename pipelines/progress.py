"""The pace of progress bars on stderr. A bar with a `delay` is not drawn for a short job."""

import sys


def interval() -> float:
    """Return the seconds between two drawings of a bar: few on a terminal, many in a log file."""
    return 0.1 if sys.stderr.isatty() else 30
