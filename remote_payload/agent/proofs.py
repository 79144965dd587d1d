"""Proofs that a checkpoint is whole, each from the structure of its files alone, and what evaluation needs of it."""

import json
import re
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional, Sequence

from remote_payload.agent import safetensors_file
from remote_payload.agent.openfile import OpenFile
from remote_payload.agent.tree import Tree, join
from remote_payload.agent.verdicts import Refusal, Torn

if TYPE_CHECKING:
    from remote_payload.agent.torchfile import TorchFile

MAX_JSON = 16 * 1024 * 1024
BESIDE_WEIGHTS = re.compile(
    r"config\.json|generation_config\.json|adapter_config\.json|preprocessor_config\.json|tokenizer(_config)?\.json"
    r"|tokenizer\.model|special_tokens_map\.json|added_tokens\.json|vocab\.(json|txt)|merges\.txt|chat_template\.\w+"
    r"|.*\.safetensors\.index\.json"
)
"""small files that evaluation may open beside the weights"""


class Member(NamedTuple):
    """A file that belongs to a checkpoint, open, under the name that it keeps when it is shipped."""

    name: str
    file: OpenFile


class Proof:
    """A whole checkpoint with its files open. Close it, or hand it on to who ships it."""

    def __init__(self, identity: str, members: Sequence[Member], modified_at: float, total: int) -> None:
        self.identity = identity
        self.members = list(members)
        """what evaluation needs, to be shipped byte for byte where `torch` is None"""
        self.modified_at = modified_at
        self.total = total
        """bytes of the whole checkpoint"""
        self.step: Optional[int] = None
        """the training step that the files themselves name"""
        self.torch: "Optional[TorchFile]" = None
        """set where the model has to be taken out of a torch file"""
        self.model_key: Optional[str] = None
        self.refused = ""
        """why the model can't be shipped by itself"""
        self.unread = False
        """whether that is because orch does not read the file: it is of another make than torch.save's"""
        self.hint = ""
        """what to type to make it shippable"""
        self.warnings: List[str] = []

    def changed(self) -> List[str]:
        """Names of files that are no longer what they were when they were opened."""
        return [member.name for member in self.members if member.file.changed()]

    def close(self) -> None:
        for member in self.members:
            member.file.close()


def torch_proof(tree: Tree, path: str, model_key: Optional[str] = None) -> Proof:
    """One torch file that holds everything. Raises Torn, OSError."""
    from remote_payload.agent.torchfile import TorchFile

    file = tree.open(path)
    member = Member(path.rpartition("/")[2], file)
    try:
        torch = TorchFile(file)
    except Refusal as refusal:
        proof = Proof(_stamp_identity([member]), [member], file.mtime, file.size)
        proof.refused, proof.unread = str(refusal), True
        return proof
    except BaseException:
        file.close()
        raise
    proof = Proof(torch.identity, [member], file.mtime, file.size)
    proof.torch, proof.step, proof.model_key = torch, torch.step, model_key
    return proof


def weights_proof(tree: Tree, folder: str) -> Proof:
    """A folder of safetensors (one file, or shards and index), else of one pytorch_model.bin. Raises Torn, OSError."""
    import hashlib

    entries = {entry.name: entry for entry in tree.entries(folder) if entry.kind in ("file", "link")}
    weights = _needed_weights(tree, folder, list(entries))
    if not weights:
        if "pytorch_model.bin" in entries:
            return _binary_proof(tree, folder)
        raise Torn("no weights: neither *.safetensors nor pytorch_model.bin")
    members: List[Member] = []
    metadata: Dict[str, str] = {}
    digest = hashlib.sha256()
    try:
        for name in weights + sorted(name for name in entries if BESIDE_WEIGHTS.fullmatch(name)):
            file = tree.open(join(folder, name))
            members.append(Member(name, file))
            if name in weights:
                metadata.update(_checked_weights(name, file, digest))
            elif name.endswith(".json"):
                digest.update(_checked_json(name, file))
    except BaseException:
        for member in members:
            member.file.close()
        raise
    digest.update(_stamp_identity(members).encode("ascii"))
    proof = Proof(digest.hexdigest(), members, max(m.file.mtime for m in members), folder_bytes(tree, folder))
    if metadata.get("step", "").isdigit():
        proof.step = int(metadata["step"])
    return proof


def weights_file_proof(tree: Tree, path: str) -> Proof:
    """One safetensors file that is the model. Raises Torn, OSError."""
    import hashlib

    file = tree.open(path)
    member = Member(path.rpartition("/")[2], file)
    digest = hashlib.sha256()
    try:
        metadata = _checked_weights(member.name, file, digest)
    except BaseException:
        file.close()
        raise
    digest.update(_stamp_identity([member]).encode("ascii"))
    proof = Proof(digest.hexdigest(), [member], file.mtime, file.size)
    if metadata.get("step", "").isdigit():
        proof.step = int(metadata["step"])
    return proof


def sharded_proof(tree: Tree, folder: str, names: Sequence[str], why: str, hint: str) -> Proof:
    """A checkpoint in pieces that only its own framework joins: judged whole, shipped whole. Raises Torn, OSError."""
    members: List[Member] = []
    try:
        for name in names:
            file = tree.open(join(folder, name))
            members.append(Member(name, file))
            if not file.size:
                raise Torn("%s is empty" % name)
    except BaseException:
        for member in members:
            member.file.close()
        raise
    identity = _stamp_identity(members)
    proof = Proof(identity, members, max(m.file.mtime for m in members), folder_bytes(tree, folder))
    proof.refused, proof.hint = why, hint
    return proof


def whole_members(tree: Tree, folder: str) -> List[Member]:
    """Every regular file below a folder, open. Raises OSError, Refusal."""
    members: List[Member] = []
    try:
        for name, _ in tree.walk(folder):
            members.append(Member(name, tree.open(join(folder, name))))
    except BaseException:
        for member in members:
            member.file.close()
        raise
    return members


def folder_bytes(tree: Tree, folder: str) -> int:
    """Bytes of all regular files below a folder."""
    return sum(entry.stamp.size for _, entry in tree.walk(folder))


def read_json(tree: Tree, path: str) -> Dict[str, Any]:
    """A JSON object in a small file. Raises Torn for one that isn't whole, OSError where there is none."""
    return _json_object(path.rpartition("/")[2], tree.small(path, MAX_JSON))


def _json_object(name: str, raw: bytes) -> Dict[str, Any]:
    try:
        value = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError):
        raise Torn("%s is not whole JSON" % name) from None
    if not isinstance(value, dict):
        raise Torn("%s holds no object" % name)
    return value


def _checked_json(name: str, file: OpenFile) -> bytes:
    if file.size > MAX_JSON:
        raise Torn("%s has %d bytes" % (name, file.size))
    raw = file.read(0, file.size)
    if not name.startswith("chat_template"):
        _json_object(name, raw)
    return raw


def _checked_weights(name: str, file: OpenFile, digest: Any) -> Dict[str, str]:
    try:
        header = safetensors_file.read_header(file)
    except (Torn, Refusal) as problem:
        raise Torn("%s: %s" % (name, problem)) from None
    digest.update(header.raw)
    return header.metadata


def _needed_weights(tree: Tree, folder: str, names: List[str]) -> List[str]:
    """The safetensors files that make up the model: those that the index names, else all. Raises Torn for a gap."""
    present = sorted(name for name in names if name.endswith(".safetensors"))
    index = next((name for name in sorted(names) if name.endswith(".safetensors.index.json")), None)
    if index is None:
        _check_numbering(present)
        return present
    mapped = read_json(tree, join(folder, index)).get("weight_map")
    if not isinstance(mapped, dict) or not all(isinstance(name, str) for name in mapped.values()):
        raise Torn("%s has no weight_map" % index)
    needed = sorted(set(mapped.values()))
    missing = [name for name in needed if name not in present]
    if missing:
        raise Torn("%d of %d shards are missing, first %s" % (len(missing), len(needed), missing[0]))
    return needed


def _check_numbering(names: List[str]) -> None:
    """Shards are written before their index: `-00001-of-00003` without an index is a save that did not end."""
    shard = next((name for name in names if re.search(r"-\d+-of-\d+\.safetensors$", name)), None)
    if shard is not None:
        raise Torn("there are shards such as %s but no index: it is written last" % shard)


def _binary_proof(tree: Tree, folder: str) -> Proof:
    """pytorch_model.bin: a state dict by torch.save, the model itself."""
    proof = torch_proof(tree, join(folder, "pytorch_model.bin"))
    proof.total = folder_bytes(tree, folder)
    return proof


def _stamp_identity(members: Sequence[Member]) -> str:
    """For files without CRCs: name, inode, size and time stand for the content."""
    import hashlib

    stamps = sorted((member.name, tuple(member.file.stamp)) for member in members)
    return hashlib.sha256(repr(stamps).encode("utf-8")).hexdigest()
