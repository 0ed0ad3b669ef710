"""Addresses for workers that begin to listen seconds later."""

import contextlib
import random
import socket


def free_addresses(count):
    """Return addresses of this machine, "127.0.0.1:port", at which nobody listens.

    Linux gives ports from 32768 to clients and to those who ask for any, so it does not give one of
    these to somebody else meanwhile.
    """
    found = []
    for port in random.SystemRandom().sample(range(20_000, 32_000), 1000):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.append(f"127.0.0.1:{port}")
        if len(found) == count:
            return found
    raise OSError(f"{count} ports from 20000 to 31999 are not free")
