"""The end of a log that another process is writing, read so that nobody notices.

The access time stays where the kernel allows (O_NOATIME, for the file's owner and root). Pages that this reading
brought into the page cache are dropped again; those that were there before stay.
"""

import os
import stat
from typing import Any, List, NamedTuple, Optional, Tuple

from remote_payload.agent.errors import AgentError

PAGE = os.sysconf("SC_PAGE_SIZE")
FIRST, MOST = 256 * 1024, 4 * 1024 * 1024
"""bytes from the end that are read at first, and at most"""
LONGEST_LINE = 4096
"""characters of a line that are looked at"""


class Tail(NamedTuple):
    """The last bytes of a file as lines, oldest first, without an unfinished last one."""

    lines: List[str]
    size: int
    """of the whole file"""
    modified: float
    """seconds since the epoch, by the clock of the host (or of its file server)"""
    whole: bool
    """the lines are the whole file"""
    in_blocks: bool
    """ends inside a line on a block's edge: the writer's buffer holds the rest, so the file lags behind"""
    inode: int


def read_tail(path: str, size: int) -> Tail:
    """The last `size` bytes. Raises AgentError where there is no such file, or it can't be read or isn't a file."""
    descriptor = open_quietly(path)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise AgentError("%s is not a file" % path, kind="config")
        start = max(0, status.st_size - size)
        data = read_leaving_cache(descriptor, start, status.st_size - start)
    finally:
        os.close(descriptor)
    unfinished = bool(data) and data[-1:] not in (b"\n", b"\r")
    return Tail(
        lines=lines_of(data, cut_first=start > 0),
        size=status.st_size,
        modified=status.st_mtime,
        whole=start == 0,
        in_blocks=unfinished and status.st_size % 4096 == 0,
        inode=status.st_ino,
    )


def read_head(path: str, size: int) -> List[str]:
    """The lines in the first `size` bytes."""
    descriptor = open_quietly(path)
    try:
        data = read_leaving_cache(descriptor, 0, min(size, os.fstat(descriptor).st_size))
    finally:
        os.close(descriptor)
    return lines_of(data)


def born_at(path: str) -> Optional[float]:
    """When the file was made (statx(2)), in seconds since the epoch; None where the kernel or file system can't tell.

    Python has no statx. Offsets in struct statx: stx_mask 0, stx_btime 80 (64-bit seconds, 32-bit nanoseconds).
    """
    import ctypes
    import struct

    size, here, birth = 256, -100, 0x800
    try:
        statx = ctypes.CDLL(None, use_errno=True).statx
        answer = ctypes.create_string_buffer(size)
        told = statx(here, os.fsencode(path), 0, birth, answer)
    except (OSError, AttributeError, ValueError):
        return None
    if told != 0 or not struct.unpack_from("=I", answer.raw)[0] & birth:
        return None
    seconds, nanoseconds = struct.unpack_from("=qI", answer.raw, 80)
    return float(seconds) + float(nanoseconds) / 1e9


def lines_of(data: bytes, *, cut_first: bool = False) -> List[str]:
    """Lines between newlines or carriage returns, without empty ones, colours and NULs (a truncated log has holes).

    An unfinished last line is left out: `step 52` may be the start of `step 5296`. The one exception is a progress
    bar, which rewrites its line after a carriage return and never ends it, and is whole when it ends with `]`.
    """
    text = data.replace(b"\0", b"").decode("utf-8", "replace")
    if "\x1b" in text:
        text = _without_escapes(text)
    after_return = text.rfind("\r") > text.rfind("\n")
    pieces = text.replace("\r", "\n").split("\n")
    if not (after_return and pieces[-1].rstrip().endswith("]")):
        pieces.pop()
    stripped = (piece.strip()[:LONGEST_LINE] for piece in pieces[1 if cut_first else 0 :])
    return [line for line in stripped if line]


def open_quietly(path: str) -> int:
    """A descriptor for reading that leaves the access time alone where it may, and never waits on a FIFO."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        try:
            return os.open(path, flags | os.O_NOATIME)
        except PermissionError:  # O_NOATIME is for the owner and root
            return os.open(path, flags)
    except OSError as error:
        raise AgentError("can't read %s: %s" % (path, error.strerror), kind="config") from None


def read_leaving_cache(descriptor: int, start: int, size: int) -> bytes:
    """These bytes (fewer when the file shrinks meanwhile); pages that were not in the page cache leave it again."""
    absent = _absent_pages(descriptor, start, size)
    if absent:
        os.posix_fadvise(descriptor, start, size, os.POSIX_FADV_RANDOM)  # no read-ahead past what is asked
    parts = []
    while size > 0:
        part = os.pread(descriptor, size, start)
        if not part:
            break
        parts.append(part)
        start += len(part)
        size -= len(part)
    for first, length in absent:
        os.posix_fadvise(descriptor, first, length, os.POSIX_FADV_DONTNEED)
    return b"".join(parts)


def _absent_pages(descriptor: int, start: int, size: int) -> List[Tuple[int, int]]:
    """(offset, length) of the stretches that the page cache does not hold, by mincore(2).

    The kernel tells the truth only to those who may write the file, and says "all there" to others; then, as on any
    failure, nothing is dropped.
    """
    if size <= 0:
        return []
    first = start - start % PAGE
    length = start + size - first
    try:
        resident = _mincore(descriptor, first, length)
    except (ImportError, OSError, AttributeError):
        return []
    stretches: List[Tuple[int, int]] = []
    for index, byte in enumerate(resident or b""):
        if byte & 1:
            continue
        offset = first + index * PAGE
        if stretches and sum(stretches[-1]) == offset:
            stretches[-1] = (stretches[-1][0], stretches[-1][1] + PAGE)
        else:
            stretches.append((offset, PAGE))
    return stretches


def _mincore(descriptor: int, offset: int, length: int) -> Optional[bytes]:
    """One byte a page, lowest bit set for those in memory. The mapping is never touched, so it reads nothing."""
    import ctypes
    import mmap

    libc: Any = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
    address = libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, offset)
    if address in (None, ctypes.c_void_p(-1).value):
        return None
    resident = ctypes.create_string_buffer(-(-length // PAGE))
    try:
        told = libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(length), resident)
    finally:
        libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(length))
    return resident.raw if told == 0 else None


def _without_escapes(text: str) -> str:
    """Without what terminals obey: colours, cursor moves."""
    import re

    return re.sub(r"\x1b\[[0-9;?]{0,30}[A-Za-z]|\x1b[@-_]", "", text)
