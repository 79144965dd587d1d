"""One sample of a training process for a receipt: what would show that it was disturbed. Reads /proc and the log."""

import os
import time
from typing import Any, Dict, List, Optional, Sequence, Tuple

from remote_payload.agent import identity as identities
from remote_payload.agent.errors import AgentError
from remote_payload.agent.identity import read_proc, read_stat, utc
from remote_payload.agent.processes import status_value
from remote_payload.agent.training import exists, state_name

PAGE = os.sysconf("SC_PAGE_SIZE")
COUNTERS = ("threads", "run_queue_wait_ns", "major_faults", "involuntary_switches", "rss")


def sample(
    identity: Dict[str, Any], log: Optional[str], pattern: Optional[str], ranks: Sequence[int] = ()
) -> Dict[str, Any]:
    """{at, monotonic, state, identity, step, rate, rate_unit, age_s, stalled, threads, run_queue_wait_ns, major_faults,
    involuntary_switches, rss, io, psi, hidden, reason}.

    `state` is running, stopped, zombie, absent (ended, its number taken by another, or the host restarted: `reason`
    says) or hidden. The counters are sums over the process and its `ranks`: run_queue_wait_ns is the time that their
    living threads were runnable but waited for a core (field 2 of /proc/PID/task/*/schedstat), so it falls when a
    thread ends; rss in bytes. `io` is {read_bytes, write_bytes} to storage; `psi` is /proc/pressure as
    {cpu|io|memory: {some|full: {avg10, total_us}}}, of the whole host. `monotonic` is seconds since the boot, for the
    distance between two samples. What can't be read is None, and its name is in `hidden`.
    """
    state, reason = _state(identity)
    found: Dict[str, Any] = {
        "at": utc(time.time()),
        "monotonic": time.clock_gettime(time.CLOCK_BOOTTIME),
        "state": state,
        "identity": identity,
        **dict.fromkeys(("step", "rate", "rate_unit", "age_s", "stalled")),
        **dict.fromkeys(COUNTERS),
        "io": None,
        "psi": psi(),
        "reason": reason,
    }
    missing = [name for name in ("psi",) if found[name] is None]
    if state in ("running", "stopped", "zombie"):
        pids = sorted({int(identity["pid"]), *ranks})
        found.update(_counters(pids), io=_io(pids))
        missing += [name for name in (*COUNTERS, "io") if found[name] is None]
    found["hidden"] = missing
    return found if log is None else with_progress(found, _read(log, pattern))


def with_progress(found: Dict[str, Any], told: Optional[Dict[str, Any]]) -> Dict[str, Any]:
    """The sample with what `progress.read` told; what it did not tell is added to `hidden`."""
    names = ("step", "rate", "rate_unit", "age_s", "stalled")
    values = {name: told.get(name) if told else None for name in names}
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


def _counters(pids: List[int]) -> Dict[str, Optional[int]]:
    """COUNTERS as sums; None where one of the processes hides the number."""
    totals: Dict[str, Optional[int]] = dict.fromkeys(COUNTERS, 0)
    for pid in pids:
        for name, value in _of_one(pid).items():
            total = totals[name]
            totals[name] = None if value is None or total is None else total + value
    return totals


def _of_one(pid: int) -> Dict[str, Optional[int]]:
    stat = read_stat(pid)
    waits = [_wait(pid, thread) for thread in _threads(pid)]
    switches = 0
    for thread in _threads(pid):
        status = read_proc("/proc/%d/task/%s/status" % (pid, thread)) or b""
        switches += int(status_value(status, b"nonvoluntary_ctxt_switches") or 0)
    known = [wait for wait in waits if wait is not None]
    return {
        "threads": stat.threads if stat else None,
        "run_queue_wait_ns": sum(known) if known else None,
        "major_faults": stat.major_faults if stat else None,
        "involuntary_switches": switches if waits else None,
        "rss": stat.rss_pages * PAGE if stat else None,
    }


def _threads(pid: int) -> List[str]:
    try:
        return os.listdir("/proc/%d/task" % pid)
    except OSError:
        return []


def _wait(pid: int, thread: str) -> Optional[int]:
    fields = (read_proc("/proc/%d/task/%s/schedstat" % (pid, thread)) or b"").split()
    return int(fields[1]) if len(fields) == 3 else None


def _io(pids: List[int]) -> Optional[Dict[str, int]]:
    total = {"read_bytes": 0, "write_bytes": 0}
    for pid in pids:
        text = read_proc("/proc/%d/io" % pid)
        if not text:
            return None
        for name in total:
            total[name] += int(status_value(text, name.encode("ascii")) or 0)
    return total


def _read(log: str, pattern: Optional[str]) -> Optional[Dict[str, Any]]:
    from remote_payload.agent import progress

    try:
        return progress.read(log, pattern, time.time())
    except AgentError:
        return None
