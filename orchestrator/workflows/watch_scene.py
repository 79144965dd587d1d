"""What the parts of `orch watch` share: what is wanted, what happened, and which boxes can be reached at the moment."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

from orchestrator.actions.watched import Memory
from orchestrator.errors import AuthenticationFailed, HostUnreachable
from orchestrator.model import Checkpoint, Host, Result, Run
from orchestrator.ssh.choose import Connections
from orchestrator.workflows.scene import Scene

Until = int | Literal["training-ends"] | None
Kind = Literal[
    "watching",  # it has begun
    "training",  # the training process's state changed
    "found",  # a complete checkpoint that will be evaluated
    "already",  # one that was evaluated before
    "gone",  # one that went away, or was written anew, before it could be taken
    "torn",  # one that is not whole, and stays so
    "staged",  # it lies on the evaluation host
    "launched",
    "result",
    "retry",  # its evaluation failed, and is tried again
    "failed",  # its evaluation failed for good
    "cleaned",  # evaluated checkpoints were removed from the evaluation host, as `keep_staged` says
    "refused",  # nothing can be launched or shipped at the moment, and why
    "lost",  # a box can't be reached
    "back",  # and now it can
    "warning",
]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which checkpoints a watch takes, and when it ends."""

    every: int = 1
    """only steps that are multiples of it"""
    backfill: bool = False
    """also those that were there before the first watch"""
    until: Until = None

    def takes(self, step: int) -> bool:
        """Whether a checkpoint of this step is evaluated."""
        return step % self.every == 0 and not (isinstance(self.until, int) and step > self.until)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened; `text` says it in a line."""

    kind: Kind
    text: str
    step: int | None = None
    checkpoint: Checkpoint | None = None
    run: Run | None = None
    result: Result | None = None
    host: str = ""


Tell = Callable[[Event], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What stays the same for the time of a watch."""

    scene: Scene
    """as both boxes looked at its start; hosts, run and job are read from here"""
    wanted: Wanted
    connections: Connections
    memory: Memory
    tell: Tell


class Links:
    """Which boxes can't be reached at the moment. Each is tried again a little later each time, and never given up."""

    def __init__(self, connections: Connections, longest: float, tell: Tell) -> None:
        """`longest` is the longest pause, in seconds."""
        self._connections, self._longest, self._tell = connections, longest, tell
        self._misses: dict[str, int] = {}
        self._until: dict[str, float] = {}

    def pause(self, *hosts: Host) -> float:
        """Seconds until all of these may be tried again."""
        return max(0.0, *(self._until.get(host.name, 0.0) - time.monotonic() for host in hosts))

    def trying(self, hosts: tuple[Host, ...], question: Callable[[], T]) -> T | None:
        """What the question returns; None while one of its hosts can't be reached.

        Raises AuthenticationFailed, for trying again would lock the user out, and what else the question raises.
        """
        if self.pause(*hosts) > 0:
            return None
        try:
            value = question()
        except AuthenticationFailed:
            raise
        except (HostUnreachable, TimeoutError) as error:
            named = [host for host in hosts if host.name == getattr(error, "host", "")] or list(hosts)
            for host in named:
                self._lost(host, str(error))
            return None
        for host in hosts:
            if self._misses.pop(host.name, 0):
                self._tell(Event(kind="back", text=f"{host.name} answers again", host=host.name))
        return value

    def _lost(self, host: Host, why: str) -> None:
        misses = self._misses[host.name] = self._misses.get(host.name, 0) + 1
        pause = min(2.0 ** min(misses - 1, 16), self._longest)
        self._until[host.name] = time.monotonic() + pause
        self._connections.forget(host)
        if misses == 1:
            self._tell(Event(kind="lost", text=f"{why}; trying again until it answers", host=host.name))
