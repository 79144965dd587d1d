"""Which checkpoint below a root is the latest complete one, and why the newer ones are not.

Order is by integers in names, never by names or times; times only warn. Complete is what a file's own structure
proves, never a quiet period.
"""

import os
import time
from typing import Any, Dict, List, Optional, Sequence, Tuple

from remote_payload.agent import layouts
from remote_payload.agent.layouts.base import Found, Layout
from remote_payload.agent.openby import someone_writes
from remote_payload.agent.proofs import Proof
from remote_payload.agent.tree import Tree, join
from remote_payload.agent.verdicts import Refusal, Torn

YOUNG = 120.0
"""seconds: an unproven newest checkpoint younger than this is being written, where training lives"""
RECENT = 600.0
"""seconds since the last write during which a second look is worth waiting for"""
PAUSE = 0.15
"""seconds between the two looks at an unproven checkpoint"""
OLDER = 1.0
"""seconds spent on proving checkpoints older than the latest"""
LISTED = 1000
"""candidates in an answer"""
Stamps = Tuple[Any, ...]


class Judged:
    """One candidate and what was found out about it."""

    def __init__(self, found: Found) -> None:
        self.found = found
        self.state = ""
        self.reason = ""
        self.looked_at: Stamps = ()
        self.modified_at = 0.0
        self.step: Optional[int] = None

    def row(self) -> Dict[str, Any]:
        """As CONTRACT.md's `candidates` has it."""
        step = self.step if self.found.step is None else self.found.step
        return {"path": self.found.path, "step": step, "state": self.state, "reason": self.reason}


def scan(
    root: str,
    *,
    layout: Optional[str],
    training_alive: bool,
    now: float,
    step: Optional[int] = None,
    torn: Sequence[str] = (),
    tensors: Optional[Dict[str, Any]] = None,
) -> Dict[str, Any]:
    """The latest complete checkpoint below `root` (with `step`: that one only), and a row for every candidate.

    `torn` names identities whose records are known not to fit their CRC: a proof from structure can't see that.
    `tensors` {"model_key"} also lists what the latest one holds, as `latest["tensors"]` (see `tensorlist.listed`).
    Keys: root, layout, latest {path, step, bytes, ship_bytes, identity, age_s, modified_at} or None, candidates
    [{path, step, state, reason}] newest first, warnings. `now` is seconds since 1970. Raises AgentError(kind="config")
    for a root that isn't there or can't be read, and for an unknown layout.
    """
    tree = Tree(root)
    answer: Dict[str, Any] = {"root": root, "layout": layout, "latest": None, "candidates": [], "warnings": []}
    run = layouts.recognise(tree, layout)
    if run is None:
        below = layouts.runs_below(tree, layout)
        if len(below) != 1:
            answer["candidates"], answer["warnings"] = _several(below, root)
            return answer
        run = below[0]
    answer["layout"] = run.layout.name
    warnings: List[str] = answer["warnings"]
    wanted = [found for found in run.findings.found if step is None or found.step == step]
    judged, proof = _judge_all(tree, run.layout, list(reversed(wanted)), torn)
    try:
        _tell_writing_from_torn(tree, judged, training_alive, now)
        if proof is not None:
            latest = next(one for one in judged if one.state == "complete")
            answer["latest"] = _latest(tree, latest, proof, now, warnings)
            if tensors is not None:
                from remote_payload.agent.tensorlist import listed

                answer["latest"]["tensors"] = listed(proof, tensors.get("model_key"))
    finally:
        if proof is not None:
            proof.close()
    warnings.extend(_about_order(judged))
    warnings.extend(_about_links(tree, run.folder))
    warnings.extend("%s: %s" % (one.found.path, one.reason) for one in judged if "permission" in one.reason)
    ignored = [{"path": path, "step": None, "state": "ignored", "reason": why} for path, why in run.findings.ignored]
    answer["candidates"] = ([one.row() for one in judged] + ignored)[:LISTED]
    return answer


def _judge_all(
    tree: Tree, layout: Layout, newest_first: List[Found], torn: Sequence[str]
) -> Tuple[List[Judged], Optional[Proof]]:
    """Every candidate down to the first complete one, whose proof is kept open; older ones while there is time."""
    judged: List[Judged] = []
    latest: Optional[Proof] = None
    deadline = 0.0
    for found in newest_first:
        one = Judged(found)
        judged.append(one)
        one.looked_at, one.modified_at = _look(tree, found.path)
        if latest is not None and time.monotonic() > deadline:
            one.state, one.reason = "ignored", "older than the latest complete one; not looked into"
            continue
        proof = _judge(tree, layout, one, torn)
        if proof is None:
            continue
        if latest is None:
            latest, deadline = proof, time.monotonic() + OLDER
        else:
            proof.close()
    return judged, latest


def _judge(tree: Tree, layout: Layout, one: Judged, torn: Sequence[str]) -> Optional[Proof]:
    """The proof of a complete candidate; else None, with state and reason set (state "" for one not yet told)."""
    try:
        proof = layout.prove(tree, one.found.path)
    except Torn as problem:
        one.reason = str(problem)
        return None
    except Refusal as problem:
        one.state, one.reason = "ignored", str(problem)
        return None
    except OSError as error:
        gone = isinstance(error, FileNotFoundError)
        one.state = "ignored"
        one.reason = "removed while it was looked at" if gone else "can't be read: %s" % (error.strerror or "").lower()
        return None
    if proof.changed():
        one.reason = "it changed while it was looked at"
        proof.close()
        return None
    if proof.identity in torn:
        one.state, one.reason = "torn", "a record of it did not fit its CRC when it was shipped"
        proof.close()
        return None
    one.state, one.step, one.modified_at = "complete", proof.step, proof.modified_at
    return proof


def _tell_writing_from_torn(tree: Tree, judged: List[Judged], training_alive: bool, now: float) -> None:
    """Say of every unproven candidate whether somebody still writes it."""
    unproven = [one for one in judged if not one.state]
    if any(now - one.modified_at < RECENT for one in unproven):
        time.sleep(PAUSE)
    for one in unproven:
        age = now - one.modified_at
        if one.reason.startswith("it changed") or _look(tree, one.found.path)[0] != one.looked_at:
            one.state = "writing"
            one.reason = "being written: it changed between two looks; %s" % one.reason
        elif age < RECENT and someone_writes(_files(tree, one.found.path)):
            one.state, one.reason = "writing", "being written: a process has it open; %s" % one.reason
        elif one is judged[0] and training_alive and age < YOUNG:
            one.state = "writing"
            one.reason = "perhaps being written: the newest, %d s old, and training lives; %s" % (age, one.reason)
        else:
            one.state = "torn"


def _look(tree: Tree, path: str) -> Tuple[Stamps, float]:
    """(what tells a change of a candidate's files, time of its last write)."""
    try:
        folder, name = (path, "") if tree.is_folder(path) else os.path.split(path)
        listed = tree.walk(folder) if not name else [(e.name, e) for e in tree.entries(folder) if e.name == name]
    except (OSError, Refusal):
        return ("gone",), 0.0
    newest = max((entry.mtime for _, entry in listed), default=0.0)
    if not listed:
        newest = next((e.mtime for e in tree.entries(os.path.dirname(path)) if e.name == os.path.basename(path)), 0.0)
    return tuple((below, entry.stamp) for below, entry in listed), newest


def _files(tree: Tree, path: str) -> List[str]:
    place = os.path.join(tree.root, path)
    try:
        return [os.path.join(place, below) for below, _ in tree.walk(path)] if tree.is_folder(path) else [place]
    except (OSError, Refusal):
        return []


def _latest(tree: Tree, one: Judged, proof: Proof, now: float, warnings: List[str]) -> Dict[str, Any]:
    from remote_payload.agent.stream import ship_bytes

    step = one.step if one.step is not None else one.found.step
    if one.step is not None and one.found.step is not None and one.step != one.found.step:
        warnings.append("%s holds step %d, not %d as its name says" % (one.found.path, one.step, one.found.step))
    if step is None:
        warnings.append("%s names no step, neither in its name nor inside; shown as 0" % one.found.path)
    warnings.extend(proof.warnings)
    try:
        needed = ship_bytes(tree, one.found.path, proof)
    except Refusal as problem:
        needed = proof.total
        hint = ". Try: %s" % proof.hint if proof.hint else ""
        one.reason = "complete, but its model can't be taken out: %s" % problem
        warnings.append("%s is %s%s" % (one.found.path, one.reason, hint))
    return {
        "path": one.found.path,
        "step": step or 0,
        "bytes": proof.total,
        "ship_bytes": needed,
        "identity": proof.identity,
        "age_s": max(0.0, round(now - proof.modified_at, 3)),
        "modified_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(proof.modified_at)),
    }


def _about_order(judged: List[Judged]) -> List[str]:
    """A warning where the newest by time is not the newest by step: copied back, or a reused folder."""
    timed = [one for one in judged if one.modified_at and one.state in ("complete", "ignored")]
    if not timed:
        return []
    newest = max(timed, key=lambda one: (one.modified_at, one.found.order))
    if newest is timed[0] or newest.modified_at <= timed[0].modified_at:
        return []
    return [
        "order by time differs from order by step: %s was written after %s. Steps decide; is the folder reused?"
        % (newest.found.path, timed[0].found.path)
    ]


def _about_links(tree: Tree, folder: str) -> List[str]:
    """Links beside the checkpoints that point at nothing inside the root. None is ever followed."""
    said: List[str] = []
    try:
        links = [entry.name for entry in tree.entries(folder) if entry.kind == "link"]
    except OSError:
        return said
    for name in links[:20]:
        path = join(folder, name)
        place = os.path.join(tree.root, path)
        if tree.inside(path) is None:
            where = "leaves the root" if os.path.exists(place) else "is not there"
            said.append("%s points at %s, which %s" % (path, os.readlink(place), where))
    return said


def _several(runs: List[layouts.Recognised], root: str) -> Tuple[List[Dict[str, Any]], List[str]]:
    """Rows and a warning where the root holds no checkpoints itself: none at all, or those of several runs."""
    if not runs:
        return [], ["no checkpoints of a known layout in %s" % root]
    rows = []
    names = []
    for run in runs:
        newest = run.findings.found[-1]
        names.append("%s step %s" % (run.folder, newest.step) if newest.step is not None else run.folder)
        reason = "one of %d runs below the root" % len(runs)
        rows.append({"path": newest.path, "step": newest.step, "state": "ignored", "reason": reason})
    said = "%d runs below %s (%s): name one as `checkpoints:`" % (len(runs), root, ", ".join(names))
    return rows[:LISTED], [said]
