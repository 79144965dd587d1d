"""Orbax, T5X, levanter: `N/` or `checkpoint_N/`, renamed from `N.orbax-checkpoint-tmp*` when whole.

Object stores can't rename: there `commit_success.txt` comes last. Shipped whole: only JAX reads the arrays.
"""

from typing import Sequence

from remote_payload.agent.layouts.base import NumberedFolders, numbers
from remote_payload.agent.proofs import Proof, sharded_proof
from remote_payload.agent.tree import Tree, join
from remote_payload.agent.verdicts import Torn

MARKS = ("_CHECKPOINT_METADATA", "_METADATA", "manifest.ocdbt", "commit_success.txt", "orbax.checkpoint")


class Orbax(NumberedFolders):
    name = "orbax"
    pattern = numbers(r"(?:checkpoint_)?N")
    word = "checkpoint"

    def belongs(self, names: Sequence[str]) -> bool:
        return any(name in MARKS for name in names)

    def prove(self, tree: Tree, path: str) -> Proof:
        names = tree.names(path)
        folder = path.rpartition("/")[0]
        marker = "commit_success.txt"
        others = [other for other in tree.names(folder) if self.pattern.fullmatch(other)]
        if marker not in names and any(marker in tree.names(join(folder, other)) for other in others):
            raise Torn("%s, which is written last, is missing" % marker)
        marks = [name for name in names if name in MARKS and name != marker]
        if not marks:
            raise Torn("no Orbax metadata in it")
        hint = "Restore it with Orbax and save safetensors, or `ship: whole`"
        return sharded_proof(tree, path, marks, "arrays that only Orbax reads", hint)
