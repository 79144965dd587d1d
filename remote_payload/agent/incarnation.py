"""Whether a process that a file names is still the same one, and in words what became of it.

A record is {"incarnation", "pid", "start_ticks"} (see identity.py) and "node", the host's name; a run's processes also
carry ORCH_RUN_ID in their environment, which is looked at where it can be read. Clocks play no part.
"""

import os
from typing import Any, Dict

from remote_payload.agent import identity

RUN_ID = "ORCH_RUN_ID"
Record = Dict[str, Any]


def record(pid: int) -> Record:
    """What identifies process `pid` of this host; one that has just ended gets start ticks that no process has."""
    found = identity.of_pid(pid) or {"incarnation": identity.incarnation(), "pid": pid, "start_ticks": -1}
    return dict(found, node=os.uname().nodename)


def look(recorded: Record, run_id: str = "") -> str:
    """alive; gone (for certain); or elsewhere: recorded on another machine that shares this folder."""
    if recorded.get("incarnation") != identity.incarnation():
        return "gone" if recorded.get("node") == os.uname().nodename else "elsewhere"
    pid = recorded.get("pid")
    now = identity.read_stat(pid) if isinstance(pid, int) else None
    if now is None or now.state in "ZX" or now.start_ticks != recorded.get("start_ticks"):
        return "gone"
    return "gone" if run_id and not _may_be(now.pid, run_id) else "alive"


def same_boot(recorded: Record) -> bool:
    """Whether the host has not been restarted since."""
    return str(recorded.get("incarnation")).split("/")[0] == identity.incarnation().split("/")[0]


def why_gone(recorded: Record) -> str:
    """In words: what became of a process that is gone, as far as this host can tell."""
    if not same_boot(recorded):
        return "the host was restarted"
    if recorded.get("incarnation") != identity.incarnation():
        return "the container was restarted"
    return "its supervisor (pid %s) was killed from outside" % recorded.get("pid")


def _may_be(pid: int, run_id: str) -> bool:
    environment = identity.read_proc("/proc/%d/environ" % pid)
    if not environment:
        return True  # hidden here: pid and start ticks have to do
    return ("%s=%s" % (RUN_ID, run_id)).encode() in environment.split(b"\0")
