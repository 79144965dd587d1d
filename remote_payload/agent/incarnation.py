"""Which life of a host or container this is, and whether a recorded process is still the same one.

Incarnation = boot id, PID namespace, start ticks of the namespace's PID 1 (a container's restart keeps the boot id).
Process = incarnation, pid, start ticks; for a run also ORCH_RUN_ID in its environment, where that can be read. Clocks
play no part.
"""

import os
from typing import Any, Dict, Optional

RUN_ID = "ORCH_RUN_ID"
Record = Dict[str, Any]


def here() -> Record:
    """The incarnation of this host as seen by this process: {"boot", "pidns", "init", "node"}."""
    return {
        "boot": _text("/proc/sys/kernel/random/boot_id"),
        "pidns": _link("/proc/self/ns/pid"),
        "init": start_ticks(1),
        "node": os.uname().nodename,
    }


def record(pid: int) -> Record:
    """What identifies process `pid` on this host: the incarnation, "pid" and "ticks"."""
    return dict(here(), pid=pid, ticks=start_ticks(pid))


def start_ticks(pid: int) -> Optional[int]:
    """When a process started, in clock ticks since boot; None for one that is gone, hidden or a zombie."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X", b"x") else int(fields[19])


def look(recorded: Record, run_id: str = "") -> str:
    """alive; gone (for certain); or elsewhere: recorded on another machine that shares this folder."""
    now = here()
    if any(recorded.get(key) != now[key] for key in ("boot", "pidns", "init")):
        return "gone" if recorded.get("node") == now["node"] else "elsewhere"
    pid = int(recorded["pid"])
    ticks = start_ticks(pid)
    if ticks is None or ticks != recorded.get("ticks"):
        return "gone"
    return "gone" if run_id and not _may_be(pid, run_id) else "alive"


def why_gone(recorded: Record) -> str:
    """In words: what became of the process, as far as this host can tell."""
    now = here()
    if recorded.get("boot") != now["boot"]:
        return "the host was restarted"
    if recorded.get("init") != now["init"] or recorded.get("pidns") != now["pidns"]:
        return "the container was restarted"
    return "its supervisor (pid %s) was killed from outside" % recorded.get("pid")


def _may_be(pid: int, run_id: str) -> bool:
    try:
        with open("/proc/%d/environ" % pid, "rb") as file:
            return ("%s=%s" % (RUN_ID, run_id)).encode() in file.read().split(b"\0")
    except OSError:
        return True  # hidden here: pid and start ticks have to do


def _text(path: str) -> Optional[str]:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return None


def _link(path: str) -> Optional[str]:
    try:
        return os.readlink(path)
    except OSError:
        return None
