"""Files with their step in the name, side by side: `model_0001249.pth`, `ckpt-1000.pt`, `checkpoint-10000step.pt`."""

import re
from collections import Counter
from typing import Dict, List, Tuple

from remote_payload.agent.layouts.base import Findings, Found, Layout
from remote_payload.agent.proofs import Proof, torch_proof, weights_file_proof
from remote_payload.agent.tree import Tree, join

_NAME = re.compile(r"(.*?)[-_=]?([0-9]{1,18})(?:[-_]?(?:steps?|iters?))?\.(?:pt|pth|bin|zip|safetensors)")
_SHARD = re.compile(r".*-[0-9]+-of-[0-9]+\.\w+")


class StepFiles(Layout):
    name = "step-files"

    def find(self, tree: Tree, folder: str) -> Findings:
        named: Dict[str, Tuple[str, int]] = {}
        for entry in tree.entries(folder):
            match = _NAME.fullmatch(entry.name)
            if match and entry.kind == "file" and not _SHARD.fullmatch(entry.name):
                named[entry.name] = (match.group(1), int(match.group(2)))
        if not named:
            return Findings([], [])
        # one family of names: `optimizer_1000.pt` beside `model_1000.pt` is not another step
        count = Counter(prefix for prefix, _ in named.values())
        family = max(count, key=lambda prefix: (_likely(prefix), count[prefix], prefix))
        found: List[Found] = [
            Found((step,), step, join(folder, name)) for name, (prefix, step) in named.items() if prefix == family
        ]
        ignored = [
            (join(folder, name), "named otherwise than %s*" % family) for name, (p, _) in named.items() if p != family
        ]
        return Findings(sorted(found), ignored)

    def prove(self, tree: Tree, path: str) -> Proof:
        return weights_file_proof(tree, path) if path.endswith(".safetensors") else torch_proof(tree, path)


def _likely(prefix: str) -> bool:
    return any(word in prefix.lower() for word in ("model", "ckpt", "checkpoint", "step", "iter"))
