"""DeepSpeed: `global_stepN/` with one `*model_states.pt` a model rank and one `*optim_states.pt` a data rank.

The file `latest` beside them is written after all ranks are done. ZeRO 1 and 2 keep the whole model of one rank under
`module`; ZeRO 3 and model parallelism scatter it.
"""

import re
from typing import List, Sequence

from remote_payload.agent.layouts.base import NumberedFolders, numbers
from remote_payload.agent.proofs import Proof, folder_bytes, sharded_proof, torch_proof
from remote_payload.agent.tree import Tree, join
from remote_payload.agent.verdicts import Torn

_RANK = re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_([0-9]+)_mp_rank_[0-9]+_optim_states\.pt")


class DeepSpeed(NumberedFolders):
    name = "deepspeed"
    pattern = numbers(r"global_stepN")
    word = "step"

    def belongs(self, names: Sequence[str]) -> bool:
        return any(name.endswith("model_states.pt") for name in names)

    def prove(self, tree: Tree, path: str) -> Proof:
        names = [entry.name for entry in tree.entries(path) if entry.kind == "file"]
        models = [name for name in names if name.endswith("model_states.pt")]
        if not models:
            raise Torn("no *model_states.pt")
        _check_latest(tree, path)
        _check_ranks(names)
        optimizers = [name for name in names if name.endswith("optim_states.pt")]
        whole = sharded_proof(tree, path, models + optimizers, "its model is scattered over %d files" % len(models), "")
        whole.hint = "python zero_to_fp32.py ROOT OUTPUT, in the checkpoint root, or `ship: whole`"
        if models != ["mp_rank_00_model_states.pt"]:
            return whole
        identity = whole.identity
        whole.close()
        proof = torch_proof(tree, join(path, models[0]), model_key="module")
        proof.identity = identity
        proof.total = folder_bytes(tree, path)
        return proof


def _check_latest(tree: Tree, path: str) -> None:
    """`latest`, where it is kept, names this step or a later one once all ranks are done."""
    folder, _, name = path.rpartition("/")
    if "latest" not in tree.names(folder):
        return
    text = tree.small(join(folder, "latest"), 4096).decode("utf-8", "replace").strip()
    said, here = re.fullmatch(r"global_step([0-9]{1,18})", text), re.fullmatch(r"global_step([0-9]{1,18})", name)
    if said and here and int(said.group(1)) < int(here.group(1)):
        raise Torn("`latest` still names %s: not all ranks are done" % text)


def _check_ranks(names: Sequence[str]) -> None:
    ranks: List[int] = sorted({int(match.group(1)) for match in map(_RANK.fullmatch, names) if match})
    missing = sorted(set(range(ranks[-1] + 1)) - set(ranks)) if ranks else []
    if missing:
        raise Torn("optimizer states of rank %d and %d others are missing" % (missing[0], len(missing) - 1))
