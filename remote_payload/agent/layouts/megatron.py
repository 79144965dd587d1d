"""Megatron-LM, Megatron Bridge, verl, slime: `iter_0005000/` beside `latest_checkpointed_iteration.txt`.

The tracker is written last, and may name a step that was never saved: it only holds back folders that are newer.
"""

import re
from typing import List, Sequence

from remote_payload.agent.layouts.base import NumberedFolders, numbers
from remote_payload.agent.layouts.dcp import dcp_proof
from remote_payload.agent.proofs import Proof, sharded_proof, torch_proof
from remote_payload.agent.tree import Tree, join
from remote_payload.agent.verdicts import Torn

TRACKER = "latest_checkpointed_iteration.txt"


class Megatron(NumberedFolders):
    name = "megatron"
    pattern = numbers(r"iter_N")
    word = "iter"

    def belongs(self, names: Sequence[str]) -> bool:
        return any(re.match(r"mp_rank_[0-9]|\.metadata|.*\.distcp|common\.pt|model_optim_rng", name) for name in names)

    def prove(self, tree: Tree, path: str) -> Proof:
        folder, _, name = path.rpartition("/")
        if TRACKER in tree.names(folder):
            text = tree.small(join(folder, TRACKER), 4096).decode("utf-8", "replace").strip()
            match = self.pattern.fullmatch(name)
            if text.isdigit() and match and int(match.group(1)) > int(text):
                raise Torn("%s still says %s: not all ranks are done" % (TRACKER, text))
        names = tree.names(path)
        if ".metadata" in names or any(one.endswith(".distcp") for one in names):
            return dcp_proof(tree, path)
        models: List[str] = [one for one, _ in tree.walk(path) if one.endswith("model_optim_rng.pt")]
        if not models:
            raise Torn("no model_optim_rng.pt")
        if len(models) > 1:
            hint = "convert it with Megatron's tools/checkpoint/convert.py, or `ship: whole`"
            return sharded_proof(tree, path, models, "its model is split over %d ranks" % len(models), hint)
        return torch_proof(tree, join(path, models[0]), model_key="model")
