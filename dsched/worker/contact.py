"""Is the core still there, and does it know that we are?

Two clocks run. Frames from the core are its life: after 60 s without one the connection is given up. Beats that it
has answered are ours: it holds our lease for 60 s after the last frame that reached it, and a beat that was answered
is one that did. 5 s before that lease can end, work stops, so that it never runs here and elsewhere at once.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from dsched.clock import Clock

__all__ = ["BEAT_S", "CONTACT_S", "SILENCE_S", "Contact"]

BEAT_S = 30.0
SILENCE_S = 60.0
CONTACT_S = 55.0


class Contact:
    """Beats, and watches the answers.

    `beat` sends one and tells whether it could; `on_lost` is called once per loss of contact, connected or not;
    `on_silence` when the connection should be given up. Both get the seconds that it has lasted.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        beat: Callable[[], bool],
        on_lost: Callable[[float], None],
        on_silence: Callable[[float], None],
    ) -> None:
        self.is_lost = False
        self._clock = clock
        self._beat = beat
        self._on_lost = on_lost
        self._on_silence = on_silence
        self._is_connected = False
        self._frame_s = 0.0
        self._contact_s: float | None = None  # When the last frame was sent that surely has arrived.
        self._connected_s = 0.0
        self._sent: deque[float] = deque()  # Beats without an answer yet.
        self._loop: Any = None
        self._lost_timer: Any = None
        self._silence_timer: Any = None

    def start(self) -> None:
        """Beat from now on, whenever there is a connection."""
        self._loop = self._clock.every(BEAT_S, self._beat_now, name="heartbeat")

    def stop(self) -> None:
        """End all timers; idempotent."""
        if self._loop is not None:
            self._loop.stop()
        self._clock.cancel(self._lost_timer)
        self._clock.cancel(self._silence_timer)

    def connected(self) -> None:
        """A connection is open; it is no contact before the core has registered us."""
        self._is_connected = True
        self._sent.clear()
        self._frame_s = self._connected_s = self._clock.monotonic()
        self._watch_silence()

    def disconnected(self) -> None:
        """The connection is gone; the lease runs on."""
        self._is_connected = False
        self._sent.clear()
        self._clock.cancel(self._silence_timer)

    def frame_came(self) -> None:
        """A frame came from the core."""
        self._frame_s = self._clock.monotonic()

    def registered(self) -> None:
        """The core has answered REGISTER."""
        self._touch(self._connected_s)

    def answered(self) -> None:
        """The core has answered a beat: the oldest that had no answer."""
        if self._sent:
            self._touch(self._sent.popleft())

    def _touch(self, sent_s: float) -> None:
        self._contact_s = sent_s
        if self._clock.monotonic() - sent_s < CONTACT_S:
            self.is_lost = False
            self._clock.cancel(self._lost_timer)
            self._lost_timer = self._clock.call_later(self._left_s(sent_s, CONTACT_S), self._check_contact)

    def _beat_now(self) -> None:
        sent_s = self._clock.monotonic()
        if self._beat():
            self._sent.append(sent_s)

    def _check_contact(self) -> None:
        assert self._contact_s is not None
        self.is_lost = True
        self._on_lost(self._clock.monotonic() - self._contact_s)

    def _watch_silence(self) -> None:
        self._clock.cancel(self._silence_timer)
        left_s = self._left_s(self._frame_s, SILENCE_S)
        self._silence_timer = self._clock.call_later(left_s, self._check_silence)

    def _check_silence(self) -> None:
        silent_s = self._clock.monotonic() - self._frame_s
        if silent_s < SILENCE_S - 0.001:  # What is less was lost in rounding, and would be waited for again and again.
            self._watch_silence()
        elif self._is_connected:
            self._on_silence(silent_s)

    def _left_s(self, since_s: float, limit_s: float) -> float:
        return max(0.0, since_s + limit_s - self._clock.monotonic())
