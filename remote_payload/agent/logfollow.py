"""Reading a run's log from a byte offset on: through truncation, rotation and characters that are not whole yet.

A place in a log is {"offset", "file": inode, "tail": hex of the bytes before the offset}: enough to go on there later,
over another connection, and to notice that the file is no longer the one it was.
"""

import os
import stat
from typing import Any, Dict, List, Optional, Tuple

PIECE = 64 << 10
"""bytes read at once"""
LOOK_BACK = 1 << 20
"""bytes in which the last lines are looked for"""
_TAIL = 64


class Log:
    """One log, which may not be there yet."""

    def __init__(self, path: str, place: Optional[Dict[str, Any]] = None) -> None:
        """Go on at `place`, or begin with the first byte."""
        self._path = path
        self._file = -1
        self._tail = b""
        self.offset = 0
        self.notes: List[str] = []
        """what happened to the file, for people; whoever tells them empties the list"""
        if place:
            self._return_to(place)

    def _return_to(self, place: Dict[str, Any]) -> None:
        inode = place.get("file")
        self._file = _open(self._path, inode)
        if self._file < 0 and inode is not None:
            self._file = _open_sibling(self._path, inode)
        if self._file < 0:
            if inode is not None and os.path.exists(self._path):
                self.notes.append("the log was replaced; this is the new one from its start")
            return
        self.offset, self._tail = int(place["offset"]), bytes.fromhex(str(place.get("tail") or ""))

    def place(self) -> Dict[str, Any]:
        """Where to go on later."""
        inode = os.fstat(self._file).st_ino if self._opened() else None
        return {"offset": self.offset, "file": inode, "tail": self._tail.hex()}

    def size(self) -> int:
        """Bytes of the file that is being read; 0 where there is none yet."""
        return os.fstat(self._file).st_size if self._opened() else 0

    def skip_to(self, offset: int) -> None:
        """Go on at another offset of the same file."""
        self.offset = offset
        self._tail = os.pread(self._file, min(_TAIL, offset), max(0, offset - _TAIL)) if self._opened() else b""

    def skip_to_last_lines(self, count: int) -> None:
        """Go on where the last `count` lines begin, at most LOOK_BACK bytes before the end."""
        size = self.size()
        start = max(0, size - LOOK_BACK) if count else size
        end = size
        found = 0
        while end > start:
            begin = max(start, end - PIECE)
            piece = os.pread(self._file, end - begin, begin)
            at = len(piece) - (1 if end == size and piece.endswith(b"\n") else 0)
            while (at := piece.rfind(b"\n", 0, at)) >= 0:
                found += 1
                if found == count:
                    self.skip_to(begin + at + 1)
                    return
            end = begin
        self.skip_to(start)

    def read(self, whole: bool = False) -> Tuple[bytes, bool]:
        """(the next bytes, at most PIECE; whether more are there now). A character whose rest has not come is held
        back, unless the log is `whole`. NULs, which a truncated log may hold, are dropped."""
        if not self._opened():
            return b"", False
        size = os.fstat(self._file).st_size
        if size < self.offset or os.pread(self._file, len(self._tail), self.offset - len(self._tail)) != self._tail:
            self.notes.append("the log was cut; from its start")
            self.skip_to(0)
        data = os.pread(self._file, PIECE, self.offset)
        if not data and self._rotated():
            data = os.pread(self._file, PIECE, 0)
        size = os.fstat(self._file).st_size
        if not (whole and self.offset + len(data) >= size):
            data = data[: len(data) - _unfinished(data)]
        self.offset += len(data)
        self._tail = (self._tail + data)[-_TAIL:]
        return data.replace(b"\0", b""), bool(data) and self.offset < size

    def _opened(self) -> bool:
        if self._file < 0:
            self._file = _open(self._path)
        return self._file >= 0

    def _rotated(self) -> bool:
        """Whether another file has taken the name; it is then the one that is read. The old one has been read out."""
        new = _open(self._path)
        if new < 0:
            return False
        if os.fstat(new).st_ino == os.fstat(self._file).st_ino or not os.fstat(new).st_size:
            os.close(new)
            return False
        os.close(self._file)
        self._file = new
        self.notes.append("the log was rotated; this is the new one")
        self.skip_to(0)
        return True


def _open(path: str, inode: Optional[int] = None) -> int:
    """A descriptor, or -1 where there is no such file (of that inode)."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return -1
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or (inode is not None and status.st_ino != inode):
        os.close(descriptor)
        return -1
    return descriptor


def _open_sibling(path: str, inode: int) -> int:
    """The file that had the name before: log.1, log-20261130 ..."""
    folder, name = os.path.split(path)
    try:
        found = [entry.path for entry in os.scandir(folder) if entry.name.startswith(name) and entry.inode() == inode]
    except OSError:
        return -1
    return _open(found[0], inode) if found else -1


def collapse(data: bytes) -> bytes:
    """The same lines without what a carriage return has overwritten in them: a progress bar's last state only.

    A piece of a longer text collapses to a piece of the collapsed text: a return that overwrites what came before the
    piece, or that ends it, stays.
    """
    if b"\r" not in data:
        return data
    return b"\n".join(_last_state(line) for line in data.split(b"\n"))


def _last_state(line: bytes) -> bytes:
    body = line.rstrip(b"\r")
    return body[max(0, body.rfind(b"\r")) :] + line[len(body) :][:1]


def _unfinished(data: bytes) -> int:
    """How many bytes at the end begin a UTF-8 character whose rest has not come."""
    for back in range(1, min(4, len(data) + 1)):
        byte = data[-back]
        if byte >= 0xC0:
            return back if back < (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4) else 0
        if byte < 0x80:
            return 0
    return 0
