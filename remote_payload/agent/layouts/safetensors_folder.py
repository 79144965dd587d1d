"""The root itself is a model: `*.safetensors` with `config.json`, as `save_pretrained` leaves it."""

from remote_payload.agent.layouts.base import Findings, Found, Layout
from remote_payload.agent.proofs import Proof, weights_proof
from remote_payload.agent.tree import Tree


class SafetensorsFolder(Layout):
    name = "safetensors"

    def find(self, tree: Tree, folder: str) -> Findings:
        here = any(entry.name.endswith(".safetensors") for entry in tree.entries(folder))
        return Findings([Found((0,), None, folder or ".")] if here else [], [])

    def prove(self, tree: Tree, path: str) -> Proof:
        return weights_proof(tree, "" if path == "." else path)
