"""An engine's time, shared out among the conversations that it works on.

A conversation's own seconds say how long it waited, which depends on how many others were in flight. Its
share says what it cost: the shares of all conversations add up to the time that the engine was busy.
"""

import time
from collections.abc import Callable


class SharedTime:
    """Divides time evenly among what is in flight at each moment (processor sharing)."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = clock()
        self._share = 0.0
        """Seconds that one conversation would have been given, had it been in flight all the time."""
        self._in_flight = 0

    def begin(self) -> float:
        """Say that a conversation begins; give what is returned to `end`."""
        self._advance()
        self._in_flight += 1
        return self._share

    def end(self, began: float) -> float:
        """Say that it has ended; return its share in seconds."""
        self._advance()
        self._in_flight -= 1
        return self._share - began

    def _advance(self) -> None:
        now = self._clock()
        if self._in_flight:
            self._share += (now - self._last) / self._in_flight
        self._last = now
