"""An incoming stream cut into files of known sizes, and what a refused write means in words."""

import errno
import os
from typing import Iterable, Iterator

from remote_payload.agent.errors import AgentError


class Inflow:
    """The pieces of a stream, taken file by file."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._rest = memoryview(b"")
        self.taken = 0
        """bytes handed out so far"""

    def take(self, size: int) -> Iterator[memoryview]:
        """The next `size` bytes, piece by piece. Raises AgentError where the stream ends before."""
        while size:
            if not self._rest:
                piece = next(self._pieces, None)
                if piece is None:
                    raise AgentError("the stream ended %d bytes too early" % size, kind="transfer")
                self._rest = memoryview(piece)
            part, self._rest = self._rest[:size], self._rest[size:]
            size -= len(part)
            self.taken += len(part)
            yield part

    def into(self, buffer: memoryview) -> int:
        """Put the next bytes into a buffer, as many as there are at once; 0 at the stream's end."""
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = memoryview(piece)
        part, self._rest = self._rest[: len(buffer)], self._rest[len(buffer) :]
        buffer[: len(part)] = part
        self.taken += len(part)
        return len(part)

    def finish(self) -> None:
        """Take the stream's end. Raises AgentError where more comes than was announced."""
        if self._rest or any(map(len, self._pieces)):
            raise AgentError("more bytes came than were announced", kind="transfer")


def write_all(descriptor: int, data: memoryview) -> None:
    """All of `data` to a file. Raises OSError."""
    while data:
        data = data[os.write(descriptor, data) :]


def unwritable(place: str, error: OSError, outcome: str) -> AgentError:
    """The AgentError for a write that the host refused. `outcome` says what state that leaves."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        what = "the disk is full" if error.errno == errno.ENOSPC else "the disk quota is used up"
        return AgentError("%s: %s; %s" % (place, what, outcome), "make room on the host and try again", kind="refused")
    if error.errno == errno.EROFS:
        hint = "mount it for writing, or name another folder in hosts.yaml or the job"
        return AgentError("%s: the file system is read-only; %s" % (place, outcome), hint, kind="refused")
    if error.errno in (errno.EACCES, errno.EPERM):
        hint = "look at the permissions of the folder on the host"
        return AgentError("%s: no permission to write; %s" % (place, outcome), hint, kind="refused")
    return AgentError("%s: %s; %s" % (place, error.strerror, outcome), kind="failed")
