"""Checkpoints on an evaluation host: WORKDIR/checkpoints/IDENTITY/, there only when every byte of it was proven.

A checkpoint arrives in .incoming-IDENTITY-RANDOM, hashed while it is written. The sender's hashes come behind the
bytes; only when they agree does checkpoint.json, and then the folder's name, appear.
"""

import hashlib
import os
import re
import shutil
import time
from typing import Any, Dict, List, Optional, Sequence

from remote_payload.agent import scratch
from remote_payload.agent.errors import AgentError
from remote_payload.agent.folder import steps
from remote_payload.agent.inflow import Inflow, unwritable, write_all

RECORD = "checkpoint.json"
RESERVE = 16 << 20
"""bytes that stay free beside the checkpoint, and 2% of it"""
_IDENTITY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:+=-]{0,199}")
_NOTHING_LEFT = "nothing of it was kept"
_TELL_EVERY = 0.5
"""seconds between two progress messages"""


def folder_of(workdir: str, identity: str) -> str:
    """Where the checkpoint of this identity lies, or would. Raises AgentError for an identity that is no name."""
    if not _IDENTITY.fullmatch(identity):
        raise AgentError("not the identity of a checkpoint: %s" % ascii(identity), kind="config")
    return os.path.join(scratch.expand(workdir), "checkpoints", identity)


def record_of(workdir: str, identity: str) -> Optional[Dict[str, Any]]:
    """The checkpoint.json of a staged checkpoint: {"identity", "step", "files", "bytes", "source", "entry", ...}; None
    when it is not staged, or a file of it has gone or has another size."""
    folder = folder_of(workdir, identity)
    record = scratch.read_record(os.path.join(folder, RECORD))
    if record is None or record.get("identity") != identity:
        return None
    try:
        whole = all(_size(os.path.join(folder, one["path"])) == one["size"] for one in record["files"])
    except (KeyError, TypeError):
        return None  # damaged
    return record if whole else None


def _size(path: str) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return -1


def staged(workdir: str) -> List[Dict[str, Any]]:
    """The checkpoints that lie ready: [{"identity", "step", "bytes", "path", "entry"}]. Nothing is written."""
    parent = os.path.join(scratch.expand(workdir), "checkpoints")
    found = []
    for identity in sorted(os.listdir(parent)) if os.path.isdir(parent) else ():
        record = record_of(workdir, identity) if _IDENTITY.fullmatch(identity) else None
        if record:
            row = {key: record.get(key) for key in ("identity", "step", "bytes", "entry")}
            found.append(dict(row, path=os.path.join(parent, identity)))
    return found


def receive_answer(args: Dict[str, Any], talk: Any) -> Dict[str, Any]:
    """Take a checkpoint in.

    args {"workdir", "identity", "files": [{"path", "size"}], "meta": {"step", "source", "entry"?}}: `entry` is the file
    that stands for the checkpoint on a command line, "" for its folder. Answers {"already": true, "path"} at once where
    it is staged; else says progress {"ready": true}, takes the files' bytes as one stream, then a message {"files":
    [{"path", "size", "sha256"}]} with the sender's hashes, and answers {"already": false, "path", "bytes"}.
    Progress {"received": bytes} is said meanwhile.
    Raises AgentError: refused (no room, no permission), transfer (bytes missing or other than the sender's).
    """
    identity, files = args["identity"], args["files"]
    final = folder_of(args["workdir"], identity)
    for one in files:
        steps(one["path"])
        if one["path"] in (RECORD, scratch.WRITER):
            raise AgentError("a checkpoint can't hold a file named %s" % one["path"], kind="config")
    parent = os.path.dirname(final)
    total = sum(one["size"] for one in files)
    try:
        os.makedirs(parent, mode=0o700, exist_ok=True)
        scratch.sweep(parent, ".incoming")
        if record_of(args["workdir"], identity):
            return {"already": True, "path": final, "bytes": total}
        _need_room(parent, total, len(files))
        incoming = scratch.create(parent, ".incoming-" + identity)
        try:
            talk.progress({"ready": True, "total": total})
            hashes = _take(incoming, files, talk)
            _compare(files, hashes, talk.message()["files"])
            _finish(incoming, final, args, hashes)
        finally:
            shutil.rmtree(incoming, ignore_errors=True)
    except OSError as error:
        raise unwritable(parent, error, _NOTHING_LEFT) from None
    return {"already": False, "path": final, "bytes": total}


def _need_room(parent: str, total: int, files: int) -> None:
    disk = os.statvfs(parent)
    free = disk.f_bavail * disk.f_frsize
    needed = total + RESERVE + total // 50
    if free < needed:
        raise AgentError(
            "%s: %d bytes free, %d needed (%d of the checkpoint and a reserve)" % (parent, free, needed, total),
            "remove old folders there, or name another `workdir` for this host",
            kind="refused",
        )
    if disk.f_files and disk.f_favail < files + 8:
        raise AgentError("%s: %d inodes free, %d needed" % (parent, disk.f_favail, files + 8), kind="refused")


def _take(incoming: str, files: Sequence[Dict[str, Any]], talk: Any) -> Dict[str, str]:
    """Write the stream's files; returns path -> sha256 of what arrived."""
    inflow = Inflow(talk.received())
    hashes = {}
    told = time.monotonic()
    for one in files:
        place = os.path.join(incoming, one["path"])
        os.makedirs(os.path.dirname(place), exist_ok=True)
        digest = hashlib.sha256()
        descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            for part in inflow.take(one["size"]):
                digest.update(part)
                write_all(descriptor, part)
                if time.monotonic() - told > _TELL_EVERY:
                    told = time.monotonic()
                    talk.progress({"received": inflow.taken, "total": sum(file["size"] for file in files)})
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        hashes[one["path"]] = digest.hexdigest()
    inflow.finish()
    return hashes


def _compare(files: Sequence[Dict[str, Any]], hashes: Dict[str, str], sent: Sequence[Dict[str, Any]]) -> None:
    theirs = {one["path"]: (one["size"], one["sha256"]) for one in sent}
    ours = {one["path"]: (one["size"], hashes[one["path"]]) for one in files}
    for path in sorted(set(theirs) | set(ours)):
        if theirs.get(path) != ours.get(path):
            raise AgentError(
                "%s arrived with other bytes than were sent; %s" % (ascii(path), _NOTHING_LEFT),
                "run the command again",
                kind="transfer",
            )


def _finish(incoming: str, final: str, args: Dict[str, Any], hashes: Dict[str, str]) -> None:
    """Write the record, make all of it last, and give the folder its name."""
    meta = args.get("meta", {})
    files = [dict(path=one["path"], size=one["size"], sha256=hashes[one["path"]]) for one in args["files"]]
    record = {"schema": 1, "identity": args["identity"], "step": meta.get("step"), "source": meta.get("source")}
    record.update(entry=meta.get("entry", ""), files=files, bytes=sum(one["size"] for one in files))
    record["staged_at"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    scratch.write_json(os.path.join(incoming, RECORD), record)
    os.unlink(os.path.join(incoming, scratch.WRITER))
    for folder, _, _ in os.walk(incoming):
        scratch.sync_folder(folder)
    try:
        os.rename(incoming, final)
    except OSError:
        if record_of(args["workdir"], args["identity"]):
            return  # somebody else was first, with the same bytes
        _set_aside(final)
        os.rename(incoming, final)
    scratch.sync_folder(os.path.dirname(final))


def _set_aside(damaged: str) -> None:
    """A folder of this name that is no whole checkpoint makes room."""
    aside = scratch.create(os.path.dirname(damaged), ".incoming-damaged")
    os.rename(damaged, os.path.join(aside, "damaged"))
    shutil.rmtree(aside, ignore_errors=True)
