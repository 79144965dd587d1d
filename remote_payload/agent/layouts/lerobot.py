"""LeRobot: `checkpoints/000100/{pretrained_model,training_state}`, and a link `last` that moves when a save is over.

The width of the numbers depends on the run's length, so only their value counts.
"""

import os
import re
from typing import Sequence

from remote_payload.agent.layouts.base import NumberedFolders, numbers
from remote_payload.agent.proofs import Proof, folder_bytes, weights_proof
from remote_payload.agent.tree import Tree, join
from remote_payload.agent.verdicts import Torn

LAST, MODEL = "last", "pretrained_model"


class LeRobot(NumberedFolders):
    name = "lerobot"
    pattern = numbers(r"N")
    word = "checkpoint"

    def belongs(self, names: Sequence[str]) -> bool:
        return MODEL in names

    def prove(self, tree: Tree, path: str) -> Proof:
        folder, _, name = path.rpartition("/")
        said = re.search(r"([0-9]{1,18})/?$", _target(tree, join(folder, LAST)))
        if said and int(said.group(1)) < int(name):
            raise Torn("`%s` still points at %s: its save is not over" % (LAST, said.group(1)))
        proof = weights_proof(tree, join(path, MODEL))
        proof.total = folder_bytes(tree, path)
        return proof


def _target(tree: Tree, path: str) -> str:
    """What a link says; "" where there is none. It is not followed."""
    try:
        return os.readlink(os.path.join(tree.root, path))
    except OSError:
        return ""
