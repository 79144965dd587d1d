"""What a layout is: how checkpoints of one kind are named and ordered, when one is whole, what evaluation needs."""

import re
from itertools import islice
from typing import List, NamedTuple, Optional, Pattern, Sequence, Tuple

from remote_payload.agent.proofs import Proof
from remote_payload.agent.tree import Entry, Tree, join

TORCH_SUFFIXES = (".pt", ".pth", ".ckpt", ".bin")
PEEK = 8
"""folders with something in them that are looked into, newest first, to recognise a layout"""
EMPTY = 200
"""folders among which these are looked for: a save that failed may have left nothing but its folder, again and again"""


class Found(NamedTuple):
    """A name that fits. `order` compares as integers, newest last; `path` is the one that users are shown."""

    order: Tuple[int, ...]
    step: Optional[int]
    path: str


class Findings(NamedTuple):
    """Everything in a folder that has to do with checkpoints: what fits, and what was passed over with its reason."""

    found: List[Found]
    ignored: List[Tuple[str, str]]


class Layout:
    """One kind of checkpoint. A subclass is one small file; its instance is named in layouts/__init__.py."""

    name = ""

    def find(self, tree: Tree, folder: str) -> Findings:
        """Candidates directly in `folder`. Raises OSError."""
        raise NotImplementedError

    def claims(self, tree: Tree, findings: Findings) -> bool:
        """Whether what lies inside the candidates speaks for this layout, where names alone fit several."""
        return True

    def prove(self, tree: Tree, path: str) -> Proof:
        """Raises Torn for what isn't whole, Refusal for what can't be judged, OSError."""
        raise NotImplementedError


class NumberedFolders(Layout):
    """Folders whose whole name matches `pattern`; its groups are the order, the last one the step."""

    pattern: Pattern[str]
    word = ""
    """what stands in names that only look like checkpoints, and are listed as ignored"""

    def find(self, tree: Tree, folder: str) -> Findings:
        found: List[Found] = []
        ignored: List[Tuple[str, str]] = []
        for entry in tree.entries(folder):
            match = self.pattern.fullmatch(entry.name)
            path = join(folder, entry.name)
            if match and entry.kind == "dir":
                order = tuple(int(group or 0) for group in match.groups())
                found.append(Found(order, order[-1], self.shown(tree, path)))
            elif match or (self.word in entry.name.lower() and entry.kind != "link"):
                ignored.append((path, _why_not(entry, bool(match))))
        return Findings(sorted(found), ignored)

    def claims(self, tree: Tree, findings: Findings) -> bool:
        newest = (tree.names(self.folder(tree, found.path)) for found in reversed(findings.found[-EMPTY:]))
        return any(self.belongs(names) for names in islice(filter(None, newest), PEEK))

    def belongs(self, names: Sequence[str]) -> bool:
        """Whether a folder with these names in it is of this kind."""
        return True

    def shown(self, tree: Tree, path: str) -> str:
        """The path that stands for the checkpoint in this folder."""
        return path

    def folder(self, tree: Tree, path: str) -> str:
        """The candidate's folder, from its shown path."""
        return path


def numbers(pattern: str) -> Pattern[str]:
    """A pattern in which N stands for a whole number of at most 18 ASCII digits."""
    return re.compile(pattern.replace("N", "([0-9]{1,18})"))


def _why_not(entry: Entry, matches: bool) -> str:
    if not matches:
        return "its name is not one of a finished checkpoint"
    return "a link" if entry.kind == "link" else "not a folder"
