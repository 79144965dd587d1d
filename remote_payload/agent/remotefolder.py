"""What else lies in a job's remote folder beside the harness: older checkpoints, caches, results and their headline."""

import json
import os
import re
import sys
from typing import Any, Dict, Iterator, List, Optional, Set

from remote_payload.agent import scratch
from remote_payload.agent.harness import printable
from remote_payload.agent.identity import utc
from remote_payload.agent.manifest import to_bytes, to_text

LISTED = 200
"""names listed, at most"""
_COUNTED = 20000
"""files whose sizes are added up in one folder, at most"""
_JSON_LIMIT = 16 << 20
_WEIGHTS = (".pt", ".pth", ".safetensors", ".bin", ".ckpt")
_STEP = re.compile(r"(step|checkpoint|ckpt|global_step|iter)[_-]?\d+", re.IGNORECASE)
_CACHE = re.compile(r"cache|hidden_states", re.IGNORECASE)


def remote_folder(remote: str, harness_files: Set[str], headline: Optional[str] = None) -> List[Dict[str, Any]]:
    """[{"path", "kind": checkpoint | cache | result | other, "bytes", "modified_at", "headline"}], newest first.

    Names at the top of the folder, and what lies in a folder called checkpoints or results. `headline` is the dotted
    path of a number in result files. Sizes of very large folders are lower bounds.
    """
    root = to_bytes(scratch.expand(remote))
    top = {path.split("/")[0] for path in harness_files}
    rows = [_row(root, name, headline) for name in _names(root, top)]
    found = [row for row in rows if row is not None]
    return sorted(found, key=lambda row: str(row["modified_at"]), reverse=True)[:LISTED]


def _names(root: bytes, harness: Set[str]) -> Iterator[bytes]:
    for name in scratch.listed(root):
        if to_text(name) in harness or name.startswith(b".") or name == b"__pycache__":
            continue
        if name in (b"checkpoints", b"results") and os.path.isdir(os.path.join(root, name)):
            yield from (os.path.join(name, one) for one in scratch.listed(os.path.join(root, name)))
        else:
            yield name


def _row(root: bytes, name: bytes, headline: Optional[str]) -> Optional[Dict[str, Any]]:
    place = os.path.join(root, name)
    try:
        found = os.lstat(place)
    except OSError:
        return None
    value = _headline(place, headline) if name.endswith(b".json") else None
    return {
        "path": printable(to_text(name)),
        "kind": _kind(place, to_text(name), value is not None),
        "bytes": _bytes(place),
        "modified_at": utc(found.st_mtime),
        "headline": value,
    }


def _kind(place: bytes, name: str, has_headline: bool) -> str:
    last = name.rsplit("/", 1)[-1]
    if has_headline or (last.endswith(".json") and "result" in name):
        return "result"
    if _CACHE.search(last):
        return "cache"
    if last.endswith(_WEIGHTS) or (os.path.isdir(place) and (_STEP.fullmatch(last) or _holds_weights(place))):
        return "checkpoint"
    return "other"


def _holds_weights(folder: bytes) -> bool:
    return any(to_text(name).endswith(_WEIGHTS) for name in scratch.listed(folder))


def _bytes(place: bytes) -> int:
    if not os.path.isdir(place) or os.path.islink(place):
        return os.lstat(place).st_size
    total = counted = 0
    for folder, _, names in os.walk(place):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size
            except OSError:
                continue
            counted += 1
            if counted >= _COUNTED:
                return total
    return total


def _headline(place: bytes, dotted: Optional[str]) -> Optional[float]:
    """The number at a dotted path of a JSON file; None where there is none."""
    try:
        if not dotted or not os.path.isfile(place) or os.path.getsize(place) > _JSON_LIMIT:
            return None
        with open(place, "rb") as file:
            value = json.loads(file.read().decode("utf-8"))
        for key in dotted.split("."):
            value = value[key]
    except (OSError, ValueError, KeyError, TypeError, IndexError, RecursionError):
        return None
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    return float(value) if number else None
