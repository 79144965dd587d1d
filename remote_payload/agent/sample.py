"""One sample of a training process for a receipt: what would show that it was disturbed. Reads /proc and the log."""

import os
import time
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from remote_payload.agent import identity as identities
from remote_payload.agent.errors import AgentError
from remote_payload.agent.identity import TICKS_PER_SECOND, Stat, read_proc, read_stat, utc
from remote_payload.agent.processes import status_value
from remote_payload.agent.training import exists, state_name

PAGE = os.sysconf("SC_PAGE_SIZE")
COUNTERS = (
    "threads",
    "run_ns",
    "run_queue_wait_ns",
    "major_faults",
    "voluntary_switches",
    "involuntary_switches",
    "rss",
)
PROGRESS = ("step", "rate", "rate_unit", "age_s", "stalled")
MOST_THREADS = 4000
"""of a process that are looked at: a bound on the time that a sample takes"""
SHOWN_THREADS = 3
"""those that waited longest for a core are named"""

Sample = Dict[str, Any]
Thread = Tuple[int, str]
"""(pid, number of the thread)"""


class Spent(NamedTuple):
    """What one thread has used up since its start."""

    ran: int
    """nanoseconds on a core (field 1 of schedstat)"""
    waited: int
    """nanoseconds runnable, but without a core (field 2)"""
    voluntary: int
    involuntary: int
    """context switches"""


class Sampler:
    """Samples of one training process and its ranks, taken one after the other.

    Its sums never fall: what a thread had used up when it was last seen stays in them after the thread has ended.
    """

    def __init__(self, identity: Dict[str, Any], ranks: Sequence[int] = ()) -> None:
        self.identity = identity
        self._pids = sorted({int(identity["pid"]), *ranks})
        self._starts = {pid: stat.start_ticks for pid, stat in self._stats()}
        self._first: Dict[Thread, Spent] = {}
        self._last: Dict[Thread, Spent] = {}
        self._ended = Spent(0, 0, 0, 0)

    def take(self) -> Sample:
        """What `of_host` tells, {state, identity, lived_s, ranks, waiting, io, reason, hidden}, COUNTERS, and PROGRESS,
        which is None until `with_progress`.

        `state` is running, stopped, zombie, absent (ended, its number taken by another, or the host restarted:
        `reason` says) or hidden. The counters are sums over the process and its ranks: run_queue_wait_ns is the time
        that their threads were runnable but waited for a core; rss in bytes. `lived_s`: seconds since its start.
        `ranks`: those of its processes that live.
        `waiting`: [{pid, thread, name, wait_ns}] of the threads that waited longest since this sampler began. What
        can't be read is None, and its name is in `hidden`.
        """
        state, reason = _state(self.identity)
        found = {**of_host(), "state": state, "identity": self.identity, "reason": reason}
        missing = [name for name in ("psi",) if found[name] is None]
        if state in ("running", "stopped", "zombie"):
            found["lived_s"] = round(found["monotonic"] - self.identity["start_ticks"] / TICKS_PER_SECOND, 3)
            found.update(self._counters(), io=_io(self._pids))
            missing += [name for name in (*COUNTERS, "io") if found[name] is None]
        found["hidden"] = missing
        return found

    def _stats(self) -> List[Tuple[int, Stat]]:
        """Of those processes that are there, zombies too."""
        found = ((pid, read_stat(pid)) for pid in self._pids)
        return [(pid, stat) for pid, stat in found if stat]

    def _counters(self) -> Dict[str, Any]:
        stats = [(pid, stat) for pid, stat in self._stats() if stat.start_ticks == self._starts.get(pid)]
        living = [stat for _, stat in stats]
        threads = {(pid, thread): _spent(pid, thread) for pid in self._pids for thread in _threads(pid)}
        known = {key: spent for key, spent in threads.items() if spent is not None}
        spent = self._sum(known) if known else None
        return {
            "ranks": [pid for pid, stat in stats if state_name(stat.state) != "zombie"],
            "threads": sum(stat.threads for stat in living) if living else None,
            "run_ns": spent.ran if spent else None,
            "run_queue_wait_ns": spent.waited if spent else None,
            "major_faults": sum(stat.major_faults for stat in living) if living else None,
            "voluntary_switches": spent.voluntary if spent else None,
            "involuntary_switches": spent.involuntary if spent else None,
            "rss": sum(stat.rss_pages for stat in living) * PAGE if living else None,
            "waiting": self._longest_waiting(),
        }

    def _sum(self, now: Dict[Thread, Spent]) -> Spent:
        for key, before in self._last.items():
            after = now.get(key)
            if after is None or after.ran < before.ran:  # ended; or its number belongs to a younger one
                self._ended = _plus(self._ended, before)
                self._first.pop(key, None)
        for key, spent in now.items():
            self._first.setdefault(key, spent if not self._last else Spent(0, 0, 0, 0))
        self._last = now
        total = self._ended
        for spent in now.values():
            total = _plus(total, spent)
        return total

    def _longest_waiting(self) -> List[Dict[str, Any]]:
        waits = {key: spent.waited - self._first[key].waited for key, spent in self._last.items()}
        longest = sorted((key for key in waits if waits[key] > 0), key=lambda key: -waits[key])[:SHOWN_THREADS]
        return [{"pid": key[0], "thread": int(key[1]), "name": _name(key), "wait_ns": waits[key]} for key in longest]


def sample(
    identity: Dict[str, Any], log: Optional[str], pattern: Optional[str], ranks: Sequence[int] = ()
) -> Dict[str, Any]:
    """One sample by itself (see Sampler.take), with what the log tells."""
    found = Sampler(identity, ranks).take()
    return found if log is None else with_progress(found, _read(log, pattern))


def of_host() -> Sample:
    """The part of a sample that needs no process; the rest is None.

    `monotonic` is seconds since the boot, for the distance between two samples: a wall clock may be set. `up_s`:
    seconds since the start of this host's or container's first process. `psi` is /proc/pressure as {cpu|io|memory:
    {some|full: {avg10, total_us}}}, and `oom_kills` the kernel's count since the boot, both of the whole machine.
    `orch_cpu_s`: what this agent and its children have used up.
    """
    own, first = os.times(), read_stat(1)
    monotonic = time.clock_gettime(time.CLOCK_BOOTTIME)
    return {
        "at": utc(),
        "monotonic": round(monotonic, 3),
        "up_s": round(monotonic - first.start_ticks / TICKS_PER_SECOND, 3) if first else None,
        "incarnation": identities.incarnation(),
        "state": None,
        "identity": None,
        **dict.fromkeys(PROGRESS),
        "lived_s": None,
        **dict.fromkeys(COUNTERS),
        "ranks": [],
        "waiting": [],
        "io": None,
        "psi": psi(),
        "oom_kills": _oom_kills(),
        "orch_cpu_s": round(own.user + own.system + own.children_user + own.children_system, 2),
        "hidden": [],
        "reason": "",
    }


def with_progress(found: Sample, told: Optional[Dict[str, Any]]) -> Sample:
    """The sample with what `progress.read` told; what it did not tell is added to `hidden`."""
    values = {name: told.get(name) if told else None for name in PROGRESS}
    missing = [name for name in ("step", "rate") if values[name] is None]
    return {**found, **values, "hidden": [*found["hidden"], *missing]}


def psi() -> Optional[Dict[str, Dict[str, Dict[str, float]]]]:
    """Pressure stall information of the host; None on a kernel without it."""
    found = {}
    for resource in ("cpu", "io", "memory"):
        text = read_proc("/proc/pressure/" + resource)
        if text:
            found[resource] = parse_psi(text.decode("ascii", "replace"))
    return found or None


def parse_psi(text: str) -> Dict[str, Dict[str, float]]:
    """One file of /proc/pressure: {some|full: {avg10: percent, total_us: microseconds since the boot}}."""
    found = {}
    for line in text.splitlines():
        words = line.split()
        values = dict(word.split("=", 1) for word in words if "=" in word)
        try:
            found[words[0]] = {"avg10": float(values["avg10"]), "total_us": float(values["total"])}
        except (IndexError, KeyError, ValueError):
            continue
    return found


def _state(identity: Dict[str, Any]) -> Tuple[str, str]:
    if identity.get("incarnation") != identities.incarnation():
        return "absent", "the host or container was restarted since"
    pid = int(identity["pid"])
    stat = read_stat(pid)
    if stat is None:
        return ("hidden", "/proc hides process %d" % pid) if exists(pid) else ("absent", "process %d ended" % pid)
    if stat.start_ticks != identity["start_ticks"]:
        return "absent", "process %d ended; its number belongs to another one now" % pid
    return state_name(stat.state), ""


def _threads(pid: int) -> List[str]:
    try:
        return os.listdir("/proc/%d/task" % pid)[:MOST_THREADS]
    except OSError:
        return []


def _spent(pid: int, thread: str) -> Optional[Spent]:
    fields = (read_proc("/proc/%d/task/%s/schedstat" % (pid, thread)) or b"").split()
    if len(fields) != 3:
        return None
    status = read_proc("/proc/%d/task/%s/status" % (pid, thread)) or b""
    voluntary, involuntary = (
        int(status_value(status, name + b"voluntary_ctxt_switches") or 0) for name in (b"", b"non")
    )
    return Spent(int(fields[0]), int(fields[1]), voluntary, involuntary)


def _plus(one: Spent, other: Spent) -> Spent:
    return Spent(*(a + b for a, b in zip(one, other)))


def _name(thread: Thread) -> str:
    return (read_proc("/proc/%d/task/%s/comm" % thread) or b"").decode("utf-8", "replace").strip()


def _io(pids: List[int]) -> Optional[Dict[str, int]]:
    """{read_bytes, write_bytes} to storage."""
    total = {"read_bytes": 0, "write_bytes": 0}
    for pid in pids:
        text = read_proc("/proc/%d/io" % pid)
        if not text:
            return None
        for name in total:
            total[name] += int(status_value(text, name.encode("ascii")) or 0)
    return total


def _oom_kills() -> Optional[int]:
    for line in (read_proc("/proc/vmstat") or b"").splitlines():
        if line.startswith(b"oom_kill "):
            return int(line.split()[1])
    return None


def _read(log: str, pattern: Optional[str]) -> Optional[Dict[str, Any]]:
    from remote_payload.agent import progress

    try:
        return progress.read(log, pattern, time.time())
    except AgentError:
        return None
