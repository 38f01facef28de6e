"""Is the core still there, and does it know that we are?

Two clocks run. What is asked of the core (to register us, to take what we bring, to answer a beat) must be answered
within 10 s, else the connection is given up: a core that hangs is left long before work has to stop. And the core
holds our lease for 60 s after the last frame that reached it; a beat that was answered is one that did. 5 s before that
lease can end, work stops, so that it never runs here and elsewhere at once.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from dsched.clock import Clock

__all__ = ["ANSWER_S", "BEAT_S", "CONTACT_S", "Contact"]

BEAT_S = 30.0
ANSWER_S = 10.0
CONTACT_S = 55.0
LATE_S = 1.0
"""A timer that is later than this tells that the process stood still; answers may wait in the socket."""
CATCH_UP_S = 1.0
"""How long they may take to be read."""
BEAT = "a beat"


class Contact:
    """Beats, and watches the answers.

    `beat` sends one and tells whether it could; `on_lost` is called once per loss of contact, connected or not, with
    the seconds that it has lasted; `on_unanswered` with what the core has not answered: the connection should be
    given up, or `expect` called again.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        beat: Callable[[], bool],
        on_lost: Callable[[float], None],
        on_unanswered: Callable[[str], None],
    ) -> None:
        self.is_lost = False
        self._clock = clock
        self._beat = beat
        self._on_lost = on_lost
        self._on_unanswered = on_unanswered
        self._contact_s: float | None = None  # When the last frame was sent that surely has arrived.
        self._connected_s = 0.0
        self._sent: deque[float] = deque()  # Beats without an answer yet.
        self._asked: str | None = None
        self._has_heard = False  # Anything, since the last question.
        self._due_s = 0.0
        self._loop: Any = None
        self._lost_timer: Any = None
        self._answer_timer: Any = None

    def start(self) -> None:
        """Beat from now on, whenever there is a connection."""
        self._loop = self._clock.every(BEAT_S, self._beat_now, name="heartbeat")

    def stop(self) -> None:
        """End all timers; idempotent."""
        if self._loop is not None:
            self._loop.stop()
        self._clock.cancel(self._lost_timer)
        self._clock.cancel(self._answer_timer)

    def connected(self) -> None:
        """A connection is open, and REGISTER is sent; it is no contact before the core has registered us."""
        self._sent.clear()
        self._connected_s = self._clock.monotonic()
        self.expect("REGISTER")

    def disconnected(self) -> None:
        """The connection is gone; the lease runs on."""
        self._sent.clear()
        self._met()

    def frame_came(self) -> None:
        """A frame came from the core."""
        self._has_heard = True

    def registered(self) -> None:
        """The core has answered REGISTER, and RESUME is sent."""
        self._touch(self._connected_s)
        self.expect("RESUME")

    def resumed(self) -> None:
        """The core has answered RESUME."""
        self._met()

    def expect(self, what: str) -> None:
        """Give the core time to answer `what`, from now on."""
        self._asked = what
        self._has_heard = False
        self._wait(ANSWER_S)

    def answered(self) -> None:
        """The core has answered a beat: the oldest that had no answer."""
        if self._sent:
            self._touch(self._sent.popleft())

    def _touch(self, sent_s: float) -> None:
        self._contact_s = sent_s
        if self._clock.monotonic() - sent_s < CONTACT_S:
            self.is_lost = False
            self._clock.cancel(self._lost_timer)
            left_s = max(0.0, sent_s + CONTACT_S - self._clock.monotonic())
            self._lost_timer = self._clock.call_later(left_s, self._check_contact)

    def _beat_now(self) -> None:
        sent_s = self._clock.monotonic()
        if self._beat():
            self._sent.append(sent_s)
            if self._asked is None:
                self.expect(BEAT)

    def _check_contact(self) -> None:
        assert self._contact_s is not None
        self.is_lost = True
        self._on_lost(self._clock.monotonic() - self._contact_s)

    def _wait(self, limit_s: float) -> None:
        self._clock.cancel(self._answer_timer)
        self._due_s = self._clock.monotonic() + limit_s
        self._answer_timer = self._clock.call_later(limit_s, self._check_answer)

    def _check_answer(self) -> None:
        if self._asked == BEAT and self._has_heard:
            self._met()
        elif self._clock.monotonic() - self._due_s > LATE_S:
            self._wait(CATCH_UP_S)
        elif self._asked is not None:
            self._on_unanswered(self._asked)

    def _met(self) -> None:
        self._asked = None
        self._clock.cancel(self._answer_timer)
