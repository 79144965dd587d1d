"""NeMo 2: folders `...step=N...` with distributed weights in `weights/`; NeMo 1 writes files, see lightning.py.

There is no mark of a whole one: `NAME-unfinished` lies beside while it is written, and stays where that was killed.
"""

from typing import Sequence

from remote_payload.agent.layouts.base import NumberedFolders, numbers
from remote_payload.agent.layouts.dcp import dcp_proof
from remote_payload.agent.layouts.lightning import check_finished
from remote_payload.agent.proofs import Proof
from remote_payload.agent.tree import Tree, join


class Nemo(NumberedFolders):
    name = "nemo"
    pattern = numbers(r"(?:.*[-_])?step=N(?:[-_].*)?")
    word = "step="

    def belongs(self, names: Sequence[str]) -> bool:
        return "weights" in names

    def prove(self, tree: Tree, path: str) -> Proof:
        tree.entries(path)  # raises where the folder itself is gone
        check_finished(tree, path)
        return dcp_proof(tree, join(path, "weights"))
