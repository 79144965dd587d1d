"""The harness folder on an evaluation host: what is there, its files for a diff, and the questions about it."""

import base64
import os
from typing import Any, Dict, Iterable, List, Optional, Sequence

from remote_payload.agent import manifest
from remote_payload.agent.errors import AgentError
from remote_payload.agent.folder import Folder, steps
from remote_payload.agent.manifest import Entry
from remote_payload.agent.scratch import expand, read_record

EXTRAS = 500
"""names of files that no manifest holds, at most"""
LOOKED_AT = 20000
"""files looked at in search of extras, at most"""
FILE_LIMIT = 1 << 20
"""bytes of one file shown in a diff"""
TOTAL_LIMIT = 16 << 20


def base_of(root: str) -> Optional[List[Entry]]:
    """The manifest that was last synced to `root`, kept there; None where there is none, or something else there."""
    synced = read_record(os.path.join(root, ".orch", "synced.json"))
    files = synced.get("files") if synced else None
    return files if isinstance(files, list) and all(map(_is_entry, files)) else None


def _is_entry(one: Any) -> bool:
    """Whether a row of a file on the host is a manifest's: its path leads nowhere else."""
    if not isinstance(one, dict) or not isinstance(one.get("path"), str) or manifest.odd(one["path"]):
        return False
    try:
        steps(one["path"])
    except AgentError:
        return False
    numbers = isinstance(one.get("mode"), int) and isinstance(one.get("size"), int)
    return numbers and isinstance(one.get("sha256"), str) and one["sha256"].isascii()


def facts(remote: str, entries: Sequence[Entry], ignore: Optional[Iterable[str]] = None) -> Dict[str, Any]:
    """What lies in the remote harness folder, against the local manifest.

    {"path", "exists", "writable", "files": entries of the files that the local manifest or the last sync names,
    "extras": [{"path", "size"}], "extras_cut": bool, "base": entries or None, "notes": [str]}. Nothing is written.
    """
    root = expand(remote)
    answer: Dict[str, Any] = {"path": root, "exists": os.path.isdir(root), "writable": _writable(root)}
    answer.update(files=[], extras=[], extras_cut=False, base=None, notes=[])
    if not answer["exists"]:
        if os.path.lexists(root):
            raise AgentError("%s is not a folder" % root, "name another `harness.remote` in the job", kind="config")
        return answer
    base = base_of(root)
    named = {one["path"] for one in entries} | {one["path"] for one in base or ()}
    found = (Folder(root).entry(path) for path in sorted(named))
    answer.update(base=base, files=[one for one in found if one is not None])
    _add_extras(answer, root, named, ignore)
    return answer


def _writable(root: str) -> bool:
    place = root
    while not os.path.lexists(place):
        place = os.path.dirname(place)
    return os.access(place, os.W_OK | os.X_OK)


def _add_extras(answer: Dict[str, Any], root: str, named: "set[str]", ignore: Optional[Iterable[str]]) -> None:
    rules = manifest.rules_of(root, ignore)
    for looked_at, (path, place) in enumerate(manifest.walk(root, rules, answer["notes"])):
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
    return dict(answer, size=size, data=base64.b64encode(data).decode("ascii"), length=len(data))


def harness_read_answer(args: Dict[str, Any], talk: Any) -> Dict[str, Any]:
    """args {"remote", "entries"?, "ignore"?, "paths"?} -> {"harness": facts, "files": contents of `paths`}."""
    answer: Dict[str, Any] = {}
    if "entries" in args:
        answer["harness"] = facts(args["remote"], args["entries"], args.get("ignore"))
    if "paths" in args:
        answer["files"] = read_files(args["remote"], args["paths"])
    return answer


def harness_push_answer(args: Dict[str, Any], talk: Any) -> Dict[str, Any]:
    """args {"remote", "entries", "send", "delete", "expected"}, then the bytes of the files in `send`, in that order,
    as one stream (none where they hold no byte) -> what `push.push` returns."""
    from remote_payload.agent import push

    sizes = {one["path"]: one["size"] for one in args["entries"]}
    pieces = talk.received() if sum(sizes.get(path, 0) for path in args["send"]) else ()
    return push.push(args["remote"], args["entries"], args["send"], args["delete"], args["expected"], pieces)
