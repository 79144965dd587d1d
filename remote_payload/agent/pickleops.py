"""The operations of a pickle, one after the other, with every length checked and nothing executed.

Long strings are passed over instead of being read, so that a number that claims a terabyte costs nothing.
Source of the opcodes: PEP 307, PEP 3154, PEP 574 and CPython's pickletools.
"""

import struct
from typing import IO, Any, Dict, Iterator, Tuple

from remote_payload.agent.verdicts import Refusal, Torn

MAX_OPERATIONS = 20_000_000
MAX_LINE = 4096
MAX_INTEGER = 1024
"""bytes of an integer; random generators keep up to 2,500 bytes as many small ones"""
KEPT = 64 * 1024
"""bytes: longer strings become an Elided"""

_FIXED = {
    b"J": "<i", b"K": "<B", b"M": "<H", b"G": ">d", b"h": "<B", b"j": "<I", b"q": "<B", b"r": "<I", b"\x80": "<B",
    b"\x95": "<Q",
}  # fmt: skip
_TEXT = {b"X": "<I", b"\x8c": "<B", b"\x8d": "<Q"}
_BYTES = {b"U": "<B", b"T": "<I", b"C": "<B", b"B": "<I", b"\x8e": "<Q", b"\x96": "<Q"}
_INTEGERS = {b"\x8a": "<B", b"\x8b": "<i"}
_LINES = b"ILFSVgpci"
_BARE = b"(.012N\x88\x89t)\x85\x86\x87l]aed}sub\x81\x92Qo\x93\x94\x8f\x90\x91R"
_KIND: Dict[bytes, Tuple[str, Any]] = {}
for _table, _name in ((_FIXED, "fixed"), (_TEXT, "text"), (_BYTES, "bytes"), (_INTEGERS, "integer")):
    _KIND.update((code, (_name, struct.Struct(layout))) for code, layout in _table.items())
_KIND.update((bytes([code]), ("line", None)) for code in _LINES)
_KIND.update((bytes([code]), ("bare", None)) for code in _BARE)


class Elided:
    """A string of `size` bytes that was passed over."""

    __slots__ = ("size",)

    def __init__(self, size: int) -> None:
        self.size = size


def operations(stream: IO[bytes]) -> Iterator[Tuple[bytes, Any]]:
    """(opcode, argument) up to and including STOP. Raises Torn where the stream ends before, Refusal for what no
    pickler of a checkpoint writes: unknown opcodes, out-of-band buffers, registered extensions, endless numbers."""
    read = stream.read
    for _ in range(MAX_OPERATIONS):
        code = read(1)
        try:
            kind, layout = _KIND[code]
        except KeyError:
            if not code:
                raise Torn("the pickle ends before its end mark") from None
            raise Refusal("opcode %r does not belong in a checkpoint" % code) from None
        if kind == "bare":
            yield code, None
            if code == b".":
                return
        elif kind == "fixed":
            raw = read(layout.size)
            if len(raw) != layout.size:
                raise Torn("the pickle ends inside an operation")
            yield code, layout.unpack(raw)[0]
        elif kind == "line":
            yield code, _lines(stream, 2 if code in b"ci" else 1)
        else:
            yield code, _counted(stream, kind, layout)
    raise Refusal("a pickle of more than %d operations" % MAX_OPERATIONS)


def _counted(stream: IO[bytes], kind: str, layout: struct.Struct) -> Any:
    raw = stream.read(layout.size)
    if len(raw) != layout.size:
        raise Torn("the pickle ends inside an operation")
    (size,) = layout.unpack(raw)
    if kind == "integer":
        if not 0 <= size <= MAX_INTEGER:
            raise Refusal("an integer of %d bytes" % size)
        return int.from_bytes(_exactly(stream, size), "little", signed=True)
    if size > KEPT:
        _skip(stream, size)
        return Elided(size)
    data = _exactly(stream, size)
    if kind == "bytes":
        return data
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise Refusal("a text that is not UTF-8") from None


def _lines(stream: IO[bytes], count: int) -> Any:
    found = []
    for _ in range(count):
        line = stream.readline(MAX_LINE)
        if not line.endswith(b"\n"):
            if len(line) == MAX_LINE:
                raise Refusal("a line of more than %d bytes" % MAX_LINE)
            raise Torn("the pickle ends inside an operation")
        try:
            found.append(line[:-1].decode("utf-8"))
        except UnicodeDecodeError:
            raise Refusal("a name that is not UTF-8") from None
    return tuple(found) if count > 1 else found[0]


def _exactly(stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size)
    if len(data) != size:
        raise Torn("the pickle ends inside a string")
    return data


def _skip(stream: IO[bytes], size: int) -> None:
    while size:
        passed = len(stream.read(min(size, KEPT)))
        if not passed:
            raise Torn("the pickle ends inside a string")
        size -= passed
