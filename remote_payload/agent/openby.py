"""Which processes have a file open for writing, as far as this user may see."""

import os
import time
from typing import Iterable, Set, Tuple

_PROC = "/proc"


def someone_writes(files: Iterable[str], seconds: float = 0.3) -> bool:
    """Whether a visible process has one of `files` open for writing. Looks for at most `seconds`."""
    wanted: Set[Tuple[int, int]] = set()
    names: Set[str] = set()
    for path in files:
        try:
            status = os.lstat(path)
        except OSError:
            continue
        wanted.add((status.st_dev, status.st_ino))
        names.add(os.path.basename(path))
    if not wanted:
        return False
    deadline = time.monotonic() + seconds
    for pid in _listed(_PROC):
        if pid.isdigit() and _writes(os.path.join(_PROC, pid), wanted, names):
            return True
        if time.monotonic() > deadline:
            return False
    return False


def _writes(process: str, wanted: Set[Tuple[int, int]], names: Set[str]) -> bool:
    folder = os.path.join(process, "fd")
    for number in _listed(folder):
        link = os.path.join(folder, number)
        try:
            # the name first: it costs no access to the file itself, which may lie on a network disk that hangs
            if os.path.basename(os.readlink(link)) not in names:
                continue
            status = os.stat(link)
            if (status.st_dev, status.st_ino) in wanted and _for_writing(os.path.join(process, "fdinfo", number)):
                return True
        except OSError:
            continue
    return False


def _for_writing(info: str) -> bool:
    with open(info, "rb") as file:
        for line in file:
            if line.startswith(b"flags:"):
                return int(line.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY
    return False


def _listed(folder: str) -> Iterable[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return ()
