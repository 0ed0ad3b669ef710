"""What came of the attacks: counts, reasons, and a status."""

import contextlib
import subprocess
import sys
import threading
import time
from collections import Counter


class Broken(Exception):
    """Raised when a command did not answer an attack as promised; the message says how."""


def wanted(condition, reason):
    """Raise Broken unless the condition holds."""
    if not condition:
        raise Broken(reason)


class Report:
    """Counts of attacks by kind, safe to use from several threads.

    Args:
        until: The time.monotonic() after which no attack begins.
    """

    def __init__(self, until=float("inf")):
        self.until = until
        self.answered, self.failed, self.left_out = Counter(), Counter(), Counter()
        self.reasons = []
        self.places = Counter()  # {what a command did when its kill came: kills}
        self._lock = threading.Lock()

    @property
    def has_time(self):
        return time.monotonic() < self.until

    @contextlib.contextmanager
    def attack(self, kind, what):
        """Count what happens inside as one attack of a kind; a Broken is kept as its reason."""
        try:
            yield
        except (Broken, AssertionError, OSError, subprocess.TimeoutExpired) as error:
            reason = f"{kind}, {what}: {type(error).__name__}: {error}"
            with self._lock:
                self.failed[kind] += 1
                self.reasons.append(reason)
            self.say(f"FAILED {reason}")
        else:
            with self._lock:
                self.answered[kind] += 1

    def leave_out(self, kind, why, count=1):
        """Count attacks that could not be tried, and say why."""
        with self._lock:
            self.left_out[kind] += count
        self.say(f"left out: {kind}: {why}")

    def kill_came(self, place):
        """Count what a command did when its kill came."""
        with self._lock:
            self.places[place] += 1

    def say(self, line):
        """Print a line of progress."""
        with self._lock:
            print(line, file=sys.stderr, flush=True)

    def lines(self):
        """Return the counts as lines of Markdown tables, and the reasons of failures."""
        lines = []
        if self.places:
            lines = ["| a kill came while it was | kills |", "|---|---|"]
            lines += [f"| {place} | {count} |" for place, count in self.places.most_common()]
        return [*lines, "", *self._counts(), "", *self.reasons]

    def _counts(self):
        kinds = sorted({*self.answered, *self.failed, *self.left_out})
        lines = ["| attack | tried | answered as promised | failed | left out |", "|---" * 5 + "|"]
        for kind in (*kinds, "all"):
            counts = [
                counter.total() if kind == "all" else counter[kind]
                for counter in (self.answered, self.failed, self.left_out)
            ]
            answered, failed, left_out = counts
            lines.append(f"| {kind} | {answered + failed} | {answered} | {failed} | {left_out} |")
        return lines
