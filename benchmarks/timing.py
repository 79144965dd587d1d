"""What the parts of a benchmark share: a clock, alternating rounds, and a line for each goal."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


@dataclass(frozen=True, slots=True)
class Row:
    """One goal and how near it is. `value` and `goal` are shown as they are; without spaces, for programs."""

    name: str
    value: str
    goal: str
    reached: bool

    def __str__(self) -> str:
        return f"{self.name} {self.value} {self.goal} {'ok' if self.reached else 'short'}"


def at_least(name: str, value: float, goal: float) -> Row:
    """How many times faster: the more the better."""
    return Row(name, f"{value:.2f}x", f">={goal:g}x", value >= goal)


def at_most(name: str, value: float, goal: float) -> Row:
    """Seconds, bytes, a ratio to a rival: the less the better."""
    return Row(name, f"{value:.3g}", f"{goal:g}", value <= goal)


def no_less(name: str, value: float, goal: float) -> Row:
    """A share that is kept, or a ratio of a rival to us: the more the better."""
    return Row(name, f"{value:.3g}", f"{goal:g}", value >= goal)


def not_measured(name: str, goal: str) -> Row:
    """A goal that couldn't be measured here is not reached."""
    return Row(name, "not_measured", goal, reached=False)


@dataclass(frozen=True, slots=True)
class Measure:
    """How things are measured: with all rounds (`full`) or fewer, and by which clock."""

    full: bool = False
    clock: Callable[[], float] = time.perf_counter
    rounds: int | None = None
    """in place of a work's own number"""
    rivals: int | None = None
    """prompts that a slow rival gets of all, in place of its own number"""

    def seconds(self, work: Callable[[], Any]) -> float:
        began = self.clock()
        work()
        return self.clock() - began

    def alternate(self, works: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
        """Seconds of each work in each round; a round before them warms up."""
        return alternating({name: partial(self.seconds, work) for name, work in works.items()}, self.rounds or rounds)


def ratio(over: list[float], under: list[float], factor: float = 1.0) -> float:
    """Median of the rounds' ratios."""
    return factor * statistics.median(a / b for a, b in zip(over, under, strict=True))


def shown(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.1f} s ({min(seconds):.1f}-{max(seconds):.1f})"


def command_seconds(command: list[str], environment: dict[str, str], cwd: Path, limit: float = 120) -> float:
    """Seconds of a command, which must end well."""
    began = time.perf_counter()
    done = subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=limit)
    if done.returncode != 0:
        sys.exit(f"{command[-3:]}: exit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return time.perf_counter() - began


def alternating(
    works: dict[str, Callable[[], float]], rounds: int, before: Callable[[int], object] = lambda turn: None
) -> dict[str, list[float]]:
    """What each work gives in each round; a round before them warms up. `before` hears the round's number each time."""
    found: dict[str, list[float]] = {what: [] for what in works}
    for turn in range(rounds + 1):
        for what, work in works.items():
            before(turn)
            given = work()
            if turn:
                found[what].append(given)
    return found


def in_turn(
    works: dict[str, Callable[[], float]], rounds: int, before: Callable[[int], object] = lambda turn: None
) -> dict[str, list[float]]:
    """`alternating` works that say how many seconds they took, with the spread of each printed."""
    seconds = alternating(works, rounds, before)
    for what, spent in seconds.items():
        told(what, spent)
    return seconds


def told(what: str, seconds: list[float]) -> float:
    """Print the spread, return the median."""
    low, middle, high = min(seconds), statistics.median(seconds), max(seconds)
    print(f"{what:<46} median {1000 * middle:6.0f} ms  ({1000 * low:.0f} to {1000 * high:.0f}, n {len(seconds)})")
    return middle
