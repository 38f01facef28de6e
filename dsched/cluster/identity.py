"""Which host a core runs on: cores on one host can tell at once that the other is dead."""

import os
from pathlib import Path

__all__ = ["host_identity"]


def host_identity() -> str:
    """Return what only processes of one boot and one network namespace share.

    Two of them cannot both have bound the same address, so whoever has bound a dead leader's address is its successor.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        network = os.readlink("/proc/self/ns/net")
    except OSError:
        return f"host:{os.uname().nodename}"
    return f"{boot}/{network}"
