"""The evaluation scripts here and on the host: their manifests, their difference, and the push that ends it."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from orchestrator.answers import entries_of, file_entry, harness_of, read_harness
from orchestrator.errors import ConfigError, Refused, TransferError
from orchestrator.model import (
    Drift,
    FileChange,
    Harness,
    HarnessFacts,
    HarnessFile,
    Host,
    Job,
    Taken,
    TakenFile,
    Timeouts,
)
from orchestrator.ssh.agent import Conversation, ask
from orchestrator.ssh.connection import Connection
from remote_payload.agent import manifest, wire
from remote_payload.agent.errors import AgentError

FETCH_LIMIT = 256 * 2**20
"""bytes that are brought from a host at once"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """What a sync did."""

    paths: tuple[str, ...]
    saved: str | None
    """the folder on the host where replaced files went"""


def local(job: Job, notes: list[str] | None = None) -> Harness:
    """The local harness as it is now; `notes` collects what was left out and why. Raises ConfigError for names that
    can't be synced."""
    try:
        return harness_of(manifest.build(str(job.harness_local), notes=notes))
    except AgentError as error:
        raise ConfigError(error.message, hint=error.hint) from None


class Session:
    """A look at a host's harness and, if it comes to that, the push that follows: one exec. A context manager.

    `facts` is what lies there, `theirs` the host's versions of the files that differ: None for one that is too large to
    show, or a link. `also` names files there that the local harness has not, to be taken for a part of it.
    """

    def __init__(
        self, connection: Connection, host: Host, job: Job, ours: Harness, also: Sequence[str], timeouts: Timeouts
    ) -> None:
        for path in filter(manifest.odd, also):
            raise ConfigError(f"{path!a}: a file name that can't be part of a harness", hint="rename it there")
        args = {"remote": job.harness_remote, "entries": entries_of(ours), "also": list(also), "contents": True}
        self._job, self._ours, self._timeouts = job, ours, timeouts
        self._talk = Conversation(connection, host, "harness_sync", args, role="eval", timeouts=timeouts)
        try:
            answer = next(event for event in self._talk.events() if isinstance(event, dict))
            self.facts = read_harness(host.name, answer["harness"])
            self.theirs = _contents(answer["files"])
        except BaseException:
            self._talk.__exit__(None, None, None)
            raise

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._talk.__exit__(kind, error, trace)

    def push(self, found: Drift) -> Pushed:
        """As `push`, once."""
        asked, pieces = _question(self._job, found)
        if found.local == self._ours:
            del asked["entries"]  # said already
        self._talk.tell({"push": asked})
        if pieces and all(self._talk.send(piece) for piece in pieces):
            self._talk.finish_sending()
        return _pushed(self._talk.result(within=self._timeouts.question))


def contents(
    connection: Connection, host: Host, job: Job, paths: Sequence[str], timeouts: Timeouts
) -> dict[str, bytes | None]:
    """The host's versions of these files; None for one that is missing there or too large to show."""
    args = {"remote": job.harness_remote, "paths": list(paths)}
    return _contents(ask(connection, host, "harness_read", args, role="eval", timeouts=timeouts)["files"])


def _contents(rows: Sequence[Mapping[str, Any]]) -> dict[str, bytes | None]:
    return {row["path"]: None if row["data"] is None else base64.b64decode(row["data"]) for row in rows}


def drift(ours: Harness, facts: HarnessFacts, taken: Taken) -> Drift:
    """Three-way comparison: last synced, local, remote.

    A host's version that was `taken` into the local tree is nobody's edit any more, unless the local file has gone
    back to what it was before.
    """
    theirs, renamed = facts.harness, {file.path: old for old, file in facts.renames}
    if theirs is not None and facts.renames:
        theirs = harness_of([*entries_of(theirs), *(file_entry(file) for _, file in facts.renames)])
    base = _with_taken(ours, theirs, facts.base, taken.files)
    compared = manifest.compare(
        None if base is None else [file_entry(file) for file in base],
        entries_of(ours),
        None if theirs is None else entries_of(theirs),
    )
    files = [
        FileChange(path=row["path"], change=row["change"], side=row["side"], renamed_from=renamed.get(row["path"], ""))
        for row in compared["files"]
    ]
    files = _renamed_here(files, ours, base or ())
    known = {change.path for change in files}
    files += [FileChange(path=path, change="extra", side="remote") for path in facts.extras if path not in known]
    return Drift(
        state=compared["state"],
        local=ours,
        remote=theirs,
        base=facts.base,
        files=tuple(files),
        unresolved=taken.unresolved,
    )


def _with_taken(
    ours: Harness, theirs: Harness | None, base: Harness | None, taken: Mapping[str, TakenFile]
) -> Sequence[HarnessFile] | None:
    if not taken or theirs is None:
        return None if base is None else base.files
    here = {file.path: file for file in ours.files}
    there = {file.path: file for file in theirs.files}
    # of a folder that was never synced, what is equal here and there is as good as synced
    known = base.files if base is not None else [file for file in theirs.files if here.get(file.path) == file]
    rows = {file.path: file for file in known}
    for path, file in taken.items():
        if there.get(path) == file.theirs and file.holds(here.get(path)):
            rows.pop(path, None)
            rows.update({path: file.theirs} if file.theirs is not None else {})
    return list(rows.values())


def _renamed_here(files: list[FileChange], ours: Harness, base: Sequence[HarnessFile]) -> list[FileChange]:
    """The same changes; a local file that is gone and lies under another name now is told with that."""
    was, now = ({file.path: file.sha256 for file in side} for side in (base, ours.files))
    gone = {was[c.path]: c.path for c in files if (c.change, c.side) == ("deleted", "local") and c.path in was}
    told = []
    for change in files:
        new = (change.change, change.side) == ("added", "local")
        old = gone.pop(now[change.path], "") if new else change.renamed_from
        told.append(FileChange(path=change.path, change=change.change, side=change.side, renamed_from=old))
    return told


def push(connection: Connection, host: Host, job: Job, found: Drift, timeouts: Timeouts) -> Pushed:
    """Make the host's harness equal to the local one. Raises Refused when it changed since it was looked at."""
    args, pieces = _question(job, found)
    args["remote"] = job.harness_remote
    return _pushed(ask(connection, host, "harness_push", args, role="eval", timeouts=timeouts, pieces=pieces or None))


def _pushed(answer: Mapping[str, Any]) -> Pushed:
    return Pushed(paths=(*answer["pushed"], *answer["deleted"]), saved=answer["saved"])


def _question(job: Job, found: Drift) -> tuple[dict[str, Any], list[bytes]]:
    """What to ask of the host so that it holds the local harness, and the bytes for that."""
    theirs = {} if found.remote is None else {file.path: file for file in found.remote.files}
    ours = {file.path for file in found.local.files}
    sent = [file for file in found.local.files if theirs.get(file.path) != file]
    gone = [change.path for change in found.files if change.change == "deleted" and change.path not in ours]
    touched = [*(file.path for file in sent), *gone]
    args: dict[str, Any] = {
        "entries": entries_of(found.local),
        "send": [file.path for file in sent],
        "delete": gone,
        "expected": {path: file_entry(theirs[path]) if path in theirs else None for path in touched},
    }
    return args, [piece for file in sent for piece in _pieces(job.harness_local / file.path, file.size)]


def _pieces(path: Path, size: int) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            while size:
                piece = file.read(min(size, wire.CHUNK))
                if not piece:
                    return  # it shrank meanwhile: the host's hash check says so
                size -= len(piece)
                yield piece
    except OSError as error:
        hint = "run the command again"
        raise Refused(f"{path}: {error.strerror} (it was there a moment ago); nothing was pushed", hint=hint) from None


def fetch(
    connection: Connection, host: Host, job: Job, files: Sequence[HarnessFile], timeouts: Timeouts
) -> dict[str, bytes]:
    """Whole files of the host, each checked. Raises Refused when one is no longer what it was, or there is too much."""
    total = sum(file.size for file in files)
    if total > FETCH_LIMIT:
        raise Refused(f"{host.name}: {total} bytes to bring here, more than {FETCH_LIMIT}", host=host.name)
    if not files:
        return {}
    args = {"remote": job.harness_remote, "files": [file_entry(file) for file in files]}
    data = bytearray()
    with Conversation(connection, host, "harness_fetch", args, role="eval", timeouts=timeouts) as conversation:
        for event in conversation.events():
            data += event if isinstance(event, bytes) else b""
            if len(data) > total:
                break
    found, at = {}, 0
    for file in files:
        found[file.path] = bytes(data[at : at + file.size])
        at += file.size
    wrong = [file.path for file in files if hashlib.sha256(found[file.path]).hexdigest() != file.sha256]
    if wrong or len(data) != total:
        which = ", ".join(map(ascii, wrong[:3])) or "more bytes"
        raise TransferError(f"{host.name}: {which} came with other bytes than announced", host=host.name)
    return found


def last_synced(
    connection: Connection, host: Host, job: Job, files: Sequence[HarnessFile], timeouts: Timeouts
) -> dict[str, bytes]:
    """Contents of files of the last sync by their sha256, as far as the host has kept them."""
    wanted = sorted({file.sha256 for file in files})
    args = {"remote": job.harness_remote, "base": wanted}
    rows = ask(connection, host, "harness_read", args, role="eval", timeouts=timeouts)["base"] if wanted else {}
    found = {name: base64.b64decode(rows[name]) for name in wanted if rows.get(name) is not None}
    return {name: data for name, data in found.items() if hashlib.sha256(data).hexdigest() == name}
