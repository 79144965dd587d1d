"""prime-rl: `weights/step_N/` with a file STABLE that the trainer writes when all of it is there.

Folders of the orchestrator have no STABLE, and no weights either: they are none of these.
"""

from typing import Sequence

from remote_payload.agent.layouts.base import NumberedFolders, numbers
from remote_payload.agent.proofs import Proof, weights_proof
from remote_payload.agent.tree import Tree
from remote_payload.agent.verdicts import Torn

MARKER = "STABLE"


class PrimeRl(NumberedFolders):
    name = "prime-rl"
    pattern = numbers(r"step_N")
    word = "step"

    def belongs(self, names: Sequence[str]) -> bool:
        return MARKER in names

    def prove(self, tree: Tree, path: str) -> Proof:
        if MARKER not in [entry.name for entry in tree.entries(path)]:
            raise Torn("%s, which is written last, is missing" % MARKER)
        return weights_proof(tree, path)
