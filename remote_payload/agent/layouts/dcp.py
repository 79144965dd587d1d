"""torch.distributed.checkpoint, as torchtitan and VeOmni write it: `.metadata` and `__R_K.distcp` in numbered folders.

`.metadata` is committed last. Model and optimizer are mixed in the shards, so it is shipped whole or converted first.
"""

from typing import Sequence

from remote_payload.agent.layouts.base import NumberedFolders, numbers
from remote_payload.agent.proofs import Proof, sharded_proof
from remote_payload.agent.tree import Tree
from remote_payload.agent.verdicts import Torn

HINT = "python -m torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER checkpoint.pt, or `ship: whole`"


class Dcp(NumberedFolders):
    name = "dcp"
    pattern = numbers(r"(?:(?:global_?)?step|checkpoint|iter|epoch)[-_=]?N")
    word = "step"

    def belongs(self, names: Sequence[str]) -> bool:
        return ".metadata" in names or any(name.endswith(".distcp") for name in names)

    def prove(self, tree: Tree, path: str) -> Proof:
        return dcp_proof(tree, path)


def dcp_proof(tree: Tree, path: str) -> Proof:
    """A folder of shards with their `.metadata`. Raises Torn, OSError."""
    names = [entry.name for entry in tree.entries(path) if entry.kind == "file"]
    shards = [name for name in names if name.endswith(".distcp")]
    if ".metadata" not in names:
        raise Torn(".metadata, which is committed last, is missing")
    if not shards:
        raise Torn("no shards (*.distcp)")
    why = "sharded checkpoint: convert it with torch.distributed.checkpoint.format_utils on a box with torch"
    return sharded_proof(tree, path, [".metadata", *shards], why, HINT)
