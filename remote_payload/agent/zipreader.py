"""The directory of a torch.save archive, read from the file's end: what is there, where, how long, with which CRC.

Its own reader instead of `zipfile`, because it is stricter (it refuses what torch.save never writes, so that no other
reader can see something else in the same bytes), accepts archives whose CRCs were switched off, and reads nothing but
the directory. Sources: PKWARE APPNOTE 6.3.10, sections 4.3 and 4.5.3.
"""

import struct
from typing import Dict, List, NamedTuple, Tuple

from remote_payload.agent.openfile import OpenFile
from remote_payload.agent.verdicts import Refusal, Torn

MAX_DIRECTORY = 64 * 1024 * 1024
MAX_RECORDS = 400_000
_END = struct.Struct("<4s4H2IH")
_LOCATOR = struct.Struct("<4sIQI")
_END64 = struct.Struct("<4sQ2H2I4Q")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_LOCAL = struct.Struct("<4s5H3I2H")
_MAX16, _MAX32 = 0xFFFF, 0xFFFFFFFF
_FLAGS_REFUSED = {0x0001: "encrypted", 0x0020: "patched", 0x0040: "strongly encrypted", 0x2000: "masked"}


class Record(NamedTuple):
    """A stored member: offset of its local header, size of its data in bytes, CRC-32, where the next thing begins."""

    header: int
    size: int
    crc: int
    limit: int


class Archive(NamedTuple):
    """A whole archive: the folder that all its records lie in, and the records by their name inside it."""

    top: str
    records: Dict[str, Record]
    crc_off: bool
    """every CRC field is zero: the trainer switched them off, and they prove nothing"""


def read_archive(file: OpenFile) -> Archive:
    """The directory of `file`. Raises Torn for a file that was not finished, Refusal for one torch.save never wrote."""
    count, offset, size = _find_directory(file)
    top, found = _read_directory(file.read(offset, size), count)
    records = _placed(found, offset)
    if "data.pkl" not in records:
        raise Torn("the archive was closed without data.pkl: the save failed before it wrote anything")
    return Archive(top, records, not any(record.crc for record in records.values()))


def data_offset(file: OpenFile, archive: Archive, name: str) -> int:
    """Where a record's bytes begin, from its local header, which must agree with the directory. Raises Refusal."""
    record = archive.records[name]
    head = _LOCAL.unpack(file.read(record.header, _LOCAL.size))
    signature, _, flags, method = head[:4]
    name_size, extra_size = int(head[9]), int(head[10])
    begin = record.header + _LOCAL.size + name_size + extra_size
    if signature != b"PK\3\4" or begin + record.size > record.limit:
        raise Refusal("record %r is not where the directory says" % name)
    if _refused(flags) or method != 0:
        raise Refusal("record %r is compressed or encrypted in its own header only" % name)
    if file.read(record.header + _LOCAL.size, name_size) != ("%s/%s" % (archive.top, name)).encode("utf-8"):
        raise Refusal("record %r has another name in its own header" % name)
    return begin


def _find_directory(file: OpenFile) -> Tuple[int, int, int]:
    """(number of records, offset, size) of the directory, which must end exactly where the end records begin."""
    if file.size < _END.size:
        raise Torn("%d bytes: too short for an archive" % file.size)
    tail = file.read(max(0, file.size - 98), min(98, file.size))
    end = _END.unpack(tail[-_END.size :])
    if end[0] != b"PK\5\6":
        cut = tail.rfind(b"PK\5\6") > len(tail) - _END.size
        raise Torn("its end record is cut short" if cut else "it has no end record: the save did not reach its end")
    _, disk, first_disk, here, count, size, offset, comment = end
    if disk or first_disk or here != count or comment:
        raise Refusal("an archive in several parts or with a comment")
    ends_at = file.size - _END.size
    if len(tail) == 98 and tail[56:60] == b"PK\6\7":
        _, disk64, at64, disks = _LOCATOR.unpack(tail[56:76])
        signature, length, _, _, disk_a, disk_b, here, count, size, offset = _END64.unpack(tail[:56])
        ends_at = file.size - 98
        if signature != b"PK\6\6" or length != 44 or at64 != ends_at:
            raise Refusal("the 64-bit end record is not where it is said to be; bytes before the archive, or after it?")
        if disk64 or disks > 1 or disk_a or disk_b or here != count:
            raise Refusal("an archive in several parts")
    elif _MAX16 in (here, count) or _MAX32 in (size, offset):
        raise Refusal("a 64-bit archive without its 64-bit end record")
    if offset + size != ends_at:
        raise Refusal("%d bytes more than the archive accounts for" % (ends_at - offset - size))
    if size > MAX_DIRECTORY or count > MAX_RECORDS:
        raise Refusal("a directory of %d records and %d bytes is past what orch reads" % (count, size))
    return count, offset, size


def _read_directory(data: bytes, count: int) -> Tuple[str, Dict[str, Tuple[int, int, int, int]]]:
    """(top folder, name inside it -> (header offset, size, CRC, shortest length of its local header))."""
    top = ""
    found: Dict[str, Tuple[int, int, int, int]] = {}
    at = 0
    for _ in range(count):
        if at + _CENTRAL.size > len(data):
            raise Refusal("the directory is shorter than its %d records" % count)
        head = _CENTRAL.unpack_from(data, at)
        signature, _, _, flags, method, _, _, crc, packed, size, name_size, extra_size, comment_size = head[:13]
        disk, header = head[13], head[16]
        name_at = at + _CENTRAL.size
        at = name_at + name_size + extra_size + comment_size
        if signature != b"PK\1\2" or at > len(data):
            raise Refusal("the directory is damaged")
        folder, name = _record_name(data[name_at : name_at + name_size])
        extra = data[name_at + name_size : name_at + name_size + extra_size]
        size, packed, header = _wide(extra, size, packed, header, name)
        _check_record(name, flags, method, size, packed, disk)
        if found and folder != top:
            raise Refusal("record %r lies outside %r" % (folder + "/" + name, top))
        if name in found:
            raise Refusal("two records named %r" % name)
        top = folder
        found[name] = (header, size, crc, _LOCAL.size + name_size)
    if at != len(data):
        raise Refusal("%d bytes in the directory belong to no record" % (len(data) - at))
    return top, found


def _record_name(raw: bytes) -> Tuple[str, str]:
    try:
        folder, _, name = raw.decode("utf-8").partition("/")
    except UnicodeDecodeError:
        raise Refusal("record %r is not named in UTF-8" % raw) from None
    parts = name.split("/")
    if not folder or folder == ".." or "\0" in name or "\\" in name or any(part in ("", ".", "..") for part in parts):
        raise Refusal("record %r lies outside the archive's folder" % (folder + "/" + name))
    return folder, name


def _wide(extra: bytes, size: int, packed: int, header: int, name: str) -> Tuple[int, int, int]:
    """Sizes and offset of which the 64-bit extra field holds those that are 0xFFFFFFFF, in this order."""
    if _MAX32 not in (size, packed, header):
        return size, packed, header
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        if kind == 1:
            field = extra[at + 4 : at + 4 + length]
            wide = list(struct.unpack("<%dQ" % (len(field) // 8), field[: len(field) // 8 * 8]))
            try:
                size, packed, header = (wide.pop(0) if value == _MAX32 else value for value in (size, packed, header))
            except IndexError:
                break
            return size, packed, header
        at += 4 + length
    raise Refusal("record %r lacks its 64-bit sizes" % name)


def _check_record(name: str, flags: int, method: int, size: int, packed: int, disk: int) -> None:
    refused = _refused(flags)
    if refused:
        raise Refusal("record %r is %s" % (name, refused))
    if method != 0 or size != packed:
        raise Refusal("record %r is compressed; torch.save never compresses" % name)
    if disk not in (0, _MAX16):
        raise Refusal("record %r lies in another part" % name)


def _refused(flags: int) -> str:
    return next((word for bit, word in _FLAGS_REFUSED.items() if flags & bit), "")


def _placed(found: Dict[str, Tuple[int, int, int, int]], directory: int) -> Dict[str, Record]:
    """Records with their limits; each must end before the next begins, and the first begin at byte 0."""
    order: List[Tuple[int, str]] = sorted((entry[0], name) for name, entry in found.items())
    if order and order[0][0] != 0:
        raise Refusal("the archive begins at byte %d, not at 0: torch can't read that either" % order[0][0])
    records: Dict[str, Record] = {}
    for position, (header, name) in enumerate(order):
        limit = order[position + 1][0] if position + 1 < len(order) else directory
        _, size, crc, head = found[name]
        if header + head + size > limit:
            raise Refusal("record %r reaches into the next one" % name)
        records[name] = Record(header, size, crc, limit)
    return records
