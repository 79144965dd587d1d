"""One regular file, open from the first look to the last byte, read without leaving a mark.

Pages that were not in the page cache before are given back after each window, access times are left alone where the
kernel allows it, and nothing is mapped for reading: a file that shrinks gives an error, never a signal.
"""

import os
import stat
from typing import Iterator, List, NamedTuple, Optional, Tuple

from remote_payload.agent.verdicts import Refusal, Torn

WINDOW = 1024 * 1024
"""bytes read at once; windows begin at multiples of it, so that a page belongs to one window"""


class Stamp(NamedTuple):
    """What changes when a file's content does: the cheap part of an identity."""

    inode: int
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> "Stamp":
        return cls(status.st_ino, status.st_size, status.st_mtime_ns)


class OpenFile:
    """A regular file open for reading. `path` is only for messages. Raises Refusal for anything but a regular file."""

    def __init__(self, fd: int, path: str) -> None:
        self.fd = fd
        self.path = path
        self._status = os.fstat(fd)
        if not stat.S_ISREG(self._status.st_mode):
            self.close()
            raise Refusal("%r is not a regular file" % path)
        self.stamp = Stamp.of(self._status)
        self.size = self.stamp.size
        self.mtime = self._status.st_mtime
        self._cache: Optional[_PageCache] = None
        _advise(fd, 0, 0, "POSIX_FADV_RANDOM")  # no read-ahead: only what is asked for enters the cache

    def read(self, offset: int, size: int) -> bytes:
        """Exactly `size` bytes, for small reads. Raises Torn where the file ends before."""
        data = _pread(self.fd, size, offset)
        if len(data) != size:
            raise Torn("it ends at byte %d, inside what is needed up to %d" % (offset + len(data), offset + size))
        return data

    def pieces(self, offset: int, size: int) -> Iterator[bytes]:
        """The range in windows of at most WINDOW bytes, the page cache left as found. Raises Torn at an early end."""
        if self._cache is None:
            self._cache = _PageCache(self.fd, self._status)
        end = offset + size
        while offset < end:
            stop = min(end, (offset // WINDOW + 1) * WINDOW)
            cold = self._cache.cold(offset, stop)
            data = self.read(offset, stop - offset)
            for begin, length in cold:
                _advise(self.fd, begin, length, "POSIX_FADV_DONTNEED")
            yield data
            offset = stop

    def held(self, offset: int, size: int) -> memoryview:
        """The range in memory, once and no more than that. Raises as `pieces` does."""
        memory = bytearray(size)
        at = 0
        for piece in self.pieces(offset, size):
            memory[at : at + len(piece)] = piece
            at += len(piece)
        return memoryview(memory)

    def changed(self) -> bool:
        """Whether inode, size or modification time differ from when it was opened."""
        return Stamp.of(os.fstat(self.fd)) != self.stamp

    def close(self) -> None:
        """Close the descriptor; a second call does nothing."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _pread(fd: int, size: int, offset: int) -> bytes:
    data = os.pread(fd, size, offset)
    if len(data) == size or not data:
        return data
    parts = [data]
    have = len(data)
    while have < size:
        data = os.pread(fd, size - have, offset + have)
        if not data:
            break
        parts.append(data)
        have += len(data)
    return b"".join(parts)


def _advise(fd: int, offset: int, length: int, advice: str) -> None:
    if hasattr(os, "posix_fadvise"):
        try:
            os.posix_fadvise(fd, offset, length, getattr(os, advice))
        except OSError:
            pass  # advice only: file systems without it read just as well


class _PageCache:
    """Asks the kernel which pages of a file are cached, through mincore on a mapping that is never touched."""

    def __init__(self, fd: int, status: os.stat_result) -> None:
        import ctypes
        import mmap

        self._fd = fd
        self._ctypes = ctypes
        self._mmap = mmap
        self._page = mmap.PAGESIZE
        self._mincore = getattr(ctypes.CDLL(None, use_errno=True), "mincore", None)
        # to anyone but the owner the kernel calls every page cached; then all that was read is given back
        if os.geteuid() not in (0, status.st_uid):
            self._mincore = None

    def cold(self, begin: int, end: int) -> List[Tuple[int, int]]:
        """Runs (offset, length) of pages in [begin, end) that are not cached; all of them where nobody can say."""
        first = begin - begin % self._page
        length = end - first + (-end) % self._page
        resident = self._resident(first, end - first, length // self._page)
        if resident is None:
            return [(first, length)]
        runs: List[Tuple[int, int]] = []
        at = 0
        while at < len(resident):
            if resident[at] & 1:
                at += 1
                continue
            start = at
            while at < len(resident) and not resident[at] & 1:
                at += 1
            runs.append((first + start * self._page, (at - start) * self._page))
        return runs

    def _resident(self, offset: int, length: int, pages: int) -> Optional[bytes]:
        if self._mincore is None:
            return None
        try:
            mapped = self._mmap.mmap(self._fd, length, access=self._mmap.ACCESS_COPY, offset=offset)
        except (OSError, ValueError):
            return None
        try:
            anchor = self._ctypes.c_char.from_buffer(mapped)
            answer = self._ctypes.create_string_buffer(pages)
            address = self._ctypes.c_void_p(self._ctypes.addressof(anchor))
            failed = self._mincore(address, self._ctypes.c_size_t(length), answer)
            del anchor
            return None if failed else answer.raw
        finally:
            mapped.close()
