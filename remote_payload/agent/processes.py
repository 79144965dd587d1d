"""All processes of this host as /proc shows them to this user, read once for an answer.

Only /proc is read and nothing is signalled (not even with signal 0). What /proc hides is said by `hides`.
"""

import os
from typing import Dict, Iterator, List, Optional, Set

from remote_payload.agent.identity import Stat, read_proc, read_stat

RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "LOCAL_RANK")
JOB_VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")
OWN_RUN_VARIABLE = "ORCH_RUN_ID"
"""set in every evaluation that orch starts: such a process is never the training"""
_WANTED = frozenset(RANK_VARIABLES + JOB_VARIABLES + (OWN_RUN_VARIABLE,))


class Processes:
    """A snapshot of the process list; details are read when asked for, and kept."""

    def __init__(self) -> None:
        self.pids: List[int] = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
        self._stats: Dict[int, Optional[Stat]] = {}
        self._argvs: Dict[int, Optional[bytes]] = {}
        self._children: Optional[Dict[int, List[int]]] = None

    def stat(self, pid: int) -> Optional[Stat]:
        if pid not in self._stats:
            self._stats[pid] = read_stat(pid)
        return self._stats[pid]

    def raw_command(self, pid: int) -> Optional[bytes]:
        """The command line with NULs between its words; empty for kernel threads and zombies; None where hidden."""
        if pid not in self._argvs:
            self._argvs[pid] = read_proc("/proc/%d/cmdline" % pid, limit=1 << 16)
        return self._argvs[pid]

    def argv(self, pid: int) -> List[str]:
        raw = self.raw_command(pid) or b""
        return [word.decode("utf-8", "replace") for word in raw.rstrip(b"\0").split(b"\0")] if raw else []

    def program(self, pid: int) -> str:
        """Name of the executable file; of another user's process, which hides it, the name it gives itself."""
        try:
            name = os.readlink("/proc/%d/exe" % pid)
        except OSError:
            argv = self.argv(pid)
            name = argv[0].split(" ")[0].rstrip(":") if argv else ""
        if name.endswith(" (deleted)"):
            name = name[: -len(" (deleted)")]
        return name.rsplit("/", 1)[-1].lstrip("-")

    def settings(self, pid: int) -> Dict[str, str]:
        """Of its environment only the variables that tell ranks and jobs; empty where the environment is hidden."""
        found = {}
        for item in (read_proc("/proc/%d/environ" % pid) or b"").split(b"\0"):
            name, _, value = item.partition(b"=")
            if name.decode("utf-8", "replace") in _WANTED:
                found[name.decode("ascii")] = value.decode("utf-8", "replace")[:200]
        return found

    def ancestors(self, pid: int) -> Iterator[int]:
        """Its parent, that one's parent, and so on."""
        seen: Set[int] = set()
        stat = self.stat(pid)
        while stat and stat.parent > 0 and stat.parent not in seen:
            seen.add(stat.parent)
            yield stat.parent
            stat = self.stat(stat.parent)

    def descendants(self, pid: int) -> List[int]:
        """Its children, then theirs: nearest first."""
        if self._children is None:
            self._children = {}
            for other in self.pids:
                stat = self.stat(other)
                if stat:
                    self._children.setdefault(stat.parent, []).append(other)
        found: List[int] = []
        waiting = [pid]
        while waiting:
            children = self._children.get(waiting.pop(0), [])
            found += children
            waiting += children
        return found

    def own(self) -> Set[int]:
        """This process, those above it (sshd, the login shell, a local controller) and those below it."""
        return {os.getpid(), *self.ancestors(os.getpid()), *self.descendants(os.getpid())}

    def hides(self) -> Optional[str]:
        """Why processes of other users can't be seen here, or None when all can.

        Three witnesses: processes listed but unreadable (hidepid=1), a PID 1 that is not listed although there always
        is one (hidepid=2, ptraceable), and the mount options.
        """
        if os.geteuid() != 0:
            option = _hidepid()
            if option:
                return "/proc is mounted with hidepid=%s: processes of other users can't be seen" % option
        if 1 not in self.pids:
            return "/proc shows only some processes: its own PID 1 is missing"
        unread = sum(1 for pid in self.pids if self.raw_command(pid) is None and os.path.exists("/proc/%d" % pid))
        return "the command lines of %d processes can't be read" % unread if unread else None


def uid_of(pid: int) -> Optional[int]:
    """Its real user id, from /proc/PID/status (the owner of /proc/PID is root for a process that isn't dumpable)."""
    value = status_value(read_proc("/proc/%d/status" % pid) or b"", b"Uid")
    return int(value.split()[0]) if value else None


def status_value(status: bytes, name: bytes) -> Optional[str]:
    """One value of a /proc/PID/status."""
    for line in status.split(b"\n"):
        if line.startswith(name + b":"):
            return line[len(name) + 1 :].strip().decode("utf-8", "replace")
    return None


def user_name(uid: Optional[int]) -> Optional[str]:
    """The user's name, or the number as text where no name is known."""
    if uid is None:
        return None
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _hidepid() -> Optional[str]:
    for line in (read_proc("/proc/self/mounts") or b"").decode("utf-8", "replace").splitlines():
        fields = line.split()
        if len(fields) > 3 and fields[1] == "/proc" and fields[2] == "proc":
            for option in fields[3].split(","):
                if option.startswith("hidepid=") and option[8:] not in ("0", "off"):
                    return option[8:]
    return None
