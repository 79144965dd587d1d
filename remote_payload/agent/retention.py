"""What lies staged on an evaluation host, and which of it may go: never what a run uses, never the newest ones."""

import os
import shutil
import time
from typing import Any, Dict, List

from remote_payload.agent import incoming, runs, scratch, staging

USING = ("queued", "running")
UNFINISHED_FOR = 24 * 3600.0
"""seconds without a new chunk after which a shipment is given up"""


def staged_answer(args: Dict[str, Any], talk: Any) -> Dict[str, Any]:
    """args {"workdir"}. Answers {"staged": [{"identity", "step", "bytes", "path", "source", "staged_at", "whole",
    "used_by": [run id]}]}, the newest first. Nothing is written."""
    return {"staged": _rows(str(args["workdir"]))}


def clean_answer(args: Dict[str, Any], talk: Any) -> Dict[str, Any]:
    """args {"workdir", "keep", "dry_run"?, "among"?: [identity], the newest last}.

    Removes what is staged but for the newest `keep`, what a run uses, and shipments that may still go on; with `among`,
    as if nothing else lay there. Answers {"staged": [row as above, with "removed" and "why"]}.
    """
    workdir, left = str(args["workdir"]), int(args["keep"])
    rows = _rows(workdir)
    if args.get("among") is not None:
        age = {identity: place for place, identity in enumerate(reversed(args["among"]))}
        rows = [row for row in rows if row["whole"] and row["identity"] in age]
        rows.sort(key=lambda row: age[row["identity"]])
    for row in rows:
        if row["whole"]:
            row["why"] = _kept_because(row, left)
            left -= 1
        else:
            row["why"] = _still_coming(str(row["path"]))
        row["removed"] = not row["why"]
        if row["removed"] and not args.get("dry_run"):
            row["why"] = _remove(workdir, row)
            row["removed"] = not row["why"]
    return {"staged": rows}


def _rows(workdir: str) -> List[Dict[str, Any]]:
    used = _used(workdir)
    rows = [dict(row, whole=True) for row in staging.staged(workdir)]
    rows.sort(key=lambda row: str(row["staged_at"]), reverse=True)
    for row in staging.arriving(workdir):
        rows.append(dict(row, whole=False, step=None, entry=None, source=None, staged_at=None))
    return [dict(row, used_by=used.get(str(row["identity"]), [])) for row in rows]


def _used(workdir: str) -> Dict[str, List[str]]:
    found: Dict[str, List[str]] = {}
    for run in runs.list_runs(workdir):
        if run["state"] in USING:
            found.setdefault(str(run["checkpoint"]), []).append(str(run["id"]))
    return found


def _kept_because(row: Dict[str, Any], left: int) -> str:
    if row["used_by"]:
        return "run %s uses it" % row["used_by"][0]
    return "one of the newest" if left > 0 else ""


def _still_coming(folder: str) -> str:
    quiet = scratch.age(os.path.join(folder, "journal"))
    if incoming.in_use(folder):
        return "it is arriving"
    return "its shipment may still go on" if quiet < UNFINISHED_FOR else ""


def _remove(workdir: str, row: Dict[str, Any]) -> str:
    """Why it stays after all, or nothing. The name goes first: a run that starts meanwhile finds no checkpoint, and one
    that had found it just before is seen in the second look, and gets it back."""
    folder = str(row["path"])
    try:
        if not row["whole"]:
            shutil.rmtree(folder)
            return ""
        aside = scratch.create(os.path.dirname(folder), ".removed")
        os.rename(folder, os.path.join(aside, "folder"))
        time.sleep(0.05)
        users = _used(workdir).get(str(row["identity"]))
        if users:
            os.rename(os.path.join(aside, "folder"), folder)
        shutil.rmtree(aside, ignore_errors=True)
        return "run %s uses it" % users[0] if users else ""
    except OSError as error:
        return "it can't be removed: %s" % error.strerror
