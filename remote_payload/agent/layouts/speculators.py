"""speculators drafters: folders `0/ 1/ 2/ ...` with safetensors; links such as `checkpoint_best` are never taken."""

from typing import Sequence

from remote_payload.agent.layouts.base import NumberedFolders, numbers
from remote_payload.agent.proofs import Proof, weights_proof
from remote_payload.agent.tree import Tree, join
from remote_payload.agent.verdicts import Torn

LAST = "training_state.json"


class Speculators(NumberedFolders):
    name = "speculators"
    pattern = numbers(r"N")
    word = "epoch"

    def belongs(self, names: Sequence[str]) -> bool:
        return any(name.endswith(".safetensors") for name in names)

    def prove(self, tree: Tree, path: str) -> Proof:
        names = tree.names(path)
        folder = path.rpartition("/")[0]
        others = [other for other in tree.names(folder) if self.pattern.fullmatch(other)]
        if LAST not in names and any(LAST in tree.names(join(folder, other)) for other in others):
            raise Torn("%s, which is written last, is missing" % LAST)
        if "config.json" not in names:
            raise Torn("config.json is missing")
        return weights_proof(tree, path)
