"""SpecForge drafters: `epoch_E_step_S/` with safetensors, and since 0.2 `NAME-stepS/training_state.pt`.

The training state comes first and proves nothing; `_SUCCESS`, where the trainer writes one, comes last.
"""

from typing import Sequence

from remote_payload.agent.layouts.base import NumberedFolders, numbers
from remote_payload.agent.proofs import Proof, torch_proof, weights_proof
from remote_payload.agent.tree import Tree, join
from remote_payload.agent.verdicts import Torn


class SpecForge(NumberedFolders):
    name = "specforge"
    pattern = numbers(r"(?:epoch_N_step_|.+-step)N")
    word = "step"

    def belongs(self, names: Sequence[str]) -> bool:
        return any(name.endswith(".safetensors") or name == "training_state.pt" for name in names)

    def prove(self, tree: Tree, path: str) -> Proof:
        names = tree.names(path)
        folder = path.rpartition("/")[0]
        if "_SUCCESS" not in names and any(
            "_SUCCESS" in tree.names(join(folder, other))
            for other in tree.names(folder)
            if self.pattern.fullmatch(other)
        ):
            raise Torn("_SUCCESS, which others here have, is missing")
        if any(name.endswith(".safetensors") for name in names):
            if "config.json" not in names:
                raise Torn("config.json, which is written after the weights, is missing")
            return weights_proof(tree, path)
        if "training_state.pt" in names:
            return torch_proof(tree, join(path, "training_state.pt"), model_key="draft_state_dict")
        raise Torn("no model.safetensors")
