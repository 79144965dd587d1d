"""Accelerate's `save_state`: `checkpoint_K/`, where K counts saves, not steps.

There is no marker; random states come last. Optimizer, scheduler, sampler and random states stay behind.
"""

from typing import Sequence

from remote_payload.agent.layouts.base import NumberedFolders, numbers
from remote_payload.agent.proofs import Proof, weights_proof
from remote_payload.agent.tree import Tree
from remote_payload.agent.verdicts import Torn


class Accelerate(NumberedFolders):
    name = "accelerate"
    pattern = numbers(r"checkpoint_N")
    word = "checkpoint"

    def belongs(self, names: Sequence[str]) -> bool:
        return any(name.startswith("random_states_") or name == "optimizer.bin" for name in names)

    def prove(self, tree: Tree, path: str) -> Proof:
        if not any(name.startswith("random_states_") for name in tree.names(path)):
            raise Torn("random_states_*.pkl, which are written last, are missing")
        proof = weights_proof(tree, path)
        proof.warnings.append("%s: its number counts saves, not steps" % path)
        return proof
