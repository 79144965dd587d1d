"""A shipment on its way in: WORKDIR/checkpoints/.incoming-IDENTITY/, which any later attempt takes up where this ends.

    lock      held by the one process that receives; it names itself in it
    attempt   the id of the attempt that last began; another one stops at its next chunk, also where locks do nothing
    journal   a line of JSON that says what is being shipped, then one line a chunk: its number and its sha256
    files/    the files in their full size; bytes count only where the journal has their chunk

A chunk is hashed before it is written, and hashed again when a later attempt takes the journal's word for it: what a
power cut took from the disk, or anybody else wrote, is found and sent again. So nothing needs a sync on the way.
"""

import errno
import hashlib
import json
import os
import shutil
import threading
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Optional, Sequence

from remote_payload.agent import chunks, lock, scratch
from remote_payload.agent.chunks import Chunk, Ranges
from remote_payload.agent.errors import AgentError
from remote_payload.agent.inflow import write_all

PREFIX = ".incoming-"
PATIENCE = 30.0
"""seconds for an earlier attempt to end: one whose link was cut lives on for the agent's 20 s of silence"""
TAKEN_OVER = "another attempt has taken over this shipment"


@contextmanager
def held(folder: str) -> Iterator[None]:
    """Be the only one who receives into this folder, which is made where it is missing. Raises AgentError, OSError."""
    place = os.path.join(folder, "lock")
    while True:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        with lock.held(place, "receiving a checkpoint", PATIENCE):
            if os.path.exists(place):  # else the one before has finished, and took the folder away
                yield
                return


def in_use(folder: str) -> bool:
    """Whether a living process receives into the folder."""
    try:
        with lock.held(os.path.join(folder, "lock"), "looking", 0.0):
            return False
    except AgentError:
        return True


class Incoming:
    """The files of one shipment as far as they have come. Made by the holder of the folder's lock."""

    def __init__(self, folder: str, files: Sequence[Dict[str, Any]], plan: str, size: int) -> None:
        """Take up what an earlier attempt left of the same plan; anything else that lies there is removed.

        Raises OSError.
        """
        self.folder = folder
        self.files = os.path.join(folder, "files")
        self.chunks = chunks.cut(files, size)
        self.bytes = sum(int(file["size"]) for file in files)
        self._attempt = os.urandom(8).hex()
        self._lock = threading.Lock()
        self._digests: Dict[int, bytes] = {}
        self._came: Dict[int, bytes] = {}
        scratch.write_json(os.path.join(folder, "attempt"), {"attempt": self._attempt})
        start = {"schema": 1, "plan": plan, "chunk": size, "files": list(files)}
        if self._read_journal(start):
            self._keep_what_is_whole()
        else:
            self._begin(start, files)
        self._journal = os.open(self._journal_path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    @property
    def _journal_path(self) -> str:
        return os.path.join(self.folder, "journal")

    def close(self) -> None:
        """Let go of the journal."""
        os.close(self._journal)

    # -- what is there -------------------------------------------------------------------------------------------

    @property
    def have(self) -> int:
        """Bytes that have come and were proven."""
        with self._lock:
            return sum(self.chunks[index].size for index in self._digests)

    def missing(self) -> Ranges:
        """The chunks that are still to come."""
        return chunks.to_ranges(chunk.number for chunk in self.chunks if chunk.number not in self._digests)

    def trees(self) -> Dict[str, str]:
        """For each file the digest over its chunks; all chunks have come."""
        found: Dict[str, List[bytes]] = {}
        for chunk in self.chunks:
            found.setdefault(chunk.path, []).append(self._digests[chunk.number])
        return {path: chunks.tree(digests) for path, digests in found.items()}

    def agrees(self, sent: Dict[str, Any]) -> bool:
        """Whether what came in this attempt is what the sender says it sent: {"chunks": ranges, "tree": digest}."""
        order = list(chunks.from_ranges(sent["chunks"], len(self.chunks)))
        came = [self._came.get(index, b"") for index in order]
        return set(order) >= set(self._came) and chunks.tree(came) == sent["tree"]

    # -- what comes ----------------------------------------------------------------------------------------------

    def take(self, index: int, data: memoryview, digest: bytes) -> bool:
        """Write a chunk that hashes to what its sender said; False for one that doesn't, which stays missing.

        Safe to call from several threads. Raises OSError, AgentError where another attempt has taken over.
        """
        if not 0 <= index < len(self.chunks) or len(data) != self.chunks[index].size:
            raise chunks.BadFrame("chunk %d of %d bytes" % (index, len(data)))
        if hashlib.sha256(data).digest() != digest:
            return False
        current = scratch.read_json(os.path.join(self.folder, "attempt"))
        if current is not None and current.get("attempt") != self._attempt:
            raise AgentError(TAKEN_OVER, kind="transfer")
        self._write(self.chunks[index], data)
        with self._lock:
            os.write(self._journal, ("%d %s\n" % (index, digest.hex())).encode("ascii"))
            self._digests[index] = self._came[index] = digest
        return True

    def _write(self, chunk: Chunk, data: memoryview) -> None:
        descriptor = os.open(os.path.join(self.files, chunk.path), os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            view, at = data, chunk.at
            while view:
                written = os.pwrite(descriptor, view, at)
                view, at = view[written:], at + written
        finally:
            os.close(descriptor)

    # -- how it begins -------------------------------------------------------------------------------------------

    def _read_journal(self, start: Dict[str, Any]) -> bool:
        try:
            with open(self._journal_path, "rb") as file:
                first, *lines = file.read().split(b"\n")
            if json.loads(first.decode("utf-8")) != start:
                return False
        except (OSError, ValueError):
            return False
        for line in lines[:-1]:  # what has no line end was cut while it was written
            index, _, digest = line.decode("ascii", "replace").partition(" ")
            if index.isdigit() and int(index) < len(self.chunks) and len(digest) == 2 * chunks.DIGEST:
                self._digests[int(index)] = bytes.fromhex(digest)
        return True

    def _keep_what_is_whole(self) -> None:
        kept = {index: digest for index, digest in self._digests.items() if self._hash(self.chunks[index]) == digest}
        self._digests = kept

    def _hash(self, chunk: Chunk) -> Optional[bytes]:
        try:
            descriptor = os.open(os.path.join(self.files, chunk.path), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return None
        try:
            return hashlib.sha256(os.pread(descriptor, chunk.size, chunk.at)).digest()
        finally:
            os.close(descriptor)

    def _begin(self, start: Dict[str, Any], files: Sequence[Dict[str, Any]]) -> None:
        shutil.rmtree(self.files, ignore_errors=True)  # an older writer's open files are then nobody's
        for one in files:
            place = os.path.join(self.files, one["path"])
            os.makedirs(os.path.dirname(place), mode=0o700, exist_ok=True)
            descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                os.ftruncate(descriptor, int(one["size"]))
                _set_aside_room(descriptor, int(one["size"]))
            finally:
                os.close(descriptor)
        temporary = self._journal_path + ".tmp"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            write_all(descriptor, memoryview(json.dumps(start).encode("utf-8") + b"\n"))
        finally:
            os.close(descriptor)
        os.replace(temporary, self._journal_path)


def _set_aside_room(descriptor: int, size: int) -> None:
    """Let the file system promise the room now, where it can: a full disk or quota then shows before a byte crosses.

    Called in libc itself: posix_fallocate would write to every block where the file system can't promise.
    """
    if not size:
        return
    import ctypes

    call = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
    if call is None:
        return
    call.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)
    if call(descriptor, 0, 0, size) and ctypes.get_errno() in (errno.ENOSPC, errno.EDQUOT):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
