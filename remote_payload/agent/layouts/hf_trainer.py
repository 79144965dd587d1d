"""HF Trainer, and with it axolotl, TRL and LLaMA-Factory: `checkpoint-N/`.

`trainer_state.json` is written last and its global_step is N; then all shards of the index are there and as long as
their headers say. Optimizer, scheduler and random states stay behind.
"""

from remote_payload.agent.layouts.base import NumberedFolders, numbers
from remote_payload.agent.proofs import Proof, read_json, weights_proof
from remote_payload.agent.tree import Tree, join
from remote_payload.agent.verdicts import Torn


class HfTrainer(NumberedFolders):
    name = "hf"
    pattern = numbers(r"checkpoint-N")
    word = "checkpoint"

    def prove(self, tree: Tree, path: str) -> Proof:
        if "trainer_state.json" not in tree.names(path):
            tree.entries(path)  # raises where the folder itself is gone
            raise Torn("trainer_state.json, which is written last, is missing")
        step = read_json(tree, join(path, "trainer_state.json")).get("global_step")
        match = self.pattern.fullmatch(path.rpartition("/")[2])
        if match and step != int(match.group(1)):
            raise Torn("trainer_state.json is of step %r: left from an earlier save" % (step,))
        proof = weights_proof(tree, path)
        proof.step = int(step) if isinstance(step, int) else None
        return proof
