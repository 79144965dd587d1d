"""A training seen as a neighbour: which processes it is made of, and how long they wait for what others hold.

The witness for cores is the kernel's own count (field 2 of /proc/PID/task/*/schedstat): the time that a thread was
runnable and waited. For disks it is pressure stall information, which is of the whole host. Only /proc is read.
"""

import os
import time
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from remote_payload.agent import descendants, identity
from remote_payload.agent.identity import read_proc

Thread = Tuple[int, str]


class Moment(NamedTuple):
    """Counters at one time; differences of two of them mean something."""

    at: float
    """monotonic seconds"""
    threads: Dict[Thread, Tuple[int, int]]
    """thread -> nanoseconds that it ran, and that it waited for a core"""
    io_stall: Optional[float]
    """seconds in which at least one task of the host waited for a disk; None on a kernel that does not count them"""


class Between(NamedTuple):
    """What passed between two moments."""

    seconds: float
    wait: Optional[float]
    """of the time: how much a thread waited for a core, on average over as many threads as wanted one, at least one;
    None where no thread can be seen"""
    busy: float
    """cores that it used"""
    io: Optional[float]
    """of the time: how long some task of the host waited for a disk"""


class Trainer:
    """The processes of one training, by the identity of its leader and the pids of its ranks."""

    def __init__(self, leader: Dict[str, Any], ranks: List[int]) -> None:
        self._leader = leader
        self._starts = {pid: _start(pid) for pid in [int(leader["pid"]), *ranks]}

    def alive(self) -> bool:
        """Whether its leader is still the process that it was, and has not ended."""
        if self._leader.get("incarnation") != identity.incarnation():
            return False
        stat = identity.read_stat(int(self._leader["pid"]))
        return stat is not None and stat.state not in "ZX" and stat.start_ticks == self._leader["start_ticks"]

    def pids(self) -> List[int]:
        """Its leader and ranks, as far as they are still themselves, and all that they started (data loaders)."""
        roots = [pid for pid, start in self._starts.items() if start is not None and _start(pid) == start]
        found = dict.fromkeys(roots)
        for root in roots:
            found.update(dict.fromkeys(descendants.descendants(root)))
        return list(found)

    def now(self) -> Moment:
        """The counters as they are. About 10 microseconds a thread."""
        threads: Dict[Thread, Tuple[int, int]] = {}
        for pid in self.pids():
            try:
                names = os.listdir("/proc/%d/task" % pid)
            except OSError:
                continue
            for name in names:
                fields = (read_proc("/proc/%d/task/%s/schedstat" % (pid, name)) or b"").split()
                if len(fields) == 3:
                    threads[pid, name] = (int(fields[0]), int(fields[1]))
        return Moment(time.monotonic(), threads, io_stall())


def between(before: Moment, after: Moment) -> Between:
    """What passed; threads that were there only at one of the two moments don't count."""
    seconds = max(1e-9, after.at - before.at)
    both = [(before.threads[name], after.threads[name]) for name in after.threads if name in before.threads]
    ran = sum(late[0] - early[0] for early, late in both) / 1e9
    waited = sum(late[1] - early[1] for early, late in both) / 1e9
    io = None
    if before.io_stall is not None and after.io_stall is not None:
        io = (after.io_stall - before.io_stall) / seconds
    return Between(seconds, waited / max(seconds, ran + waited) if both else None, ran / seconds, io)


def io_stall() -> Optional[float]:
    """Seconds since the boot in which some task of this host waited for a disk."""
    for line in (read_proc("/proc/pressure/io") or b"").decode("ascii", "replace").splitlines():
        if line.startswith("some "):
            total = line.rpartition("total=")[2]
            return int(total) / 1e6 if total.isdigit() else None
    return None


def _start(pid: int) -> Optional[int]:
    stat = identity.read_stat(pid)
    return stat.start_ticks if stat else None
