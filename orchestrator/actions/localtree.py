"""The local harness folder as something that is changed: files of the host are brought into it, whole or not at all.

What is replaced is saved beside, in `.orch/saved`; taken.py remembers what was taken in.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import remote_payload
from orchestrator import taken
from orchestrator.answers import file_entry
from orchestrator.errors import Refused
from orchestrator.model import Harness, Host, Inventory, Job, LocalChange
from remote_payload.agent import replace, wire
from remote_payload.agent.errors import AgentError
from remote_payload.agent.folder import Folder

GIT_PATIENCE = 30.0
"""seconds for `git status`"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulled:
    """What was brought into the local tree."""

    folder: Path
    paths: tuple[str, ...]
    conflicts: tuple[str, ...]
    """those of them in which conflicts stand now"""
    saved: str | None
    """the folder here where replaced files went"""
    git: bool
    """whether the folder is in a git work tree"""


def check_own(job: Job, inventory: Inventory) -> None:
    """Raises Refused where the harness is the one that came with orch: nothing is written into an installed package."""
    installed = Path(remote_payload.__file__).parent.resolve()
    folder = job.harness_local.resolve()
    if installed in (folder, *folder.parents) and inventory.path.parent.resolve() not in folder.parents:
        raise Refused(
            f"{folder} is a part of orch itself; nothing was changed",
            hint=f"copy it beside {inventory.path} and name the copy as harness.local in {job.path.name}",
        )


def uncommitted(root: Path, paths: Sequence[str]) -> tuple[str, ...]:
    """Those of the files that git holds no commit of as they are now; none where the folder is in no git work tree."""
    if not paths:
        return ()
    options = ("--porcelain=v1", "-z", "--untracked-files=all", "--ignored=matching", "--no-renames")
    told, prefix = _git(root, "status", *options, "--", *paths), _git(root, "rev-parse", "--show-prefix")
    if told is None or prefix is None:
        return ()
    above = os.fsdecode(prefix.removesuffix(b"\n"))
    rows = [os.fsdecode(row[3:]).removeprefix(above) for row in told.split(b"\0") if row]
    folders = tuple(row for row in rows if row.endswith("/"))  # ignored as a whole
    return tuple(path for path in paths if path in rows or path.startswith(folders) or "./" in folders or "" in rows)


def in_git(root: Path) -> bool:
    """Whether a folder is in a git work tree."""
    return _git(root, "rev-parse", "--show-prefix") is not None


def _git(root: Path, *words: str) -> bytes | None:
    command = ["git", "--literal-pathspecs", "-C", str(root), *words]
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=GIT_PATIENCE
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def change(job: Job, host: Host, ours: Harness, changes: Sequence[LocalChange]) -> Pulled:
    """Make these changes in the local tree, all of them or none. Raises Refused where a file changed meanwhile, or
    where a path leads out of the folder."""
    root = str(job.harness_local)
    here = {file.path: file for file in ours.files}
    after = {**here, **{one.path: one.new for one in changes}}
    sent = [one for one in changes if one.content is not None]
    entries = [file_entry(file) for file in after.values() if file is not None]
    gone = [one.path for one in changes if one.new is None and one.path in here]
    before = {one.path: file_entry(here[one.path]) if one.path in here else None for one in changes}
    try:
        replace.check(entries, [one.path for one in sent], gone)
        _check_unknown(root, [one.path for one in sent if one.path not in here])
        with replace.opened(root, "taking the host's files") as incoming:
            _hide_from_git(root)
            swap = replace.Replacement(root, incoming, entries, [one.path for one in sent], gone, before)
            swap.receive(piece for one in sent for piece in _pieces(one.content or b""))
            swap.verify()
            saved = swap.save(lambda path, entry: True)
            taken.remember(job, host, here, changes, pending=True)
            changed = swap.swap(lambda: taken.remember(job, host, here, changes, pending=False))
    except AgentError as error:
        raise Refused(error.message, hint=error.hint.replace(" on the host", "")) from None
    return Pulled(
        folder=job.harness_local,
        paths=(*changed, *gone),
        conflicts=tuple(one.path for one in changes if one.conflicts),
        saved=saved,
        git=in_git(job.harness_local),
    )


def _pieces(content: bytes) -> Sequence[bytes]:
    return [content[at : at + wire.CHUNK] for at in range(0, len(content), wire.CHUNK)]


def _check_unknown(root: str, paths: Sequence[str]) -> None:
    """A file that is new to the local harness may lie there all the same: ignored, a link, or in other letters."""
    folder = Folder(root)
    for path in paths:
        if folder.entry(path) is not None:
            raise AgentError(
                f"{Path(root, path)} is there already, though no part of the harness: ignored, a link out of it, or a "
                "name that differs in case alone; nothing was changed",
                "move it away, or see .orchignore",
                kind="refused",
            )


def _hide_from_git(root: str) -> None:
    ignore = Path(root, replace.OWN, ".gitignore")
    if not ignore.exists():
        ignore.write_text("*\n", encoding="utf-8")


def texts(job: Job, paths: Sequence[str]) -> dict[str, bytes]:
    """The local files as they are now; an empty one where one is gone."""
    return {path: taken.local_text(job.harness_local, path) for path in paths}
