"""Digests of an evaluation's data on its host: sha256 over the manifest (path, size, sha256) of a folder or file.

Files are read once: their hashes are remembered by size, mtime_ns and inode. Links are followed, since data folders
are often made of them.
"""

import hashlib
import os
import stat
import time
from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

from remote_payload.agent import scratch
from remote_payload.agent.manifest import to_bytes, to_text

FRESH = 2_000_000_000
"""nanoseconds: a file changed so shortly before it was read is not remembered, for it may change within one tick"""
KEEP_EVERY = 5.0
"""seconds between two writings of the memory"""
moved_at = 0.0
"""when bytes of data were last read (monotonic)"""
_Memory = Dict[str, List[Any]]


def digest(paths: Dict[str, str], memory_file: str) -> Dict[str, Dict[str, Any]]:
    """name -> {"digest", "files", "bytes"}, or {"error"} for what is missing, unreadable or changes while it is read.

    `memory_file` is updated where it can be written.
    """
    remembered = (scratch.read_json(memory_file) or {}).get("files")
    memory: _Memory = remembered if isinstance(remembered, dict) else {}
    keeper = _Keeper(memory_file, memory)
    answer = {name: _digest_one(path, keeper) for name, path in paths.items()}
    keeper.keep()
    return answer


class _Keeper:
    """The memory, written now and then: who is interrupted in a large folder does not begin again."""

    def __init__(self, file: str, memory: _Memory) -> None:
        self._file = file
        self.memory = memory
        self._kept = dict(memory)
        self._kept_at = time.monotonic()

    def keep_at_times(self) -> None:
        if time.monotonic() - self._kept_at > KEEP_EVERY:
            self.keep()

    def keep(self) -> None:
        self._kept_at = time.monotonic()
        if self.memory == self._kept:
            return
        try:
            os.makedirs(os.path.dirname(self._file), mode=0o700, exist_ok=True)
            scratch.write_json(self._file, {"schema": 1, "files": self.memory})
            self._kept = dict(self.memory)
        except OSError:
            pass  # next time it is read again: slower, not wrong


def _digest_one(path: str, keeper: _Keeper) -> Dict[str, Any]:
    total = hashlib.sha256()
    files = size = 0
    try:
        for name, place in sorted(_files(to_bytes(path))):
            sha256, length = _hash(place, keeper.memory)
            keeper.keep_at_times()
            total.update(b"%s\0%d\0%s\n" % (name, length, sha256.encode("ascii")))
            files += 1
            size += length
    except OSError as error:
        return {"error": "%s: %s" % (ascii(os.fsdecode(error.filename or path))[1:-1], error.strerror)}
    except _Changed as changed:
        return {"error": "%s changes while it is read" % changed}
    return {"digest": total.hexdigest(), "files": files, "bytes": size}


class _Changed(Exception):
    pass


def _files(top: bytes) -> Iterator[Tuple[bytes, bytes]]:
    """(relative name, place) of every file below `top`; of `top` itself, with the name b"", when it is a file."""
    if not os.path.isdir(top):
        yield b"", top
        return
    seen: Set[Tuple[int, int]] = set()
    waiting = [b""]
    while waiting:
        folder = waiting.pop()
        place = os.path.join(top, folder)
        found = os.stat(place)
        if (found.st_dev, found.st_ino) in seen:
            continue  # links in a circle
        seen.add((found.st_dev, found.st_ino))
        for one in sorted(os.listdir(place)):
            name = os.path.join(folder, one)
            if os.path.isdir(os.path.join(top, name)):
                waiting.append(name)
            else:
                yield name, os.path.join(top, name)


def _hash(place: bytes, memory: _Memory) -> Tuple[str, int]:
    global moved_at
    key = to_text(os.path.realpath(place))
    began = time.time_ns()
    with open(os.open(place, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0) as file:
        before = _traits(file.fileno(), place)
        known = _recall(memory.get(key), before)
        if known:
            return known, before[0]
        digest = hashlib.sha256()
        buffer = bytearray(1 << 20)
        while True:
            count = file.readinto(buffer)
            if not count:
                break
            digest.update(memoryview(buffer)[:count])
            moved_at = time.monotonic()
        if _traits(file.fileno(), place) != before:
            raise _Changed(ascii(key))
    if began - before[1] > FRESH:
        memory[key] = [*before, digest.hexdigest()]
    else:
        memory.pop(key, None)
    return digest.hexdigest(), before[0]


def _recall(entry: Optional[List[Any]], traits: Tuple[int, int, int]) -> str:
    return str(entry[3]) if entry and tuple(entry[:3]) == traits else ""


def _traits(descriptor: int, place: bytes) -> Tuple[int, int, int]:
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(22, "is no file", place)
    return found.st_size, found.st_mtime_ns, found.st_ino
