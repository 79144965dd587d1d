"""When to go on and when to stop: a steady pace and a stop that never cuts a step or a save in half."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass
from types import FrameType

LONGEST_NAP = 0.1
"""Seconds after which a sleeper looks whether it was asked to stop."""


@dataclass
class StopRequest:
    """SIGTERM or SIGINT: ends the program at once while it prepares, and after the current step once it steps."""

    requested: bool = False
    stepping: bool = False

    def listen(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        if not self.stepping:
            raise SystemExit(0)


@dataclass
class Pace:
    """At most `steps_per_second` (None: as fast as it goes); a slow step is not made up for by fast ones."""

    steps_per_second: float | None
    due: float = 0.0

    def wait(self, stop: StopRequest) -> None:
        if self.steps_per_second is None:
            return
        self.due = max(self.due + 1 / self.steps_per_second, time.monotonic())
        while not stop.requested and (left := self.due - time.monotonic()) > 0:
            time.sleep(min(left, LONGEST_NAP))
