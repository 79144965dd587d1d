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

_BYTE = frozenset((b"K", b"h", b"q", b"\x80"))
_FIXED = {
    b"J": struct.Struct("<i"), b"M": struct.Struct("<H"), b"G": struct.Struct(">d"), b"j": struct.Struct("<I"),
    b"r": struct.Struct("<I"), b"\x95": struct.Struct("<Q"),
}  # fmt: skip
_LENGTH = {size: struct.Struct(size) for size in ("<B", "<I", "<Q", "<i")}
_COUNTED: Dict[bytes, Tuple[str, struct.Struct]] = {}
for _kind, _codes in (
    ("text", {b"X": "<I", b"\x8c": "<B", b"\x8d": "<Q"}),
    ("bytes", {b"U": "<B", b"T": "<I", b"C": "<B", b"B": "<I", b"\x8e": "<Q", b"\x96": "<Q"}),
    ("integer", {b"\x8a": "<B", b"\x8b": "<i"}),
):
    _COUNTED.update((code, (_kind, _LENGTH[size])) for code, size in _codes.items())
_LINES = {b"I": 1, b"L": 1, b"F": 1, b"S": 1, b"V": 1, b"g": 1, b"p": 1, b"c": 2, b"i": 2}
_BARE = frozenset(bytes([code]) for code in b"(.012N\x88\x89t)\x85\x86\x87l]aed}sub\x81\x92Qo\x93\x94\x8f\x90\x91R")


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
        if code in _BARE:
            yield code, None
            if code == b".":
                return
        elif code in _BYTE:
            yield code, _exactly(stream, 1)[0]
        elif code in _COUNTED:
            yield code, _counted(stream, *_COUNTED[code])
        elif code in _FIXED:
            layout = _FIXED[code]
            yield code, layout.unpack(_exactly(stream, layout.size))[0]
        elif code in _LINES:
            yield code, _lines(stream, _LINES[code])
        elif not code:
            raise Torn("the pickle ends before its end mark")
        else:
            raise Refusal("opcode %r does not belong in a checkpoint" % code)
    raise Refusal("a pickle of more than %d operations" % MAX_OPERATIONS)


def _counted(stream: IO[bytes], kind: str, layout: struct.Struct) -> Any:
    (size,) = layout.unpack(_exactly(stream, layout.size))
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
        raise Torn("the pickle ends inside an operation")
    return data


def _skip(stream: IO[bytes], size: int) -> None:
    while size:
        passed = len(stream.read(min(size, KEPT)))
        if not passed:
            raise Torn("the pickle ends inside a string")
        size -= passed
