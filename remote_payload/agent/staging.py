"""Checkpoints on an evaluation host: WORKDIR/checkpoints/IDENTITY/, there only when every byte of it was proven.

A checkpoint arrives in .incoming-IDENTITY (incoming.py), chunk by chunk. Only when all have come, and are those that
the sender sent, do checkpoint.json and then the folder's name appear.
"""

import os
import re
import shutil
import sys
import threading
import time
from typing import Any, Callable, Dict, List, Optional

from remote_payload.agent import authorizedkeys, chunks, incoming, scratch
from remote_payload.agent.errors import AgentError
from remote_payload.agent.folder import steps
from remote_payload.agent.identity import utc
from remote_payload.agent.incoming import Incoming
from remote_payload.agent.inflow import Inflow, unwritable

RECORD = "checkpoint.json"
RESERVE = 16 << 20
"""bytes that stay free beside the checkpoint, and 2% of it, unless something else is asked for"""
_IDENTITY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:+=-]{0,199}")
_TELL_EVERY = 0.5
"""seconds between two progress messages"""


def parent_of(workdir: str) -> str:
    """The folder of all staged checkpoints."""
    return os.path.join(scratch.expand(workdir), "checkpoints")


def folder_of(workdir: str, identity: str) -> str:
    """Where the checkpoint of this identity lies, or would. Raises AgentError for an identity that is no name."""
    if not _IDENTITY.fullmatch(identity):
        raise AgentError("not the identity of a checkpoint: %s" % ascii(identity), kind="config")
    return os.path.join(parent_of(workdir), identity)


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
    """The checkpoints that lie ready: [{"identity", "step", "bytes", "path", "entry", "source", "staged_at"}].

    Nothing is written.
    """
    parent = parent_of(workdir)
    found = []
    for identity in sorted(os.listdir(parent)) if os.path.isdir(parent) else ():
        record = record_of(workdir, identity) if _IDENTITY.fullmatch(identity) else None
        if record:
            row = {key: record.get(key) for key in ("identity", "step", "bytes", "entry", "source", "staged_at")}
            found.append(dict(row, path=os.path.join(parent, identity)))
    return found


def arriving(workdir: str) -> List[Dict[str, Any]]:
    """Shipments that have not ended: [{"identity", "bytes" on the disk, "path"}]. Nothing is written."""
    parent = parent_of(workdir)
    names = sorted(os.listdir(parent)) if os.path.isdir(parent) else []
    found = []
    for name in names:
        if name.startswith(incoming.PREFIX):
            place = os.path.join(parent, name)
            found.append({"identity": name[len(incoming.PREFIX) :], "bytes": allocated(place), "path": place})
    return found


def receive_answer(args: Dict[str, Any], talk: Any) -> Dict[str, Any]:
    """Take a checkpoint in.

    args {"workdir", "identity", "files": [{"path", "size"}], "chunk", "plan", "meta": {"step", "source", "entry"?},
    "keep_free"?, "keys"?, "door"?}: `plan` is equal for shipments whose chunks hold the same bytes, `entry` is the
    file that stands for the checkpoint on a command line, "" for its folder. Answers {"already": true, "path"} at once
    where it is staged; else says progress {"ready": {"missing": ranges, "have": bytes}}. Each message {"round":
    "relay"} or {"round": "lanes"} takes chunks and says progress {"missing": ranges}; a message {"sent": account} ends
    it, with the answer {"already": false, "path", "bytes"}; {"drop": true} ends it with nothing kept. Progress
    {"received": bytes, "total"} is said meanwhile. `keys` allows to touch authorized_keys: what killed attempts left
    there is removed. With `door` chunks may come through connections of their own (doors.py), which the message
    {"open": addresses} lets in; progress {"opened": {"line"} or {"error"}} answers it.

    Raises AgentError: refused (no room, no permission, somebody else receives it), transfer (bytes missing or other
    than the sender's). What has come by then is kept, and a later call for the same plan goes on from there.
    """
    final = folder_of(args["workdir"], args["identity"])
    for one in args["files"]:
        steps(one["path"])
        if one["path"] == RECORD:
            raise AgentError("a checkpoint can't hold a file named %s" % one["path"], kind="config")
    parent = os.path.dirname(final)
    arriving = os.path.join(parent, incoming.PREFIX + args["identity"])
    total = sum(one["size"] for one in args["files"])
    kept = 0
    try:
        os.makedirs(parent, mode=0o700, exist_ok=True)
        scratch.sweep(parent, ".removed")
        if args.get("keys"):
            _sweep_keys()
        with incoming.held(arriving):
            if record_of(args["workdir"], args["identity"]):
                shutil.rmtree(arriving, ignore_errors=True)
                return {"already": True, "path": final, "bytes": total}
            _need_room(parent, arriving, args)
            coming = Incoming(arriving, args["files"], args["plan"], args["chunk"])
            try:
                if not _receive(coming, args, talk):
                    shutil.rmtree(arriving, ignore_errors=True)
                    return {"already": False, "path": "", "bytes": 0}
                _finish(coming, final, args)
            finally:
                kept = coming.have
                coming.close()
    except OSError as error:
        outcome = "%d of %d bytes are kept there, and the same command goes on with them" % (kept, total)
        raise unwritable(parent, error, outcome) from None
    return {"already": False, "path": final, "bytes": total}


def _sweep_keys() -> None:
    """Lines that a killed attempt left in authorized_keys; they admit nobody any more."""
    try:
        authorizedkeys.sweep()
    except AgentError as problem:
        print(problem.message, file=sys.stderr)


def _need_room(parent: str, arriving: str, args: Dict[str, Any]) -> None:
    total, files = sum(one["size"] for one in args["files"]), len(args["files"])
    disk = os.statvfs(parent)
    free = disk.f_bavail * disk.f_frsize
    keep = RESERVE + total // 50 if args.get("keep_free") is None else int(args["keep_free"])
    needed = max(0, total - allocated(arriving)) + keep
    if free < needed:
        raise AgentError(
            "%s: %d bytes free, %d needed (%d of the checkpoint, %d to stay free)"
            % (parent, free, needed, total, keep),
            "orch clean removes old checkpoints there; or name another `workdir` for this host",
            kind="refused",
        )
    if disk.f_files and disk.f_favail < files + 8:
        raise AgentError("%s: %d inodes free, %d needed" % (parent, disk.f_favail, files + 8), kind="refused")


def allocated(folder: str) -> int:
    """Bytes on the disk that an earlier attempt holds already."""
    places = [os.path.join(base, name) for base, _, names in os.walk(folder) for name in names]
    return sum(os.lstat(place).st_blocks * 512 for place in places if os.path.lexists(place))


def _receive(coming: Incoming, args: Dict[str, Any], talk: Any) -> bool:
    """Take chunks, round by round, until the controller says what was sent, or that none of it is wanted (False).

    Raises AgentError, OSError.
    """
    tell = _teller(coming, talk)
    doors = None
    if args.get("door"):
        from remote_payload.agent.doors import Doors

        doors = Doors(args["door"], coming, tell, talk)
    try:
        talk.progress({"ready": {"missing": coming.missing(), "have": coming.have}})
        while True:
            message = talk.message()
            if "sent" in message:
                break
            if "drop" in message:
                return False
            if "open" in message:
                talk.progress({"opened": doors.open(message["open"]) if doors else {"error": "no key was named"}})
                continue
            if message["round"] == "relay":
                _take_relayed(coming, talk, tell)
            elif doors is not None:
                doors.wait()
            talk.progress({"missing": coming.missing(), "received": coming.have, "total": coming.bytes})
    finally:
        if doors is not None:
            doors.close()
    missing = coming.missing()
    if missing:
        raise AgentError("%d bytes did not come" % (coming.bytes - coming.have), "run the command again", "transfer")
    if not coming.agrees(message["sent"]):
        raise AgentError("other bytes arrived than were sent", "run the command again", kind="transfer")
    return True


def _take_relayed(coming: Incoming, talk: Any, tell: Callable[[], None]) -> None:
    inflow = Inflow(talk.received())
    try:
        for found in chunks.Frames(inflow.into):
            coming.take(*found)
            tell()
    except chunks.BadFrame as problem:
        raise AgentError("what came is no shipment: %s" % problem, "run the command again", "transfer") from None


def _teller(coming: Incoming, talk: Any) -> Callable[[], None]:
    """Says how far it is, now and then. Called from several threads."""
    lock, said = threading.Lock(), [0.0]

    def tell() -> None:
        with lock:
            if time.monotonic() - said[0] < _TELL_EVERY:
                return
            said[0] = time.monotonic()
        talk.progress({"received": coming.have, "total": coming.bytes})

    return tell


def _finish(coming: Incoming, final: str, args: Dict[str, Any]) -> None:
    """Write the record, make all of it last, and give the folder its name."""
    meta, trees = args.get("meta", {}), coming.trees()
    files = [dict(path=one["path"], size=one["size"], tree=trees.get(one["path"], "")) for one in args["files"]]
    record = {
        "schema": scratch.SCHEMA,
        "identity": args["identity"],
        "step": meta.get("step"),
        "source": meta.get("source"),
    }
    record.update(entry=meta.get("entry", ""), files=files, bytes=coming.bytes, chunk=args["chunk"])
    record["staged_at"] = utc()
    for one in files:
        scratch.sync(os.path.join(coming.files, one["path"]))
    scratch.write_json(os.path.join(coming.files, RECORD), record)
    for folder, _, _ in os.walk(coming.files):
        scratch.sync(folder)
    try:
        os.rename(coming.files, final)
    except OSError:
        set_aside(final)  # a folder of this name that is no whole checkpoint
        os.rename(coming.files, final)
    scratch.sync(os.path.dirname(final))
    shutil.rmtree(coming.folder, ignore_errors=True)


def set_aside(folder: str) -> None:
    """Take a folder's name away at once, then its files."""
    aside = scratch.create(os.path.dirname(folder), ".removed")
    os.rename(folder, os.path.join(aside, "folder"))
    shutil.rmtree(aside, ignore_errors=True)
