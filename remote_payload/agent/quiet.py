"""Making this process the least of its host's worries: first to wait for a core or a disk, first to go for memory.

`nice` alone protects nobody where sched_autogroup_enabled is 1, as it usually is: the kernel then shares the cores
between *sessions* and looks at nice only inside each. So the session's own weight is lowered as well, through
/proc/self/autogroup. That file belongs to the whole session; it is written only where the session is ours alone: sshd
starts one for each command that it runs, and where this process does not lead it, setsid() makes a new one (no
terminal is lost: the agent has none, and it ends on EOF of stdin, not on a hang-up).
"""

import errno
import os
import time
from typing import Iterable, List, Set

_IOPRIO_SET = {
    "x86_64": 251,
    "i686": 289,
    "aarch64": 30,
    "riscv64": 30,
    "loongarch64": 30,
    "ppc64le": 273,
    "s390x": 282,
    "armv7l": 314,
}
_WHO_PROCESS, _CLASS_IDLE, _CLASS_SHIFT = 1, 3, 13
LOWEST = 19


def be_quiet(*, first_to_go: bool = True) -> List[str]:
    """Lower every thread of this process to the lowest CPU and I/O priority; children inherit it. `first_to_go`: make
    it the first that the kernel ends when memory runs out, too.

    Returns what could not be done, in words; an empty list when all was. Nothing is raised: on a host that forbids
    one of these the others still help.
    """
    notes: List[str] = []
    threads = [int(name) for name in os.listdir("/proc/self/task")]
    for thread in threads:  # on Linux each thread has a priority of its own
        try:
            if os.getpriority(os.PRIO_PROCESS, thread) < LOWEST:
                os.setpriority(os.PRIO_PROCESS, thread, LOWEST)
        except ProcessLookupError:
            continue
        except OSError as error:
            notes.append("nice: %s" % error.strerror)
    notes += _lower_session()
    notes += _idle_io(threads)
    if first_to_go and not _write("/proc/self/oom_score_adj", "1000"):
        notes.append("oom_score_adj could not be raised")
    return notes


def avoid(cpus: Iterable[int]) -> List[str]:
    """Leave these cores to their owner: every thread of this process moves to the others. Returns notes as above."""
    allowed = os.sched_getaffinity(0)
    rest = allowed - set(cpus)
    if rest == allowed:
        return []
    if not rest:
        return ["every core of this host is the training's: priority alone must do"]
    try:
        for thread in os.listdir("/proc/self/task"):
            os.sched_setaffinity(int(thread), rest)
    except OSError as error:
        return ["affinity: %s" % error.strerror]
    return []


def cores_of(pids: Iterable[int]) -> Set[int]:
    """The cores to which these processes were pinned; empty when one of them may run anywhere, or can't be asked."""
    everywhere = set(range(os.cpu_count() or 1))
    cores: Set[int] = set()
    for pid in pids:
        try:
            own = os.sched_getaffinity(pid)
        except OSError:
            continue
        if own >= everywhere:
            return set()
        cores |= own
    return cores


def _lower_session() -> List[str]:
    try:
        with open("/proc/self/autogroup") as file:
            if file.read().strip().endswith(" nice %d" % LOWEST):
                return []  # the shell that started us did it
    except OSError:
        return []  # a kernel without autogroups: nice is what counts
    if os.getsid(0) != os.getpid():
        try:
            os.setsid()
        except OSError:
            return ["this process leads a group inside somebody's session: the session's weight was left alone"]
    if lower_session_of("self"):
        return []
    return ["the session's weight (/proc/self/autogroup) could not be lowered"]


def lower_session_of(pid: object) -> bool:
    """Give the whole session of this process the least weight. True where that is so."""
    for _ in range(3):  # without root the kernel takes one such write every 0.1 s on the whole machine
        if _write("/proc/%s/autogroup" % pid, str(LOWEST)):
            return True
        time.sleep(0.11)
    return False


def _idle_io(threads: List[int]) -> List[str]:
    number = _IOPRIO_SET.get(os.uname().machine)
    if number is None:
        return ["idle I/O class: unknown on %s" % os.uname().machine]
    try:
        import ctypes

        call = ctypes.CDLL(None, use_errno=True).syscall
    except (ImportError, OSError, AttributeError) as error:
        return ["idle I/O class: %s" % error]
    failed = set()
    for thread in threads:
        told = call(number, _WHO_PROCESS, thread, _CLASS_IDLE << _CLASS_SHIFT)
        if told != 0 and ctypes.get_errno() != errno.ESRCH:  # that thread has ended
            failed.add(os.strerror(ctypes.get_errno()))
    return ["idle I/O class: %s" % reason for reason in sorted(failed)]


def _write(path: str, text: str) -> bool:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.write(descriptor, text.encode("ascii")) > 0
    except OSError:
        return False
    finally:
        os.close(descriptor)
