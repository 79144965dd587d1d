"""The harness folder on an evaluation host: what is there, its files for a diff, and the questions about it."""

import base64
import os
from typing import Any, Dict, Iterable, List, Sequence

from remote_payload.agent import lastsync, manifest
from remote_payload.agent.errors import AgentError
from remote_payload.agent.folder import Folder
from remote_payload.agent.manifest import Entry
from remote_payload.agent.scratch import expand
from remote_payload.agent.wire import CHUNK

EXTRAS = 500
"""names of files that no manifest holds, at most"""
LOOKED_AT = 20000
"""files looked at in search of extras, at most"""
FILE_LIMIT = 1 << 20
"""bytes of one file shown in a diff"""
TOTAL_LIMIT = 16 << 20
RENAMES = 100
"""extras looked into for a file that was renamed, at most"""


def facts(remote: str, entries: Sequence[Entry], also: Iterable[str] = ()) -> Dict[str, Any]:
    """What lies in the remote harness folder, against the local manifest; `also` names more files to look at.

    {"path", "exists", "writable", "files": entries of the files that the local manifest or the last sync names,
    "extras": [{"path", "size"}], "extras_cut": bool, "renames": [{"from", "entry"}]: files of the last sync that lie
    there under a name of their own now, "base": entries or None, "notes": [str]}. Nothing is written.
    """
    root = expand(remote)
    answer: Dict[str, Any] = {"path": root, "exists": os.path.isdir(root), "writable": _writable(root)}
    answer.update(files=[], extras=[], extras_cut=False, renames=[], base=None, notes=[])
    if not answer["exists"]:
        if os.path.lexists(root):
            raise AgentError("%s is not a folder" % root, "name another `harness.remote` in the job", kind="config")
        return answer
    base, intent = lastsync.base_of(root), lastsync.intent_of(root)
    named = {*also, *(one["path"] for one in (*entries, *(base or ()), *(intent or ())))}
    folder = Folder(root)
    found = {path: folder.entry(path) for path in sorted(named)}
    base = lastsync.settled(base, intent, found)
    answer.update(base=base, files=[one for one in found.values() if one is not None])
    _add_extras(answer, root, named)
    gone = [one for one in base or () if found[one["path"]] is None]
    answer["renames"] = _renames(folder, gone, answer["extras"])
    if intent is not None:
        answer["notes"].append("a sync of %s was cut; the next one ends it" % root)
    return answer


def _renames(folder: Folder, gone: Sequence[Entry], extras: Sequence[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """Files of the last sync that are gone, and lie there with the same bytes under a name that nobody knows."""
    renames = []
    missing = {one["sha256"]: one for one in gone}
    sizes = {one["size"] for one in gone}
    candidates = [extra["path"] for extra in extras if extra["size"] in sizes and extra["path"][:1] not in "'\""]
    for path in candidates[:RENAMES]:
        try:
            entry = folder.entry(path)
        except AgentError:
            continue
        old = missing.pop(entry["sha256"], None) if entry else None
        if old is not None:
            renames.append({"from": old["path"], "entry": entry})
    return renames


def _writable(root: str) -> bool:
    place = root
    while not os.path.lexists(place):
        place = os.path.dirname(place)
    return os.access(place, os.W_OK | os.X_OK)


def _add_extras(answer: Dict[str, Any], root: str, named: "set[str]") -> None:
    walk = manifest.walk(root, manifest.rules_of(root), answer["notes"])
    for looked_at, (path, place) in enumerate(walk):
        if looked_at >= LOOKED_AT or len(answer["extras"]) >= EXTRAS:
            answer["extras_cut"] = True
            return
        if path not in named:
            try:
                size = os.lstat(place).st_size
            except OSError:
                continue
            answer["extras"].append({"path": printable(path), "size": size})


def printable(path: str) -> str:
    """A name from a host as text that is valid UTF-8 and has no control characters."""
    return path if not manifest.odd(path) else ascii(path)


def read_files(remote: str, paths: Sequence[str]) -> List[Dict[str, Any]]:
    """Contents for a diff: [{"path", "size", "data": base64 or None, "why": "" | missing | link | large}]."""
    folder = Folder(expand(remote))
    total = 0
    files = []
    for path in paths:
        found = _content(folder, path)
        size = found.pop("length")
        if total + size > TOTAL_LIMIT:
            found.update(data=None, why="large")
        else:
            total += size
        files.append(found)
    return files


def _content(folder: Folder, path: str) -> Dict[str, Any]:
    answer: Dict[str, Any] = {"path": path, "size": 0, "data": None, "why": "", "length": 0}
    try:
        descriptor = folder.open(path)
    except FileNotFoundError:
        return dict(answer, why="missing")
    except OSError:
        return dict(answer, why="link")
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(FILE_LIMIT + 1)
        size = os.fstat(file.fileno()).st_size
    if len(data) > FILE_LIMIT:
        return dict(answer, size=size, why="large")
    return dict(answer, size=size, data=_text(data), length=len(data))


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def harness_read_answer(args: Dict[str, Any], talk: Any) -> Dict[str, Any]:
    """args {"remote", "entries"?, "also"?, "contents"?, "paths"?, "base"?: [sha256]} ->

    {"harness": facts, "files": contents of `paths`, or with `contents` of all that differ from `entries`, "base":
    {sha256: contents of the last sync in base64, or None}}; each where it was asked for.
    """
    answer: Dict[str, Any] = {}
    paths = args.get("paths")
    if "entries" in args:
        answer["harness"] = facts(args["remote"], args["entries"], args.get("also", ()))
        if args.get("contents"):
            paths = _differing(answer["harness"], args["entries"])
    if paths is not None:
        answer["files"] = read_files(args["remote"], paths)
    if "base" in args:
        found = lastsync.contents(expand(args["remote"]), args["base"])
        answer["base"] = {name: None if data is None else _text(data) for name, data in found.items()}
    return answer


def _differing(found: Dict[str, Any], entries: Sequence[Entry]) -> List[str]:
    """Paths of the files there that the local manifest has in another version, or not at all."""
    ours = {one["path"]: one["sha256"] for one in entries}
    there = [*found["files"], *(rename["entry"] for rename in found["renames"])]
    return [one["path"] for one in there if ours.get(one["path"]) != one["sha256"]]


def harness_fetch_answer(args: Dict[str, Any], talk: Any) -> Dict[str, Any]:
    """args {"remote", "files": entries}: their bytes as one stream, in that order -> {}.

    Raises AgentError (refused) where one is no longer that file.
    """
    folder = Folder(expand(args["remote"]))
    for one in args["files"]:
        if folder.entry(one["path"]) != one:
            raise AgentError(
                "%s changed meanwhile" % os.path.join(folder.root, one["path"]), "run the command again", kind="refused"
            )
        with os.fdopen(folder.open(one["path"]), "rb", buffering=0) as file:
            left = one["size"]
            while left:
                data = file.read(min(left, CHUNK))
                if not data:
                    break  # it shrank: the other side counts
                left -= len(data)
                talk.send(data)
    return {}


def harness_sync_answer(args: Dict[str, Any], talk: Any) -> Dict[str, Any]:
    """First what `harness_read_answer` says, as progress. Then the controller's message {"push": what is left of
    `harness_push_answer`'s args} and the bytes -> what that returns; any other message ends it -> {}."""
    talk.progress(harness_read_answer(args, talk))
    asked = talk.message().get("push")
    if asked is None:
        return {}
    return harness_push_answer({"remote": args["remote"], "entries": args["entries"], **asked}, talk)


def harness_push_answer(args: Dict[str, Any], talk: Any) -> Dict[str, Any]:
    """args {"remote", "entries", "send", "delete", "expected"}, then the bytes of the files in `send`, in that order,
    as one stream (none where they hold no byte) -> what `push.push` returns."""
    from remote_payload.agent import push

    sizes = {one["path"]: one["size"] for one in args["entries"]}
    pieces = talk.received() if sum(sizes.get(path, 0) for path in args["send"]) else ()
    return push.push(args["remote"], args["entries"], args["send"], args["delete"], args["expected"], pieces)
