"""Frames and the schema number: what crosses between controller and agent. The one module that both sides import.

A frame is one byte of kind, four bytes of big-endian length, and the payload:

    J  a JSON object in UTF-8: a request, progress, an answer or an error
    D  bytes of a stream (checkpoint, file)
    E  the stream's end (empty)
    B  a heartbeat (empty)

Standard library only, Python >= 3.8.
"""

import json
import struct
from typing import Any, Callable, Dict, Optional, Tuple, Union

SCHEMA = 1
MARK = b"\0orch1\0"
"""printed by the agent before its first frame: all before it is noise of the login shell"""
MAX_PAYLOAD = 64 * 1024 * 1024
CHUNK = 256 * 1024
"""bytes of a stream in one frame"""

JSON, DATA, END, BEAT = b"J", b"D", b"E", b"B"
_HEAD = struct.Struct(">cI")


class WireError(Exception):
    """The other side sent what is not a frame, or a newer schema than this side knows."""


def encode(kind: bytes, payload: Union[bytes, memoryview] = b"") -> bytes:
    """One frame as bytes. Raises WireError past MAX_PAYLOAD."""
    if len(payload) > MAX_PAYLOAD:
        raise WireError("a frame of %d bytes is past the limit of %d" % (len(payload), MAX_PAYLOAD))
    return b"".join((_HEAD.pack(kind, len(payload)), payload))


def encode_json(message: Dict[str, Any]) -> bytes:
    """One J frame. `schema` is added."""
    return encode(JSON, json.dumps(dict(message, schema=SCHEMA), separators=(",", ":")).encode("utf-8"))


def decode_json(payload: bytes) -> Dict[str, Any]:
    """The object in a J frame. Raises WireError for what isn't one, or has a newer schema."""
    try:
        message = json.loads(payload.decode("utf-8"))
    except (UnicodeDecodeError, ValueError) as error:
        raise WireError("not JSON: %s" % error) from None
    if not isinstance(message, dict) or not isinstance(message.get("schema"), int):
        raise WireError("a message without a schema number")
    if message["schema"] > SCHEMA:
        raise WireError("schema %d is newer than the %d known here: update orch" % (message["schema"], SCHEMA))
    return message


def read_exactly(read: Callable[[int], bytes], size: int) -> bytes:
    """`size` bytes from a raw reader; b"" at a clean end before the first byte. Raises WireError at an end inside."""
    parts = []
    missing = size
    while missing:
        part = read(missing)
        if not part:
            if missing == size:
                return b""
            raise WireError("the stream ended inside a frame")
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


def read_frame(read: Callable[[int], bytes]) -> Optional[Tuple[bytes, bytes]]:
    """The next (kind, payload), or None at the end of the stream. Raises WireError for anything that isn't a frame."""
    head = read_exactly(read, _HEAD.size)
    if not head:
        return None
    kind, size = _HEAD.unpack(head)
    if kind not in (JSON, DATA, END, BEAT) or size > MAX_PAYLOAD:
        raise WireError("not a frame: %r" % head)
    payload = read_exactly(read, size) if size else b""
    if size and not payload:
        raise WireError("the stream ended inside a frame")
    return kind, payload
