"""What each core could know of each worker: which connections it saw open and close, and when it last heard.

Facts of the simulated network, not of the engine, so that a verdict of the engine can be held against them.
"""

from typing import Any

from dsched.net.protocol import FramedProtocol
from dsched.testing.executions import Execution
from dsched.testing.sim_node import SimNode

__all__ = ["Contacts"]

SLACK_S = 3.0


class _Contact:
    __slots__ = ("closed_s", "heard_s", "open", "opened_s")

    def __init__(self) -> None:
        self.open: dict[FramedProtocol, None] = {}
        self.opened_s = -1e9
        self.closed_s = -1e9
        self.heard_s = -1e9


class Contacts:
    """Listens at the cores' side of the connections. `lease_s` and `grace_s` are those of the engine."""

    def __init__(self, lease_s: float, grace_s: float) -> None:
        self._lease_s = lease_s
        self._grace_s = grace_s
        self._of: dict[tuple[str, int, str], _Contact] = {}
        self._began_s: dict[str, float] = {}

    def listen(self, node: SimNode, peers: Any) -> None:
        """Listen to the frame handler of the core that lives on `node` now."""
        life, now = node.lives, node.reactor.seconds
        connected, received, gone = peers.connected, peers.frames_received, peers.disconnected

        def contact(peer: FramedProtocol) -> _Contact:
            host = peer.transport.getPeer().host
            return self._of.setdefault((node.name, life, host), _Contact())

        def on_connected(peer: FramedProtocol) -> None:
            known = contact(peer)
            known.open[peer] = None
            known.opened_s = now()
            connected(peer)

        def on_frames(peer: FramedProtocol, frames: list[Any]) -> None:
            contact(peer).heard_s = now()
            received(peer, frames)

        def on_gone(peer: FramedProtocol, reason: Exception) -> None:
            known = contact(peer)
            known.open.pop(peer, None)
            known.closed_s = now()
            gone(peer, reason)

        peers.connected, peers.frames_received, peers.disconnected = on_connected, on_frames, on_gone

    def term_began(self, node: SimNode) -> None:
        """The core on `node` leads from now on."""
        self._began_s[node.name] = node.reactor.seconds()

    def why_not_lost(self, core: SimNode, execution: Execution, now_s: float) -> str | None:
        """Return why a core may not give up an execution that still runs; None if it may."""
        known = self._of.get((core.name, core.lives, execution.node.ip))
        began_s = self._began_s.get(core.name, 0.0)
        if known is None:
            return self._too_soon("it never connected, and the term began", now_s - began_s)
        if not known.open:
            return self._too_soon("its connection closed", now_s - max(known.closed_s, began_s))
        silent_s = now_s - known.heard_s
        if silent_s >= self._lease_s - SLACK_S:
            return None
        return f"{execution.node.name} is connected, and was heard {silent_s:.3f} s ago"

    def _too_soon(self, what: str, ago_s: float) -> str | None:
        return f"{what} only {ago_s:.3f} s ago" if ago_s < self._grace_s - SLACK_S else None
