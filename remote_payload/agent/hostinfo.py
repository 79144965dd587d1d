"""What this host is and has, as its limits leave it: inside a container the container's share, not the machine's."""

import os
import sys
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from remote_payload.agent import identity
from remote_payload.agent.identity import read_proc

UNLIMITED = 1 << 60
"""cgroup v1 writes a number of about 2**63 for "no limit" """


class Cgroup(NamedTuple):
    """One controller of the group that this process is in: its folder, and the top of what can be seen."""

    version: int
    folder: str
    top: str


def facts(disk_path: str) -> Dict[str, Any]:
    """{hostname, python, incarnation, at, cpus, load: [3], memory: {total, available}, disk: {path, total, free,
    inodes_free}}. Bytes; `disk` is of the nearest existing parent of `disk_path`; `at` is this host's own clock."""
    return {
        "hostname": os.uname().nodename,
        "python": "%d.%d.%d" % sys.version_info[:3],
        "incarnation": identity.incarnation(),
        "at": identity.utc(),
        "cpus": cpus(),
        "load": list(os.getloadavg()),
        "memory": memory(),
        "disk": disk(disk_path),
    }


def cpus() -> int:
    """Whole cores that this process may use: its affinity, capped by the cgroups' quota; at least 1."""
    allowed = len(os.sched_getaffinity(0))
    for folder, version in _levels("cpu"):
        quota = _cpu_quota(folder, version)
        if quota is not None:
            allowed = min(allowed, int(quota))
    return max(1, allowed)


def memory() -> Dict[str, int]:
    """{total, available} in bytes: the least of the machine's and of what each cgroup above this process leaves.

    What a group's page cache holds can be given back and so counts as available, as in the kernel's own MemAvailable.
    """
    machine = meminfo(read_proc("/proc/meminfo") or b"")
    total, available = machine.get("MemTotal", 0), machine.get("MemAvailable", 0)
    for folder, version in _levels("memory"):
        limit, free = _memory_left(folder, version)
        if limit is not None and limit < total:
            total = limit
        if free is not None:
            available = min(available, free)
    return {"total": total, "available": min(available, total)}


def reserve(beside: Optional[Dict[str, Any]]) -> int:
    """Bytes of memory that an evaluation leaves to the trainings beside it (beside.py): what they ask for, else a tenth
    of the host's. 0 where there are none."""
    return int(beside.get("reserve") or memory()["total"] // 10) if beside else 0


def disk(path: str) -> Dict[str, Any]:
    """{path, total, free, inodes_free} of the file system that holds `path` or will hold it; free for this user."""
    path = os.path.abspath(os.path.expanduser(path))
    while True:
        try:
            space = os.statvfs(path)
            break
        except (FileNotFoundError, NotADirectoryError):
            path = os.path.dirname(path)
    return {
        "path": path,
        "total": space.f_blocks * space.f_frsize,
        "free": space.f_bavail * space.f_frsize,
        "inodes_free": space.f_favail,
    }


def meminfo(text: bytes) -> Dict[str, int]:
    """/proc/meminfo, or a cgroup's memory.stat, as bytes by name."""
    found = {}
    for line in text.decode("ascii", "replace").splitlines():
        fields = line.replace(":", " ").split()
        if len(fields) >= 2 and fields[1].isdigit():
            found[fields[0]] = int(fields[1]) * (1024 if fields[2:] == ["kB"] else 1)
    return found


def addresses() -> List[str]:
    """This host's own network addresses, without those of the loopback and link-local ones."""
    import socket

    found = []
    last = ""
    for line in (read_proc("/proc/net/fib_trie") or b"").decode("ascii", "replace").splitlines():
        words = line.split()
        if line.lstrip().startswith("|-- "):
            last = words[1]
        elif "host LOCAL" in line and not last.startswith("127."):
            found.append(last)
    for line in (read_proc("/proc/net/if_inet6") or b"").decode("ascii", "replace").splitlines():
        digits = line.split()[0] if line.split() else ""
        if len(digits) == 32 and not digits.startswith("fe80") and digits.strip("0") != "1":
            found.append(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits)))
    return sorted(set(found))


def cgroup_of(controller: str, membership: str, mounts: str) -> Optional[Cgroup]:
    """Where a controller's files for this process are, from /proc/self/cgroup and /proc/self/mountinfo.

    In a container the membership may be a path of the machine (`/docker/ab12`) whose folder is mounted as the root:
    the mount's own root is then cut off. None where the controller is not mounted.
    """
    paths: Dict[str, str] = {}
    for line in membership.splitlines():
        _, names, path = [*line.split(":", 2), "", ""][:3]
        for name in names.split(",") if names else ["v2"]:
            paths[name] = path
    found: Dict[int, Cgroup] = {}
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) < 5 or len(kind) < 3:
            continue
        if kind[0] == "cgroup" and controller in kind[2].split(","):
            version, path = 1, paths.get(controller, "/")
        elif kind[0] == "cgroup2" and "v2" in paths:
            version, path = 2, paths["v2"]
        else:
            continue
        root, top = fields[3].rstrip("/"), fields[4]
        inside = path[len(root) :] if path == root or path.startswith(root + "/") else ""
        found.setdefault(version, Cgroup(version, os.path.normpath(top + "/" + inside.strip("/")), top))
    return found.get(1) or found.get(2)  # where v1 has the controller, v2 does not


def _levels(controller: str) -> List[Tuple[str, int]]:
    """The group's folder and those above it, each of which may set a limit."""
    membership, mounts = read_proc("/proc/self/cgroup") or b"", read_proc("/proc/self/mountinfo") or b""
    group = cgroup_of(controller, membership.decode("utf-8", "replace"), mounts.decode("utf-8", "replace"))
    levels: List[Tuple[str, int]] = []
    folder = group.folder if group else ""
    while group and (folder == group.top or folder.startswith(group.top + "/")):
        levels.append((folder, group.version))
        folder = os.path.dirname(folder)
    return levels


def _number(path: str) -> Optional[int]:
    text = (read_proc(path) or b"").strip()
    return int(text) if text.lstrip(b"-").isdigit() else None


def _cpu_quota(folder: str, version: int) -> Optional[float]:
    """Cores as a fraction, or None for no limit."""
    if version == 2:
        fields = (read_proc(folder + "/cpu.max") or b"").split()
        if len(fields) != 2 or not fields[0].isdigit():
            return None
        return int(fields[0]) / int(fields[1])
    quota, period = _number(folder + "/cpu.cfs_quota_us"), _number(folder + "/cpu.cfs_period_us")
    return quota / period if quota and period and quota > 0 else None


def _memory_left(folder: str, version: int) -> Tuple[Optional[int], Optional[int]]:
    """(limit, what is left of it) of one group; (None, None) for no limit."""
    names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    limit, used = (_number(folder + "/" + name) for name in names)
    if limit is None or used is None or limit >= UNLIMITED:
        return None, None
    stat = meminfo(read_proc(folder + "/memory.stat") or b"")
    prefix = "" if version == 2 else "total_"
    kept = sum(stat.get(prefix + name, 0) for name in ("inactive_file", "active_file", "slab_reclaimable"))
    return limit, max(0, limit - max(0, used - kept))
