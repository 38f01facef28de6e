"""Ports of loopback that are free, for processes that are started to be tried."""

import random
import socket
from typing import Final

__all__ = ["LOOPBACK", "free_port"]

LOOPBACK: Final = "127.0.0.1"
_PORTS: Final = (20_000, 32_000)
"""Below those that systems give to outgoing connections by themselves."""


def free_port() -> int:
    """Return a port of loopback that nobody listens on.

    Another process may take it before it is used, but not by chance.
    """
    while True:
        port = random.randrange(*_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind((LOOPBACK, port))
            except OSError:
                continue
        return port
