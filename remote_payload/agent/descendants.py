"""A process and all that it started, as /proc shows it: who they are, what memory they hold, which devices are open."""

import os
from fnmatch import fnmatchcase
from typing import Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

GPU_DEVICES = ("/dev/nvidia*", "/dev/kfd", "/dev/dri", "/dev/dri/*", "/dev/dxg", "/dev/accel*", "/dev/davinci*")
"""an evaluation that hides its GPUs opens none of these (WSL's, NPUs' and other accelerators' too)"""


def descendants(pid: int) -> List[int]:
    """All living children of `pid`, their children and so on; `pid` itself is not among them."""
    if not os.path.exists("/proc/self/task/%d/children" % os.getpid()):
        return _descendants_by_parents(pid)  # a kernel that keeps no such list
    found: List[int] = []
    waiting = [pid]
    while waiting:
        children = _children(waiting.pop())
        found += children
        waiting += children
    return found


def _children(pid: int) -> List[int]:
    """Children of all its threads."""
    children: List[int] = []
    try:
        for task in os.listdir("/proc/%d/task" % pid):
            with open("/proc/%d/task/%s/children" % (pid, task), "rb") as file:
                children += map(int, file.read().split())
    except OSError:
        pass  # it, or one of its threads, has just ended
    return children


def _descendants_by_parents(pid: int) -> List[int]:
    parents: Dict[int, List[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open("/proc/%s/stat" % name, "rb") as file:
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except (OSError, IndexError, ValueError):
                continue
            parents.setdefault(parent, []).append(int(name))
    found: List[int] = []
    waiting = [pid]
    while waiting:
        children = parents.get(waiting.pop(), [])
        found += children
        waiting += children
    return found


def memory(pids: Iterable[int]) -> int:
    """Bytes that these processes hold for themselves: anonymous and shared memory, not the page cache of files."""
    total = 0
    for pid in pids:
        try:
            with open("/proc/%d/status" % pid, "rb") as file:
                lines = file.read().split(b"\n")
        except OSError:
            continue
        held = dict(line.split(b":", 1) for line in lines if line.startswith((b"RssAnon:", b"RssShmem:", b"VmSwap:")))
        total += sum(int(value.split()[0]) * 1024 for value in held.values())
    return total


def open_device(pids: Iterable[int], patterns: Sequence[str]) -> Optional[Tuple[int, str]]:
    """(pid, path) of the first file, open or mapped, that matches one of `patterns`; None when there is none.

    A process whose descriptors are hidden from this user is passed over.
    """
    for pid in pids:
        for path in (*_open_files(pid), *_mapped_files(pid)):
            if any(fnmatchcase(path, pattern) for pattern in patterns):
                return pid, path
    return None


def _open_files(pid: int) -> Iterator[str]:
    folder = "/proc/%d/fd" % pid
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        try:
            yield os.readlink("%s/%s" % (folder, name))
        except OSError:
            continue


def _mapped_files(pid: int) -> Iterator[str]:
    """A device stays in use by its mappings when its descriptor is closed."""
    try:
        with open("/proc/%d/maps" % pid, "rb") as file:
            lines = file.read().split(b"\n")
    except OSError:
        return
    for line in lines:
        fields = line.split(None, 5)
        if len(fields) == 6 and fields[5].startswith(b"/"):
            yield os.fsdecode(fields[5])
