"""safetensors: eight bytes of length, a JSON header, the tensors one after the other without a gap.

Source of the layout: the safetensors README, "Format". Elements are little-endian and rows come first.
"""

import json
import struct
from typing import Any, Dict, List, NamedTuple, Tuple

from remote_payload.agent.openfile import OpenFile
from remote_payload.agent.verdicts import Refusal, Torn

MAX_HEADER = 100 * 1024 * 1024
"""the limit of the format's own readers"""
_MAX_READ = 8 * 1024 * 1024


class Header(NamedTuple):
    """Names of the tensors, the metadata, the header's own bytes."""

    tensors: List[str]
    metadata: Dict[str, str]
    raw: bytes


def read_header(file: OpenFile) -> Header:
    """The header of a whole file. Raises Torn where the file is shorter than it says, Refusal where it is malformed."""
    if file.size < 8:
        raise Torn("%d bytes: too short for a safetensors file" % file.size)
    (length,) = struct.unpack("<Q", file.read(0, 8))
    if length == 0:
        raise Torn("zeros where a safetensors header begins")
    if 8 + length > file.size:
        raise Torn("it ends inside its header")
    if length > _MAX_READ:
        raise Refusal("a safetensors header of %d bytes" % length)
    raw = b"".join(file.pieces(8, length))
    try:
        header = json.loads(raw.decode("utf-8"))
        metadata = header.pop("__metadata__", {})
        end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
        if type(end) is not int or end < 0 or not isinstance(metadata, dict):
            raise TypeError("not a header")
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, RecursionError):
        if not raw.strip(b"\0"):
            raise Torn("zeros where a safetensors header should be") from None
        raise Refusal("a malformed safetensors header") from None
    expected = 8 + length + end
    if file.size < expected:
        raise Torn("it has %d of %d bytes" % (file.size, expected))
    if file.size > expected:
        raise Refusal("%d bytes after the last tensor" % (file.size - expected))
    return Header(list(header), metadata, raw)


def write_header(tensors: List[Tuple[str, str, Tuple[int, ...], int]], metadata: Dict[str, str]) -> bytes:
    """The beginning of a file whose tensors (name, dtype code, shape, bytes) follow in this order. Raises Refusal."""
    header: Dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    at = 0
    for name, code, shape, size in tensors:
        header[name] = {"dtype": code, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER:
        raise Refusal("a header of %d bytes, more than safetensors allows" % len(text))
    return struct.pack("<Q", len(text)) + text
