"""What `orch watch` has seen of one run's checkpoints and what became of each: one small file in the state folder.

It is written anew after every step, beside its place and then renamed over it, so that a watch that was killed goes on
where it stood. Everything in it but the order of events can be found out again on the hosts.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from orchestrator.clock import utc_now
from orchestrator.errors import OrchError, Refused
from orchestrator.keeping import keep
from orchestrator.model import Checkpoint

SCHEMA = 1
KEPT = 5000
"""dealt-with checkpoints that are remembered, the newest ones"""
State = Literal["seen", "staged", "running", "evaluated", "failed", "gone", "torn"]
PENDING: tuple[State, ...] = ("seen", "staged", "running")


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """One complete checkpoint that a watch takes."""

    checkpoint: Checkpoint
    state: State
    """seen on the training box, staged on the evaluation host, running there; or how it ended"""
    run: str = ""
    """id of its run on the evaluation host, from `running` on"""
    failures: int = 0
    windows: tuple[Mapping[str, Any], ...] = ()
    """of the receipt: from shipping, until the run's own spec holds them"""

    @property
    def step(self) -> int:
        """The checkpoint's."""
        return self.checkpoint.step


class Memory:
    """The file of one run and job. `before` are identities of checkpoints that were there at the first watch."""

    def __init__(self, file: Path) -> None:
        self._file = file
        document = _read(file)
        self.new = document is None
        """whether nothing has been watched yet"""
        held = document or {"before": [], "newest": None, "checkpoints": []}
        self.before: frozenset[str] = frozenset(held["before"])
        self.newest: int | None = held["newest"]
        """the highest step that was ever seen complete"""
        self._items = {row["checkpoint"]["identity"]: _item(row) for row in held["checkpoints"]}

    @classmethod
    def of(cls, folder: Path, name: str) -> Memory:
        """The memory in a state folder under a name from `name_of`."""
        return cls(folder / "watch" / f"{name}.json")

    def items(self, *states: State) -> list[Watched]:
        """Those in these states (all of them without), by step, then in the order in which they were found."""
        found = [item for item in self._items.values() if not states or item.state in states]
        return sorted(found, key=lambda item: item.step)

    def knows(self, checkpoint: Checkpoint) -> bool:
        """Whether this content was taken up before, whatever became of it; where it was torn, whether this file was."""
        item = self._items.get(checkpoint.identity)
        if item is None or item.state != "torn":
            return item is not None
        return (item.checkpoint.path, item.checkpoint.stamp) == (checkpoint.path, checkpoint.stamp)

    def begin(self, before: frozenset[str]) -> None:
        """The first look: what is there already."""
        self.new, self.before = False, before
        self._write()

    def reached(self, step: int) -> None:
        """A complete checkpoint of this step was seen."""
        if self.newest is None or step > self.newest:
            self.newest = step
            self._write()

    def put(self, item: Watched, **changes: Any) -> Watched:
        """Remember a checkpoint, with these changes; returns it as it is now."""
        item = replace(item, **changes)
        self._items[item.checkpoint.identity] = item
        self._write()
        return item

    def _write(self) -> None:
        done = [item for item in self._items.values() if item.state not in PENDING]
        for item in done[: max(0, len(done) - KEPT)]:
            del self._items[item.checkpoint.identity]
        document = {
            "schema": SCHEMA,
            "before": sorted(self.before),
            "newest": self.newest,
            "checkpoints": [asdict(item) for item in self._items.values()],
        }
        keep(self._file, json.dumps(document, indent=1).encode())


def waiting(folder: Path) -> frozenset[str]:
    """Identities of the checkpoints that any watch of this computer has still to evaluate. Raises OrchError."""
    memories = [Memory(file) for file in (folder / "watch").glob("*.json")]
    return frozenset(item.checkpoint.identity for memory in memories for item in memory.items(*PENDING))


def name_of(run: str, job: str, origin: str) -> str:
    """A file name for the watch of one run by one job; `origin` tells runs of one name in two projects apart."""
    digest = hashlib.sha256(json.dumps([run, job, origin]).encode("utf-8")).hexdigest()
    return f"{run}-{job}-{digest[:8]}"


@contextmanager
def held(folder: Path, name: str, what: str) -> Iterator[None]:
    """Be the only watch of this name for the time of a block. Raises Refused, which says who is it already.

    The kernel lets go of the lock with its process, so one that was killed holds nothing.
    """
    place = folder / "watch" / f"{name}.lock"
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with place.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _taken(place, what) from None
        file.truncate(0)
        file.write(json.dumps({"pid": os.getpid(), "since": utc_now()}))
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)


def _taken(place: Path, what: str) -> Refused:
    try:
        holder = json.loads(place.read_text(encoding="utf-8"))
        who, hint = f"process {holder['pid']}, since {holder['since']}", f"end that one with: kill {holder['pid']}"
    except (OSError, ValueError, KeyError, TypeError):
        who, hint = "another process", "it has only just begun: try again"
    return Refused(f"{what} is watched already: by {who}", hint=hint)


def _read(file: Path) -> dict[str, Any] | None:
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        schema = document["schema"]
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        hint = "move it away: the watch then begins anew, and evaluates nothing that the ledger holds"
        raise OrchError(f"{file} can't be read", hint=hint) from None
    if schema > SCHEMA:
        raise OrchError(f"{file} was written by a newer orch (schema {schema})", hint="update orch")
    found: dict[str, Any] = document
    return found


def _item(row: Mapping[str, Any]) -> Watched:
    values = {**row, "checkpoint": Checkpoint(**row["checkpoint"]), "windows": tuple(row["windows"])}
    return Watched(**values)
