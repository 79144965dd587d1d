"""Lightning: `epoch=E-step=S.ckpt`, `-vK` of a later run into the same folder, `last.ckpt`.

Ordered by step, then by K. A `last.ckpt` that is a link is never taken: it may point at the best file, or at itself.
NeMo keeps a file `NAME-unfinished` beside one that is being written.
"""

import re
from typing import List, Optional, Tuple

from remote_payload.agent.layouts.base import Findings, Found, Layout
from remote_payload.agent.proofs import Proof, torch_proof
from remote_payload.agent.tree import Tree, join
from remote_payload.agent.verdicts import Refusal, Torn

_NAME = re.compile(r"(?:.*[-_])?(?:global_)?step[=_]?([0-9]{1,18})(?:[-_].*)?\.ckpt")
_AGAIN = re.compile(r".*-v([0-9]{1,9})\.ckpt")
_MAX_READ = 20
"""files without a step in their names that are opened for it"""


class Lightning(Layout):
    name = "lightning"

    def find(self, tree: Tree, folder: str) -> Findings:
        found: List[Found] = []
        ignored: List[Tuple[str, str]] = []
        unnamed: List[str] = []
        for entry in tree.entries(folder):
            path = join(folder, entry.name)
            match = _NAME.fullmatch(entry.name)
            if not entry.name.endswith(".ckpt"):
                continue
            if entry.kind != "file":
                ignored.append((path, "a link" if entry.kind == "link" else "not a file"))
            elif match:
                step = int(match.group(1))
                found.append(Found((step, _version(path), 1), step, path))
            else:
                unnamed.append(path)
        for path in unnamed[-_MAX_READ:]:
            inside = _step_inside(tree, path)
            found.append(Found((inside or 0, _version(path), 0), inside, path))
        return Findings(sorted(found), ignored if found else [])

    def prove(self, tree: Tree, path: str) -> Proof:
        check_finished(tree, path)
        return torch_proof(tree, path, model_key="state_dict")


def check_finished(tree: Tree, path: str) -> None:
    """Raises Torn where NeMo's marker of an unfinished save lies beside."""
    folder, _, name = path.rpartition("/")
    stem = name[: -len(".ckpt")] if name.endswith(".ckpt") else name
    marker = stem + "-unfinished"
    if marker in tree.names(folder):
        raise Torn("%s lies beside it: its save is not over, or was killed" % marker)


def _version(path: str) -> int:
    """K of `-vK`: the file of a later run into the same folder; 0 for the first."""
    again = _AGAIN.fullmatch(path)
    return int(again.group(1)) if again else 0


def _step_inside(tree: Tree, path: str) -> Optional[int]:
    from remote_payload.agent.torchfile import TorchFile

    try:
        file = tree.open(path)
    except (OSError, Refusal):
        return None
    try:
        return TorchFile(file).step
    except (Torn, Refusal, OSError):
        return None
    finally:
        file.close()
