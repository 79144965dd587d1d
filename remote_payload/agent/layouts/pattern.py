"""A layout given as a pattern: `step_{step}/checkpoint.pt`, `weights/model-{step}.safetensors`."""

import re
from typing import List, Pattern, Tuple

from remote_payload.agent.errors import AgentError
from remote_payload.agent.layouts.base import TORCH_SUFFIXES, Findings, Found, Layout
from remote_payload.agent.proofs import Proof, torch_proof, weights_file_proof, weights_proof
from remote_payload.agent.tree import Tree, join
from remote_payload.agent.verdicts import Torn


class PatternLayout(Layout):
    """`{step}` stands once for a whole number, `{any}` for the rest of a name. The last name is a file or a folder."""

    def __init__(self, text: str) -> None:
        """Raises AgentError for a pattern without exactly one {step}, or one that leaves the root."""
        self.name = text
        parts = [part for part in text.split("/") if part not in ("", ".")]
        if text.count("{step}") != 1 or ".." in parts or text.startswith("/"):
            raise AgentError("layout: %r needs {step} once and stays below the root" % text, kind="config")
        self._parts: List[Pattern[str]] = [_part(part) for part in parts]
        self._last = parts[-1]

    def find(self, tree: Tree, folder: str) -> Findings:
        found: List[Found] = []
        self._descend(tree, folder, 0, None, found)
        return Findings(sorted(found, key=lambda one: one.order), [])

    def prove(self, tree: Tree, path: str) -> Proof:
        if path.endswith(".safetensors"):
            return weights_file_proof(tree, path)
        if path.endswith(TORCH_SUFFIXES):
            return torch_proof(tree, path)
        if tree.is_folder(path) and not self._parts[-1].fullmatch(path.rpartition("/")[2]):
            raise Torn("no %s" % self._last)
        names = tree.names(path)
        torch = [name for name in names if name.endswith(TORCH_SUFFIXES)]
        if len(torch) == 1 and not any(name.endswith(".safetensors") for name in names):
            return torch_proof(tree, join(path, torch[0]))
        return weights_proof(tree, path) if names else torch_proof(tree, path)

    def _descend(self, tree: Tree, folder: str, depth: int, step: object, found: List[Found]) -> None:
        before = len(found)
        for entry in tree.entries(folder):
            match = self._parts[depth].fullmatch(entry.name)
            if not match or entry.kind not in ("dir", "file"):
                continue
            here = int(match.group("step")) if "step" in self._parts[depth].groupindex else step
            path = join(folder, entry.name)
            if depth + 1 == len(self._parts):
                found.append(_found(here, path))
            elif entry.kind == "dir":
                self._descend(tree, path, depth + 1, here, found)
        if len(found) == before and isinstance(step, int):
            found.append(_found(step, folder))  # the folder is there, its file is not


def _found(step: object, path: str) -> Found:
    number = step if isinstance(step, int) else 0
    order: Tuple[int, ...] = (number,)
    return Found(order, number, path)


def _part(text: str) -> Pattern[str]:
    known = {"{step}": "(?P<step>[0-9]{1,18})", "{any}": "[^/]*"}
    return re.compile("".join(known.get(piece, re.escape(piece)) for piece in re.split(r"(\{step\}|\{any\})", text)))
