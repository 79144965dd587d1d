"""The bytes that leave the training box: exactly what evaluation needs of one checkpoint, checked while it is read.

`ship="model"` gives one safetensors file made on the way out of a torch file, or the needed files of a folder;
`ship="whole"` gives every file byte for byte. Nothing is written here, and memory does not grow with the checkpoint.
"""

import os
import zlib
from functools import partial
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from remote_payload.agent import layouts
from remote_payload.agent.errors import AgentError
from remote_payload.agent.gather import IN_MEMORY, gathered
from remote_payload.agent.modelplan import LISTED, Plan
from remote_payload.agent.openfile import OpenFile
from remote_payload.agent.proofs import Member, Proof, whole_members
from remote_payload.agent.tensors import Tensor
from remote_payload.agent.torchfile import Extent, TorchFile
from remote_payload.agent.tree import Tree
from remote_payload.agent.verdicts import Hostile, Refusal, Torn
from remote_payload.agent.wire import CHUNK

MODEL_FILE = "model.safetensors"


class Unit(NamedTuple):
    """Bytes of a shipment that are proven together. `part(start, stop)` is there where a part can be read alone."""

    size: int
    all: Callable[[], Iterator[bytes]]
    part: Optional[Callable[[int, int], Iterator[bytes]]]


class Source:
    """A checkpoint open for shipping. `files` are sent one after the other, in their order; `size` is their sum."""

    def __init__(self, proof: Proof, plan: Optional[Plan], members: List[Member]) -> None:
        self._proof = proof
        self._plan = plan
        self._members = members
        self.identity = proof.identity
        self.step = proof.step
        self.stripped: List[str] = plan.stripped if plan else []
        self.aliases: Dict[str, str] = plan.aliases if plan else {}
        self.placeholders: List[str] = proof.torch.placeholders[:LISTED] if proof.torch else []
        self.config = plan.config if plan else any(member.name == "config.json" for member in members)
        self.files: List[Dict[str, Any]] = (
            [{"path": MODEL_FILE, "size": plan.size}]
            if plan
            else [{"path": member.name, "size": member.file.size} for member in members]
        )
        self.size = sum(int(file["size"]) for file in self.files)

    def chunks(self, start: int = 0, stop: Optional[int] = None) -> Iterator[bytes]:
        """The bytes [start, stop), in pieces of at most CHUNK. Raises as `pieces` does."""
        for _, piece in self.pieces([(start, self.size if stop is None else stop)]):
            yield from (bytes(piece[at : at + CHUNK]) for at in range(0, len(piece), CHUNK))

    def pieces(self, wanted: Sequence[Tuple[int, int]]) -> Iterator[Tuple[int, memoryview]]:
        """(offset, bytes) of the ranges [start, stop) of all files one behind the other; ranges ascend and don't touch.

        A record of which only a part is wanted is read whole all the same: its CRC covers all of it, and a shipment
        that is taken up again proves every record that it takes bytes from. Others are not read.
        Raises AgentError: "torn" where a record does not fit its CRC (what came before is then void), "transfer".
        """
        try:
            yield from _wanted(self._units(), wanted)
        except Torn as problem:
            raise self._void(str(problem), "torn") from None
        except Refusal as problem:  # its directory hid what a record's own header says
            raise self._void(str(problem), "torn") from None
        except OSError as error:
            raise self._void("it can't be read: %s" % error.strerror) from None
        if self.changed():
            raise self._void("")

    def close(self) -> None:
        """Close every file."""
        self._proof.close()
        for member in self._members:
            member.file.close()

    @property
    def header(self) -> bytes:
        """What is made here and not read: the beginning of the safetensors file."""
        return self._plan.header if self._plan is not None else b""

    def _units(self) -> Iterator[Unit]:
        torch = self._proof.torch
        if self._plan is not None and torch is not None:
            header = self._plan.header
            yield Unit(len(header), lambda: iter([header]), None)
            yield from _model_units(torch, self._plan.order)
            return
        for member in self._members:
            if torch is not None and torch.file is member.file:
                yield from _record_units(torch)
            else:
                yield _plain_unit(member.file, 0, member.file.size)

    def changed(self) -> List[str]:
        """Names of files that are no longer what they were when they were opened."""
        return self._proof.changed() + [member.name for member in self._members if member.file.changed()]

    def _void(self, reason: str, kind: str = "transfer") -> AgentError:
        changed = self.changed()
        if changed:
            return AgentError("%s changed while it was read" % changed[0], "Run the command again", "transfer")
        return AgentError("torn: %s" % reason, "An older checkpoint may be whole", kind)


def open_source(
    root: str,
    path: str,
    *,
    ship: str = "model",
    model_key: Optional[str] = None,
    identity: Optional[str] = None,
    layout: Optional[str] = None,
) -> Source:
    """Prove the checkpoint at `path` below `root` once more and hold it open for shipping.

    Raises AgentError: "transfer" where it is gone, torn, or no longer the one named by `identity`; "refused" where
    its model can't be taken out; "config" for a wrong root, layout or `ship`.
    """
    if ship not in ("model", "whole"):
        raise AgentError("ship: %r is neither model nor whole" % ship, kind="config")
    tree = Tree(root)
    try:
        proof = layouts.prove(tree, path, layout)
    except Torn as problem:
        raise AgentError("torn: %s: %s" % (path, problem), "An older checkpoint may be whole", "transfer") from None
    except Refusal as problem:
        raise AgentError("%s: %s" % (path, problem), kind="refused") from None
    except OSError as error:
        raise AgentError("%s: %s" % (path, error.strerror), "Was it rotated away? Run it again", "transfer") from None
    try:
        if identity and proof.identity != identity:
            raise AgentError("%s is not the checkpoint that was chosen any more" % path, "Run it again", "transfer")
        return _source(tree, path, proof, ship, model_key)
    except Refusal as problem:
        proof.close()
        raise AgentError("%s: %s" % (path, problem), proof.hint or "`ship: whole` sends the file", "refused") from None
    except BaseException:
        proof.close()
        raise


def ship_bytes(tree: Tree, path: str, proof: Proof, model_key: Optional[str] = None) -> int:
    """Bytes that evaluation needs of a proven checkpoint. Raises Refusal where its model can't be taken out, and of
    these Hostile where that lies in the file and not in what is asked of it."""
    if proof.refused:
        raise (Hostile if proof.unread else Refusal)(proof.refused)
    if proof.torch is None:
        return sum(member.file.size for member in proof.members)
    return Plan(proof.torch, model_key or proof.model_key, _source_name(tree, path)).size


def _source(tree: Tree, path: str, proof: Proof, ship: str, model_key: Optional[str]) -> Source:
    if ship == "whole":
        if tree.is_folder(path):
            return Source(proof, None, whole_members(tree, path))
        return Source(proof, None, proof.members)
    if proof.refused:
        raise Refusal(proof.refused)
    if proof.torch is None:
        return Source(proof, None, proof.members)
    return Source(proof, Plan(proof.torch, model_key or proof.model_key, _source_name(tree, path)), proof.members)


def _source_name(tree: Tree, path: str) -> str:
    return os.fsencode(os.path.join(tree.root, path)).decode("utf-8", "replace")


def _model_units(torch: TorchFile, order: List[Tuple[str, Tensor]]) -> Iterator[Unit]:
    """The tensors in their order; those that look into one storage are one unit."""
    at = 0
    while at < len(order):
        first = order[at][1]
        group: List[Tensor] = []
        while at < len(order) and order[at][1].storage.key == first.storage.key and order[at][1].dtype == first.dtype:
            group.append(order[at][1])
            at += 1
        group = [tensor for tensor in group if tensor.elements]
        if group:
            yield _group_unit(torch, group)


def _group_unit(torch: TorchFile, group: List[Tensor]) -> Unit:
    key, dtype = group[0].storage.key, group[0].dtype

    def read() -> Iterator[bytes]:
        pieces = _storage_pieces(torch, key, group)
        return _little_endian(pieces, dtype.unit) if torch.big_endian and dtype.unit > 1 else pieces

    return Unit(sum(tensor.size for tensor in group), read, None)


def _storage_pieces(torch: TorchFile, key: str, group: List[Tensor]) -> Iterator[bytes]:
    """The group's tensors, which look into one storage, in their order; the storage is read once wherever it can be."""
    extent, file = torch.extent(key), torch.file
    if _in_sequence(group):
        yield from _sequential(file, "data/" + key, extent, group)
        return
    if extent.size <= IN_MEMORY:
        memory = memoryview(b"".join(_all_checked(file, "data/" + key, extent)))
        for tensor in group:
            yield from gathered(tensor, lambda offset, size: memory[offset : offset + size])
        return
    for _ in _all_checked(file, "data/" + key, extent):
        pass  # views in no order of a large storage: once for its CRC, then the views
    for tensor in group:
        if tensor.contiguous:
            yield from file.pieces(extent.offset + tensor.start, tensor.size)
        else:
            yield from gathered(tensor, lambda offset, size: file.held(extent.offset + offset, size))


def _in_sequence(group: List[Tensor]) -> bool:
    end = 0
    for tensor in group:
        if not tensor.contiguous or tensor.start < end:
            return False
        end = tensor.start + tensor.size
    return True


def _sequential(file: OpenFile, name: str, extent: Extent, group: List[Tensor]) -> Iterator[bytes]:
    """Contiguous tensors one behind the other, cut out of one pass over their storage."""
    if extent.crc is None:
        for tensor in group:
            yield from file.pieces(extent.offset + tensor.start, tensor.size)
        return
    at = position = 0
    for piece in _all_checked(file, name, extent):
        end = at + len(piece)
        while position < len(group) and group[position].start < end:
            start, stop = group[position].start, group[position].start + group[position].size
            yield piece[max(start, at) - at : min(stop, end) - at]
            if stop > end:
                break
            position += 1
        at = end


def _all_checked(file: OpenFile, name: str, extent: Extent) -> Iterator[bytes]:
    """A whole record in pieces. Raises Torn after the last one where its CRC does not fit."""
    crc = 0
    for piece in file.pieces(extent.offset, extent.size):
        if extent.crc is not None:
            crc = zlib.crc32(piece, crc)
        yield piece
    if extent.crc is not None and crc != extent.crc:
        raise Torn("record %s does not fit its CRC" % name)


def _record_units(torch: TorchFile) -> Iterator[Unit]:
    """The file byte for byte, each record a unit that is checked against its CRC."""
    at = 0
    for name, extent in torch.records():
        yield _plain_unit(torch.file, at, extent.offset - at)
        yield Unit(extent.size, partial(_all_checked, torch.file, name, extent), None)
        at = extent.offset + extent.size
    yield _plain_unit(torch.file, at, torch.file.size - at)


def _plain_unit(file: OpenFile, offset: int, size: int) -> Unit:
    """Bytes without a CRC: any part of them can be read by itself."""
    return Unit(size, partial(file.pieces, offset, size), lambda start, stop: file.pieces(offset + start, stop - start))


def _wanted(units: Iterable[Unit], ranges: Sequence[Tuple[int, int]]) -> Iterator[Tuple[int, memoryview]]:
    """The parts of the units that lie in the ranges, with their offsets."""
    at = 0
    for unit in units:
        end = at + unit.size
        here = [(max(start, at), min(stop, end)) for start, stop in ranges if start < end and stop > at]
        if here and unit.part is not None:
            for start, stop in here:
                yield from _cut(start, unit.part(start - at, stop - at), [(start, stop)])
        elif here:
            yield from _cut(at, unit.all(), here)
        at = end


def _cut(at: int, pieces: Iterator[bytes], ranges: List[Tuple[int, int]]) -> Iterator[Tuple[int, memoryview]]:
    """Those parts of pieces from `at` on that lie in the ranges; all pieces are taken, so that CRCs are checked."""
    for piece in pieces:
        view, end = memoryview(piece), at + len(piece)
        for start, stop in ranges:
            if start < end and stop > at:
                yield max(start, at), view[max(start, at) - at : min(stop, end) - at]
        at = end


def _little_endian(pieces: Iterator[bytes], unit: int) -> Iterator[bytes]:
    """Big-endian elements turned round, also where a piece ends inside one."""
    from array import array

    code = next(code for code in "HILQ" if array(code).itemsize == unit)
    rest = b""
    for piece in pieces:
        data = rest + piece
        whole = len(data) - len(data) % unit
        rest = data[whole:]
        turned = array(code, data[:whole])
        turned.byteswap()
        yield turned.tobytes()
