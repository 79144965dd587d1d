"""A shipment cut into chunks: the unit that is hashed, sent, written down by the receiver, and sent again after a cut.

No chunk spans two files. A chunk crosses as a frame: its number, its size, its bytes, their sha256.
"""

import hashlib
import json
import struct
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Sequence, Tuple

CHUNK = 2 * 1024 * 1024
"""bytes. Eight connections with a chunk each, the one that is being read and two that wait stay below 64 MB"""
DIGEST = hashlib.sha256().digest_size
_HEAD = struct.Struct(">4sII")
_MARK = b"orC1"
Ranges = List[List[int]]
"""first and last number of each run of chunks; what crosses the wire instead of a long list"""
ReadInto = Callable[[memoryview], int]


class BadFrame(Exception):
    """Bytes on a connection that are no chunk; nothing more can be read from it."""


class Chunk(NamedTuple):
    """`at` counts bytes in its file, `start` in the whole shipment."""

    number: int
    path: str
    at: int
    size: int
    start: int


def cut(files: Sequence[Dict[str, Any]], size: int = CHUNK) -> List[Chunk]:
    """All chunks of the files {"path", "size"}, in their order."""
    found: List[Chunk] = []
    start = 0
    for file in files:
        for at in range(0, int(file["size"]), size):
            length = min(size, int(file["size"]) - at)
            found.append(Chunk(len(found), str(file["path"]), at, length, start + at))
        start += int(file["size"])
    return found


def to_ranges(indices: Iterable[int]) -> Ranges:
    """Sorted numbers as runs."""
    runs: Ranges = []
    for index in indices:
        if runs and runs[-1][1] == index - 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return runs


def from_ranges(runs: Sequence[Sequence[int]], count: int) -> Iterator[int]:
    """The numbers in runs that came over the wire. Raises ValueError for one that is no chunk's of `count`."""
    for first, last in runs:
        if not 0 <= first <= last < count:
            raise ValueError("chunks %r to %r of %d" % (first, last, count))
        yield from range(first, last + 1)


def spans(chunks: Sequence[Chunk], indices: Iterable[int]) -> List[Tuple[int, int]]:
    """The bytes [start, stop) of the shipment that these chunks make up, neighbours joined."""
    found: List[Tuple[int, int]] = []
    for index in indices:
        start, stop = chunks[index].start, chunks[index].start + chunks[index].size
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], stop)
        else:
            found.append((start, stop))
    return found


def plan_digest(files: Sequence[Dict[str, Any]], size: int, header: bytes, identity: str) -> str:
    """Equal for two shipments of which the chunks of the same number hold the same bytes."""
    listed = [[file["path"], file["size"]] for file in files]
    told = json.dumps(["chunks-1", listed, size, identity, hashlib.sha256(header).hexdigest()])
    return hashlib.sha256(told.encode("utf-8")).hexdigest()


def tree(digests: Iterable[bytes]) -> str:
    """One digest (hex) for many: the sha256 of the chunks' sha256, one behind the other."""
    whole = hashlib.sha256()
    for digest in digests:
        whole.update(digest)
    return whole.hexdigest()


def frame(number: int, parts: Sequence[memoryview]) -> Tuple[bytes, bytes]:
    """What goes before a chunk's bytes, which are given in parts, and what behind them."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return _HEAD.pack(_MARK, number, sum(map(len, parts))), digest.digest()


class Frames:
    """The chunks that come over one connection, through one buffer."""

    def __init__(self, into: ReadInto) -> None:
        """`into` fills a buffer as far as it can and returns how many bytes that were, 0 at the connection's end."""
        self._into = into
        self._buffer = memoryview(bytearray(CHUNK))

    def __iter__(self) -> Iterator[Tuple[int, memoryview, bytes]]:
        """(number, bytes, their sha256 as the sender said), the bytes good until the next one is taken.

        Raises BadFrame for what is no chunk, an end inside a chunk too.
        """
        head, digest = bytearray(_HEAD.size), bytearray(DIGEST)
        while self._fill(memoryview(head), may_end=True):
            mark, number, size = _HEAD.unpack(head)
            if mark != _MARK or size > CHUNK:
                raise BadFrame("not a chunk: %r" % bytes(head))
            data = self._buffer[:size]
            self._fill(data)
            self._fill(memoryview(digest))
            yield number, data, bytes(digest)

    def _fill(self, view: memoryview, may_end: bool = False) -> bool:
        """Fill the whole of it. False at an end before its first byte, where that may be."""
        size = len(view)
        while view:
            count = self._into(view)
            if not count:
                if may_end and len(view) == size:
                    return False
                raise BadFrame("it ended inside a chunk")
            view = view[count:]
        return True
