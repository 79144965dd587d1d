"""Whose turn it is on an evaluation host: the queue that waiting supervisors stand in, without anybody's help.

The queue is a folder of numbered tickets, each naming its holder (a process' identity, and its run). A run goes on once
fewer living tickets than allowed are ahead of its own. A ticket is given back at the end; one whose holder is gone is
recognised by that identity and cleared by whoever comes next, together with what the dead run left running.
"""

import os
from typing import Any, Dict, List, Tuple

from remote_payload.agent import belongings, ending, incarnation, scratch

FOLDER = "queue"
AT_ONCE = 1
"""evaluations at once on a host, where its `limits` say nothing else"""
GRACE = 2.0
"""seconds between TERM and KILL for what a dead supervisor left"""


class Turn:
    """One run's place in the queue of its work folder."""

    def __init__(self, workdir: str, run_id: str, at_once: int) -> None:
        self._queue = os.path.join(workdir, FOLDER)
        self._run_id = run_id
        self._folder = os.path.join(workdir, "runs", run_id)
        self._at_once = at_once
        self._ticket = ""

    def take(self) -> None:
        """Take the next ticket. Raises OSError.

        A number is never taken below one that is there: else who has seen nobody ahead could be overtaken.
        """
        os.makedirs(self._queue, mode=0o700, exist_ok=True)
        record = dict(incarnation.record(os.getpid()), schema=1, run=self._run_id, folder=self._folder)
        while not self._ticket:
            self._ticket = self._next(record)

    def _next(self, record: Dict[str, Any]) -> str:
        number = max((number for number, _ in tickets(self._queue)), default=0) + 1
        path = os.path.join(self._queue, "%08d" % number)
        if not scratch.write_new(path, record):
            return ""
        if any(other > number for other, _ in tickets(self._queue)):
            os.unlink(path)
            return ""
        return path

    def come(self) -> bool:
        """Whether this run may go on now. Dead tickets ahead are cleared first."""
        ahead = 0
        for _, path in tickets(self._queue):
            if path == self._ticket:
                break
            holder = scratch.read_json(path)
            if holder is None:  # given back this moment, or not written yet
                ahead += os.path.exists(path) and scratch.age(path) < scratch.UNCLAIMED
                continue
            seen = incarnation.look(holder, str(holder.get("run")))
            if seen == "alive":
                ahead += 1
            elif seen == "gone" or scratch.age(path) > scratch.FOREIGN:
                _clear(path, holder)
        return ahead < self._at_once

    def leave(self) -> None:
        """Give the ticket back."""
        if self._ticket:
            scratch.unlink(self._ticket)


def tickets(queue: str) -> List[Tuple[int, str]]:
    """(number, path) of all tickets, the first first."""
    names = filter(str.isdigit, scratch.listed(queue))
    return sorted((int(name), os.path.join(queue, name)) for name in names)


def ahead_of(workdir: str, run_id: str) -> List[str]:
    """Ids of the living runs that have an earlier ticket. Nothing is written."""
    ahead: List[str] = []
    for _, path in tickets(os.path.join(workdir, FOLDER)):
        holder = scratch.read_json(path) or {}
        if holder.get("run") == run_id:
            return ahead
        if holder and incarnation.look(holder, str(holder.get("run"))) == "alive":
            ahead.append(str(holder.get("run")))
    return ahead


def _clear(path: str, holder: Dict[str, Any]) -> None:
    """End what the run of a dead supervisor left, and take its ticket away. What can't be ended keeps it."""
    run_id, folder = str(holder.get("run")), str(holder.get("folder"))
    started = scratch.read_json(os.path.join(folder, "started.json")) or {}
    found = belongings.pids(belongings.of_run(run_id, folder, started))
    if found and belongings.end(lambda: belongings.of_run(run_id, folder, started), GRACE):
        return
    told = "; %d processes that it left were ended by the next run" % len(found) if found else ""
    ending.write_off(folder, "lost", incarnation.why_gone(holder) + told)
    scratch.unlink(path)
