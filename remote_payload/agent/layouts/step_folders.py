"""`step_N/checkpoint.pt` and its relatives: a folder a step, one torch file in it that holds everything.

Written in place by torch.save: no marker, no rename. Whole is what its structure proves.
"""

from typing import List, Sequence

from remote_payload.agent.layouts.base import TORCH_SUFFIXES, Findings, NumberedFolders, numbers
from remote_payload.agent.proofs import Proof, torch_proof, weights_proof
from remote_payload.agent.tree import Tree, join
from remote_payload.agent.verdicts import Refusal, Torn

KNOWN = ("checkpoint.pt", "checkpoint.pth", "ckpt.pt", "model.pt", "state.pt", "checkpoint.ckpt", "pytorch_model.bin")


class StepFolders(NumberedFolders):
    name = "step-folders"
    pattern = numbers(r"step[-_=]?N")
    word = "step"

    def belongs(self, names: Sequence[str]) -> bool:
        return any(name.endswith((*TORCH_SUFFIXES, ".safetensors")) for name in names)

    def shown(self, tree: Tree, path: str) -> str:
        file = _torch_file(tree.names(path))
        return join(path, file) if file else path

    def folder(self, tree: Tree, path: str) -> str:
        name = path.rpartition("/")[2]
        return path if self.pattern.fullmatch(name) else path.rpartition("/")[0]

    def prove(self, tree: Tree, path: str) -> Proof:
        if path != self.folder(tree, path):
            return torch_proof(tree, path)
        names = [entry.name for entry in tree.entries(path)]
        if any(name.endswith(".safetensors") for name in names):
            return weights_proof(tree, path)
        found = _torch_names(names)
        if len(found) > 1:
            raise Refusal(
                "several torch files (%s): name one, as layout: step_{step}/%s" % (", ".join(found), found[0])
            )
        raise Torn("no checkpoint.pt" + (", only %s" % ", ".join(names[:5]) if names else ": the folder is empty"))


class NumberedTorchFolders(StepFolders):
    """The same with other words: `iter_N/`, `epoch_N/`, `global_step_N/`, `checkpoint_N/` ..."""

    name = "numbered-folders"
    pattern = numbers(r"(?:global_?step|iter|iteration|epoch|checkpoint|ckpt)[-_=]?N")
    word = "step"

    def find(self, tree: Tree, folder: str) -> Findings:
        findings = super().find(tree, folder)
        return Findings(findings.found, findings.ignored if findings.found else [])


def _torch_names(names: Sequence[str]) -> List[str]:
    return sorted(name for name in names if name.endswith(TORCH_SUFFIXES) and not name.startswith("."))


def _torch_file(names: Sequence[str]) -> str:
    """The file that holds everything: a known name, else the only torch file there; "" where neither is so."""
    for known in KNOWN:
        if known in names:
            return known
    found = _torch_names(names)
    return found[0] if len(found) == 1 and not any(name.endswith(".safetensors") for name in names) else ""
