"""How far a long command is: a line for people with the time left, and a line of JSON for programs."""

from __future__ import annotations

import json
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

EVERY_S = 0.5


class Progress:
    """Counts steps. Each goes to stderr with an estimate, and to `file` as {"done","total","phase","at"}."""

    def __init__(self, total: int, file: Path | None) -> None:
        self._total, self._file = total, file
        self._done = self._here = 0
        self._started = time.monotonic()
        self._told = float("-inf")
        if file is not None:
            file.write_text("", encoding="utf-8")

    def skip(self, count: int, phase: str) -> None:
        """Count steps that an earlier run did; they say nothing about this run's pace."""
        self._done += count
        self._write(phase)

    def advance(self, count: int, phase: str, what: str, *, earlier: bool = False) -> None:
        """`count` more steps are done; of many small ones, a line every half second and the last. See `skip`."""
        self._done += count
        self._here += 0 if earlier else count
        now = time.monotonic()
        if now - self._told < EVERY_S and self._done < self._total:
            return
        self._told = now
        self._write(phase)
        left = f", {self._left()} left" if self._here else ""
        print(f"  {self._done}/{self._total} {phase} {what}{left}", file=sys.stderr, flush=True)

    def step(self, phase: str, what: str) -> None:
        """One more step is done."""
        self._done += 1
        self._here += 1
        self._write(phase)
        print(f"  {self._done}/{self._total} {phase} {what}, {self._left()} left", file=sys.stderr, flush=True)

    def _left(self) -> str:
        return _duration((time.monotonic() - self._started) / self._here * (self._total - self._done))

    def _write(self, phase: str) -> None:
        if self._file is not None:
            at = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
            line = {"done": self._done, "total": self._total, "phase": phase, "at": at}
            with open(self._file, "a", encoding="utf-8") as stream:
                stream.write(json.dumps(line) + "\n")


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
