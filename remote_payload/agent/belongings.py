"""Which processes belong to a run, by identity and never by name, and how they are ended.

A process is a run's own when its environment carries the run's mark (id and folder), when it sits in the run's cgroup,
when it is in the session that the evaluation leads, or when one of those started it. Nothing else is ever signalled.
"""

import os
import signal
import time
from typing import Any, Callable, Dict, Iterable, List, Optional, Set

from remote_payload.agent import identity, incarnation
from remote_payload.agent.identity import Stat

FOLDER = "ORCH_RUN_FOLDER"
LOOK_AGAIN = 0.1
PATIENCE = 10.0
"""seconds that a killed process may take to be gone; what stays longer is in the kernel's hands"""


def mark(run_id: str, folder: str) -> Dict[str, str]:
    """Environment variables that every process of a run inherits."""
    return {incarnation.RUN_ID: run_id, FOLDER: folder}


def of_run(run_id: str, folder: str, started: Dict[str, Any]) -> List[Stat]:
    """The living processes of a run, its supervisor among them. `started` is its started.json, {} where there is none.

    A process of another user, whose environment is hidden here, is found only by cgroup, session or parent.
    """
    table = _processes()
    marks = {("%s=%s" % pair).encode() for pair in mark(run_id, folder).items()}
    same = started.get("incarnation") == identity.incarnation()
    group = "/orch-%s-%s" % (run_id, started.get("pid")) if same else ""
    leader = _leader(started.get("child") or {}, table) if same else None
    own: Set[int] = set()
    for pid, stat in table.items():
        if stat.session == leader or _marked(pid, marks) or (group and _in_group(pid, group)):
            own.add(pid)
    _add_children(own, table)
    own.discard(os.getpid())
    return [table[pid] for pid in sorted(own)]


def _processes() -> Dict[int, Stat]:
    found = (identity.read_stat(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {stat.pid: stat for stat in found if stat is not None and stat.state not in "ZX"}


def _leader(child: Dict[str, Any], table: Dict[int, Stat]) -> Optional[int]:
    """The session of the evaluation, where its leader still proves that it is that one."""
    leader = table.get(child.get("pid", 0))
    if leader is None or leader.start_ticks != child.get("start_ticks"):
        return None
    return leader.session


def _marked(pid: int, marks: Set[bytes]) -> bool:
    environment = identity.read_proc("/proc/%d/environ" % pid) or b""
    return marks <= set(environment.split(b"\0"))


def _in_group(pid: int, group: str) -> bool:
    lines = (identity.read_proc("/proc/%d/cgroup" % pid) or b"").decode("utf-8", "replace").split("\n")
    return any(line.endswith(group) for line in lines)


def _add_children(own: Set[int], table: Dict[int, Stat]) -> None:
    found = True
    while found:
        found = False
        for pid, stat in table.items():
            if stat.parent in own and pid not in own:
                own.add(pid)
                found = True


def tell(process: Stat, number: int) -> None:
    """Signal a process if it is still the one that was seen; one that is gone, or another user's, is left."""
    try:
        handle = os.pidfd_open(process.pid) if hasattr(os, "pidfd_open") else -1  # holds the number while we look
    except OSError:
        handle = -1
    try:
        now = identity.read_stat(process.pid)
        if now is not None and now.start_ticks == process.start_ticks:
            os.kill(process.pid, number)
    except OSError:
        pass
    finally:
        if handle >= 0:
            os.close(handle)


def end(find: Callable[[], List[Stat]], grace: float) -> List[int]:
    """TERM to all that `find` finds, KILL after `grace` seconds, until it finds none. Answers who is left after all."""
    deadline = time.monotonic() + grace
    told: Dict[int, int] = {}
    while True:
        living = find()
        if not living or time.monotonic() > deadline + PATIENCE:
            return pids(living)
        number = signal.SIGTERM if time.monotonic() < deadline else signal.SIGKILL
        for process in living:
            if told.get(process.pid) != number:
                told[process.pid] = number
                tell(process, number)
        time.sleep(LOOK_AGAIN)


def pids(processes: Iterable[Stat]) -> List[int]:
    """Their numbers."""
    return [process.pid for process in processes]
