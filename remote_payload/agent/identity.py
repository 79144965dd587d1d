"""Who a process is, so that it can be told apart from every other process that ever had its number.

An incarnation of a host (of a container: what can be seen from inside it) is its boot id, its PID namespace and the
start ticks of that namespace's PID 1: a reboot, a restarted container and a restored one all differ. A process is its
incarnation, its pid and its start ticks. Ticks count from the boot and don't move when the clock is stepped; wall
clock times are for showing only.
"""

import os
import time
from typing import Any, Dict, NamedTuple, Optional

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
UNKNOWN = "?"
"""a part of the incarnation that this host hides; hidden at the next look too, so both still agree"""


class Stat(NamedTuple):
    """What /proc/PID/stat says, as far as orch needs it (proc(5))."""

    pid: int
    comm: str
    """name of the executable, cut by the kernel to 15 bytes"""
    state: str
    """one letter: R S D T t Z X I"""
    parent: int
    session: int
    major_faults: int
    threads: int
    start_ticks: int
    rss_pages: int


def read_proc(path: str, limit: int = 1 << 20) -> Optional[bytes]:
    """At most `limit` bytes of a file in /proc or /sys; None where it is not there or may not be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        parts = []
        while limit > 0:
            part = os.read(descriptor, min(limit, 1 << 16))
            if not part:
                break
            parts.append(part)
            limit -= len(part)
        return b"".join(parts)
    except OSError:  # the process ended between open and read
        return None
    finally:
        os.close(descriptor)


def parse_stat(line: bytes) -> Stat:
    """The fields of one /proc/PID/stat. `comm` may hold anything, `) (` too, so it ends at the last bracket.

    Raises ValueError for what isn't such a line.
    """
    opened, closed = line.find(b"("), line.rfind(b")")
    fields = line[closed + 1 :].split()
    if opened < 0 or closed < opened or len(fields) < 22:
        raise ValueError("not a line of /proc/PID/stat: %r" % line[:80])
    return Stat(
        pid=int(line[:opened]),
        comm=line[opened + 1 : closed].decode("utf-8", "replace"),
        state=fields[0].decode("ascii", "replace"),
        parent=int(fields[1]),
        session=int(fields[3]),
        major_faults=int(fields[9]),
        threads=int(fields[17]),
        start_ticks=int(fields[19]),
        rss_pages=int(fields[21]),
    )


def read_stat(pid: int) -> Optional[Stat]:
    """The process as it is now; None where there is none or its /proc is hidden."""
    line = read_proc("/proc/%d/stat" % pid)
    try:
        return parse_stat(line) if line else None
    except ValueError:
        return None


def incarnation() -> str:
    """This boot of this host, as seen from this PID namespace: `boot-id/namespace/ticks of PID 1`."""
    boot = read_proc("/proc/sys/kernel/random/boot_id")
    try:
        namespace = os.readlink("/proc/self/ns/pid").strip("pid:[]")
    except OSError:
        namespace = UNKNOWN
    first = read_stat(1)
    boot_id = boot.decode("ascii", "replace").strip() if boot else UNKNOWN
    return "%s/%s/%s" % (boot_id, namespace, first.start_ticks if first else UNKNOWN)


def of(stat: Stat) -> Dict[str, Any]:
    """The identity of a process just read: {incarnation, pid, start_ticks}."""
    return {"incarnation": incarnation(), "pid": stat.pid, "start_ticks": stat.start_ticks}


def of_pid(pid: int) -> Optional[Dict[str, Any]]:
    """The identity of whatever has this number now, or None."""
    stat = read_stat(pid)
    return of(stat) if stat else None


def started_at(start_ticks: int) -> float:
    """Seconds since the epoch by this host's clock as it stands now; for showing, never for comparing."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + start_ticks / TICKS_PER_SECOND


def utc(seconds: Optional[float] = None) -> str:
    """ISO-8601 in UTC, whole seconds; now without `seconds`."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
