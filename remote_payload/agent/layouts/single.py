"""One file, rewritten in place: nanoGPT's `ckpt.pt` and its like. Its step is the one inside."""

from typing import List

from remote_payload.agent.layouts.base import TORCH_SUFFIXES, Findings, Found, Layout
from remote_payload.agent.proofs import Proof, torch_proof
from remote_payload.agent.tree import Tree, join

KNOWN = (
    "ckpt.pt",
    "checkpoint.pt",
    "latest.pt",
    "last.pt",
    "checkpoint_last.pt",
    "checkpoint.pth",
    "last.pth",
    "model.pt",
)


class SingleFile(Layout):
    name = "single"

    def find(self, tree: Tree, folder: str) -> Findings:
        files = [entry.name for entry in tree.entries(folder) if entry.kind == "file"]
        torch = [name for name in files if name.endswith(TORCH_SUFFIXES) and not name.startswith(".")]
        known = [name for name in KNOWN if name in torch][:1]
        chosen: List[str] = known or (torch if len(torch) == 1 else [])
        ignored = [(join(folder, name), "another file than %s" % chosen[0]) for name in torch if name not in chosen]
        return Findings([Found((0,), None, join(folder, name)) for name in chosen], ignored if chosen else [])

    def prove(self, tree: Tree, path: str) -> Proof:
        return torch_proof(tree, path)
