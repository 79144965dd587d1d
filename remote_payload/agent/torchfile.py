"""A torch.save file, proven whole from its structure, and what it holds: step, model, settings, placeholders.

Two forms: the zip archive (torch >= 1.6) and the stream of pickles that came before it. Neither is judged by time.
"""

import hashlib
import io
import struct
import zlib
from typing import IO, Any, Dict, List, NamedTuple, Optional, Tuple

from remote_payload.agent.openfile import OpenFile
from remote_payload.agent.tensors import UNDERSTOOD, Storages, Tensor
from remote_payload.agent.unpickler import Unpickler
from remote_payload.agent.verdicts import Refusal, Torn
from remote_payload.agent.zipreader import Archive, data_offset, read_archive

MAX_PICKLE = 512 * 1024 * 1024
_IN_MEMORY = 8 * 1024 * 1024
_SMALL = 2 * 1024 * 1024
"""bytes of a pickle up to which one pass is enough: about 8,000 tensors"""
STEP_KEYS = ("step", "global_step", "iter_num", "iteration", "iter", "current_step", "train_step")
_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_LEGACY_PROTOCOL = 1001


class Extent(NamedTuple):
    """Where a storage's bytes lie. `crc` is None where the file holds none."""

    offset: int
    size: int
    crc: Optional[int]


class TorchFile:
    """A whole torch.save file. `top` is its content with tensors as `Tensor` and classes as placeholders."""

    def __init__(self, file: OpenFile) -> None:
        """Raises Torn for a file that isn't whole, Refusal for one that orch doesn't read."""
        self.file = file
        self._archive: Optional[Archive] = None
        self._extents: Dict[str, Extent] = {}
        self.big_endian = False
        start = _beginning(file)
        storages = Storages()
        if start.startswith(b"PK\3\4"):
            self.top, machine = self._read_archive(storages)
        elif start.startswith(b"\x80"):
            self.top, machine = self._read_legacy(storages)
        elif start[257:262] == b"ustar":
            raise Refusal("torch's tar format from before 0.1.10: load and save it once with an old torch")
        else:
            raise Torn("not a torch file: it begins with %r" % start[:8])
        self.placeholders: List[str] = sorted(machine.seen)
        self.step = _step(self)

    def extent(self, key: str) -> Extent:
        """Where the bytes of a storage lie. Raises Refusal where the two headers of its record disagree."""
        if self._archive is None:
            return self._extents[key]
        record = self._archive.records["data/" + key]
        crc = None if self._archive.crc_off else record.crc
        return Extent(data_offset(self.file, self._archive, "data/" + key), record.size, crc)

    def records(self) -> List[Tuple[str, Extent]]:
        """Everything in the file that has a CRC, in the order in which it lies there. Raises as `extent` does."""
        if self._archive is None or self._archive.crc_off:
            return []
        names = sorted(self._archive.records.items(), key=lambda item: item[1].header)
        return [
            (name, Extent(data_offset(self.file, self._archive, name), record.size, record.crc))
            for name, record in names
        ]

    def position(self, key: str) -> int:
        """Orders storages as they lie in the file, without a read."""
        return self._extents[key].offset if self._archive is None else self._archive.records["data/" + key].header

    def _read_archive(self, storages: Storages) -> Any:
        archive = self._archive = read_archive(self.file)
        pickled = archive.records["data.pkl"]
        if pickled.size > MAX_PICKLE:
            raise Refusal("data.pkl has %d bytes" % pickled.size)
        begin = data_offset(self.file, archive, "data.pkl")
        digest = hashlib.sha256()
        crc = 0
        for piece in self.file.pieces(begin, pickled.size):
            crc = zlib.crc32(piece, crc)
            digest.update(piece)
        if crc != pickled.crc and not archive.crc_off:
            raise Torn("data.pkl does not fit its CRC: two saves are mixed in the file")
        self.big_endian = self._byteorder(archive) == b"big"
        stream = _stream(self.file, begin, pickled.size)
        machine = Unpickler(stream, UNDERSTOOD, storages.persistent, small=pickled.size <= _SMALL)
        top = machine.load()
        _check_storages(storages, archive)
        self.identity = _identity(self.file, digest, archive)
        return top, machine

    def _byteorder(self, archive: Archive) -> bytes:
        if "byteorder" not in archive.records:
            return b"little"  # before torch 2.1, and then always so on the machines that train
        if archive.records["byteorder"].size > 16:
            raise Refusal("a byteorder record of %d bytes" % archive.records["byteorder"].size)
        found = self.file.read(data_offset(self.file, archive, "byteorder"), archive.records["byteorder"].size)
        if found not in (b"little", b"big"):
            raise Refusal("the byte order %r" % found)
        return found

    def _read_legacy(self, storages: Storages) -> Any:
        stream = _stream(self.file, 0, self.file.size)
        header = Unpickler(stream, {}, storages.persistent)
        if header.load() != _LEGACY_MAGIC:
            raise Refusal("a pickle, but not one by torch.save")
        protocol, system = header.load(), header.load()
        if protocol != _LEGACY_PROTOCOL or not isinstance(system, dict):
            raise Refusal("a torch file of the unknown protocol %r" % (protocol,))
        self.big_endian = system.get("little_endian") is False
        machine = Unpickler(stream, UNDERSTOOD, storages.persistent)
        top, keys = machine.load(), machine.load()
        if not isinstance(keys, list) or any(not isinstance(key, str) for key in keys):
            raise Refusal("its list of storages is malformed")
        if set(keys) != set(storages.by_key) or len(keys) != len(set(keys)):
            raise Refusal("its list of storages differs from those that it names")
        digest = hashlib.sha256(self.file.read(0, min(stream.tell(), _IN_MEMORY)))
        self._extents = _walk_storages(self.file, stream.tell(), keys, storages, ">q" if self.big_endian else "<q")
        digest.update(repr((self.file.stamp, "legacy")).encode("utf-8"))
        self.identity = digest.hexdigest()
        return top, machine


def _beginning(file: OpenFile) -> bytes:
    if not file.size:
        raise Torn("an empty file")
    start = file.read(0, min(file.size, 512))
    if not start.strip(b"\0"):
        raise Torn("zeros where a torch file begins: power loss, or space reserved before it was written")
    return start


def _stream(file: OpenFile, offset: int, size: int) -> IO[bytes]:
    if size <= _IN_MEMORY:
        return io.BytesIO(b"".join(file.pieces(offset, size)))
    return io.BufferedReader(_Window(file, offset, size), 256 * 1024)


class _Window(io.RawIOBase):
    """A range of an open file as a seekable stream of its own."""

    def __init__(self, file: OpenFile, offset: int, size: int) -> None:
        super().__init__()
        self._file = file
        self._offset = offset
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, position: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = base + position
        return self._at

    def readinto(self, buffer: Any) -> int:
        size = max(0, min(len(buffer), self._size - self._at))
        at = 0
        for piece in self._file.pieces(self._offset + self._at, size):
            buffer[at : at + len(piece)] = piece
            at += len(piece)
        self._at += size
        return size


def _check_storages(storages: Storages, archive: Archive) -> None:
    """Every storage that data.pkl names has its record, of the declared size."""
    missing = [key for key in storages.by_key if "data/" + key not in archive.records]
    if missing:
        raise Torn(
            "%d of %d storages are missing, first data/%s: the save was stopped and closed its archive"
            % (len(missing), len(storages.by_key), missing[0])
        )
    for key, storage in storages.by_key.items():
        found = archive.records["data/" + key].size
        if found != storage.size:
            raise Torn("storage data/%s has %d bytes where data.pkl says %d" % (key, found, storage.size))


def _identity(file: OpenFile, digest: Any, archive: Archive) -> str:
    """Equal exactly when the content is: records with sizes and CRCs, and data.pkl whole.

    The archive's folder and serialization_id follow from the file's name, so they are left out. Without CRCs the
    file's own stamp takes their place.
    """
    for name in sorted(archive.records):
        if name != ".data/serialization_id":
            record = archive.records[name]
            digest.update(("\0%s\0%d\0%d" % (name, record.size, record.crc)).encode("utf-8"))
    if archive.crc_off:
        digest.update(repr(file.stamp).encode("utf-8"))
    return str(digest.hexdigest())


def _walk_storages(file: OpenFile, at: int, keys: List[Any], storages: Storages, layout: str) -> Dict[str, Extent]:
    """The storages after a legacy file's pickles: a count of elements, then the bytes, in the order of `keys`."""
    extents: Dict[str, Extent] = {}
    for position, key in enumerate(keys):
        storage = storages.by_key[key]
        if at + 8 + storage.size > file.size:
            raise Torn("it ends in storage %d of %d (torch's format before 1.6)" % (position + 1, len(keys)))
        (elements,) = struct.unpack(layout, file.read(at, 8))
        if elements * storage.dtype.size != storage.size:
            raise Refusal("storage %r has %d elements where the pickle says otherwise" % (key, elements))
        extents[key] = Extent(at + 8, storage.size, None)
        at += 8 + storage.size
    if at != file.size:
        raise Refusal("%d bytes after the last storage" % (file.size - at))
    return extents


def _step(torch: TorchFile) -> Optional[int]:
    """The training step that the file itself names, as a number or as a tensor with one integer."""
    if not isinstance(torch.top, dict):
        return None
    for key in STEP_KEYS:
        value = torch.top.get(key)
        if isinstance(value, Tensor) and value.elements == 1 and value.dtype.name in ("int64", "int32"):
            raw = torch.file.read(torch.extent(value.storage.key).offset + value.start, value.dtype.size)
            value = int.from_bytes(raw, "big" if torch.big_endian else "little", signed=True)
        if type(value) is int and value >= 0:
            return value
    return None
