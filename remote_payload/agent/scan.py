"""Which checkpoint below a root is the latest complete one, and why the newer ones are not.

Order is by integers in names, never by names or times; times only warn. Complete is what a file's own structure
proves, never a quiet period.
"""

import os
import time
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from remote_payload.agent import layouts
from remote_payload.agent.identity import utc
from remote_payload.agent.layouts.base import Found, Layout
from remote_payload.agent.openby import someone_writes
from remote_payload.agent.proofs import Proof
from remote_payload.agent.tree import Tree, join
from remote_payload.agent.verdicts import Hostile, Refusal, Torn

YOUNG = 120.0
"""seconds: an unproven newest checkpoint younger than this is being written, where training lives"""
RECENT = 600.0
"""seconds since the last write during which a second look is worth waiting for"""
PAUSE = 0.15
"""seconds between the two looks at an unproven checkpoint"""
MOST = 1000
"""candidates without a complete one among them, after which no older one is looked into"""
OLDER = 1.0
"""seconds spent on proving checkpoints older than the latest"""
SHIPPED_TORN = (
    "it did not fit its CRC or its directory when it was shipped; written anew (or touched), it is looked at afresh"
)
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
        self.needed = 0
        self.unseen = False
        """whether there was no time to look into it"""
        self.problem: Optional[Refusal] = None
        self.details: Optional[Dict[str, Any]] = None
        """of a complete one that was proven in this look: what a plan needs to know"""

    def row(self) -> Dict[str, Any]:
        """As CONTRACT.md's `candidates` has it, with `unseen`."""
        step = self.step if self.found.step is None else self.found.step
        return {
            "path": self.found.path,
            "step": step,
            "state": self.state,
            "reason": self.reason,
            "unseen": self.unseen,
        }

    def stamp(self) -> str:
        """Changes whenever a file of it does."""
        import hashlib

        return hashlib.sha256(repr(self.looked_at).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def scan(
    root: str,
    *,
    layout: Optional[str],
    training_alive: bool,
    now: float,
    step: Optional[int] = None,
    torn: Sequence[Dict[str, str]] = (),
    ship: Optional[str] = None,
    model_key: Optional[str] = None,
    tensors: bool = False,
    known: Optional[Dict[str, str]] = None,
) -> Dict[str, Any]:
    """The latest complete checkpoint below `root` (with `step`: that one only), and a row for every candidate.

    `torn` names files {path, identity, stamp} whose records are known not to fit their CRC: a proof from structure
    can't see that. One of another stamp was written anew, and is looked at afresh.
    `ship` and `model_key` are those of the job that will get it: with "model" a file that orch does not read is passed
    over, as it can't be that. `tensors` also lists what the latest one holds, as `latest["tensors"]`
    (see `tensorlist.listed`).
    Keys: root, layout, latest {path, step, bytes, ship_bytes, identity, stamp, age_s, modified_at} or None, candidates
    [{path, step, state, reason}] newest first, warnings. `now` is seconds since 1970. Raises AgentError(kind="config")
    for a root that isn't there or can't be read, and for an unknown layout.

    With `known` (path -> stamp of complete ones, from earlier looks; empty at the first) every candidate is looked
    into, however old, but for those whose stamp is still the same; complete rows then have `stamp` too, and
    `checkpoint` {path, step, bytes, ship_bytes, identity, stamp} where they were proven now.
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
    judge = _Judge(tree, run.layout, {(one["path"], one["identity"], one["stamp"]) for one in torn}, ship, model_key)
    judged, proof = _judge_all(judge, list(reversed(wanted)), known)
    try:
        _tell_writing_from_torn(tree, judged, training_alive, now)
        if proof is not None:
            latest = next(one for one in judged if one.state == "complete")
            answer["latest"] = _latest(latest, proof, now, warnings)
            if tensors:
                from remote_payload.agent.tensorlist import listed

                answer["latest"]["tensors"] = listed(proof, model_key)
    finally:
        if proof is not None:
            proof.close()
    if len(judged) < len(wanted):
        given_up = "none of the %d newest is complete; %d older ones were not looked into: --step N looks at one"
        warnings.append(given_up % (len(judged), len(wanted) - len(judged)))
    if proof is None and layout is None and (other := layouts.overlooked(tree, run)):
        overlooked = (
            "%s was read as layout %s; %s would be one of layout %s: name it as `layout:` of the run in hosts.yaml"
        )
        warnings.append(overlooked % (run.folder or "the folder", run.layout.name, other[1], other[0]))
    warnings.extend(_about_order(judged))
    warnings.extend(_about_links(tree, run.folder))
    told = [one for one in judged if one.state == "ignored" and (one.problem or "permission" in one.reason)]
    warnings.extend("%s: %s" % (one.found.path, one.reason) for one in told)
    ignored = [{"path": path, "step": None, "state": "ignored", "reason": why} for path, why in run.findings.ignored]
    answer["candidates"] = ([_row(one, known is not None) for one in judged] + ignored)[:LISTED]
    return answer


class _Judge(NamedTuple):
    """What candidates are held against; see `scan`."""

    tree: Tree
    layout: Layout
    torn: Set[Tuple[str, str, str]]
    """(path, identity, stamp)"""
    ship: Optional[str]
    model_key: Optional[str]

    def proof(self, one: Judged) -> Optional[Proof]:
        """The proof of a complete candidate; else None, with state and reason set (state "" for one not yet told)."""
        try:
            proof = self.layout.prove(self.tree, one.found.path)
        except Torn as problem:
            one.reason = str(problem)
            return None
        except Refusal as problem:
            one.state, one.reason = "ignored", str(problem)
            return None
        except OSError as error:
            gone = isinstance(error, FileNotFoundError)
            one.state = "ignored"
            one.reason = (
                "removed while it was looked at" if gone else "can't be read: %s" % (error.strerror or "").lower()
            )
            return None
        if proof.changed():
            one.reason = "it changed while it was looked at"
        elif (one.found.path, proof.identity, one.stamp()) in self.torn:
            one.state, one.reason = "torn", SHIPPED_TORN
        else:
            one.state, one.step, one.modified_at = "complete", proof.step, proof.modified_at
            return proof
        proof.close()
        return None

    def takes(self, one: Judged, proof: Proof) -> bool:
        """Whether a complete candidate can be what is wanted; says how many bytes of it are needed, or why not."""
        from remote_payload.agent.stream import ship_bytes

        one.needed = proof.total
        if self.ship == "whole":
            return True
        try:
            one.needed = ship_bytes(self.tree, one.found.path, proof, self.model_key)
        except Refusal as problem:
            one.problem = problem
        if self.ship != "model" or not isinstance(one.problem, Hostile):
            return True
        one.state = "ignored"
        one.reason = "orch does not read it: %s (`ship: whole` sends it as it is)" % one.problem
        return False


def _row(one: Judged, each: bool) -> Dict[str, Any]:
    if not each or one.state != "complete":
        return one.row()
    return dict(one.row(), stamp=one.stamp(), checkpoint=one.details)


def _judge_all(
    judge: _Judge, newest_first: List[Found], known: Optional[Dict[str, str]]
) -> Tuple[List[Judged], Optional[Proof]]:
    """Every candidate down to the first complete one, whose proof is kept open, of MOST at most; older ones while there
    is time, or all of them that are not `known`."""
    judged: List[Judged] = []
    latest: Optional[Proof] = None
    deadline = 0.0
    for found in newest_first:
        if latest is None and len(judged) == MOST:
            break
        one = Judged(found)
        judged.append(one)
        one.looked_at, one.modified_at = _look(judge.tree, found.path)
        if latest is not None and known is not None and known.get(found.path) == one.stamp():
            one.state = "complete"
            continue
        if latest is not None and known is None and time.monotonic() > deadline:
            one.state, one.reason = "ignored", "older than the latest complete one; not looked into"
            one.unseen = True
            continue
        proof = judge.proof(one)
        if proof is None:
            continue
        if (latest is None or known is not None) and judge.takes(one, proof):
            one.details = _details(one, proof)
        if latest is None and one.details is not None:
            latest, deadline = proof, time.monotonic() + OLDER
        else:
            proof.close()
    return judged, latest


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


def _latest(one: Judged, proof: Proof, now: float, warnings: List[str]) -> Dict[str, Any]:
    if one.step is not None and one.found.step is not None and one.step != one.found.step:
        warnings.append("%s holds step %d, not %d as its name says" % (one.found.path, one.step, one.found.step))
    if one.step is None and one.found.step is None:
        warnings.append("%s names no step, neither in its name nor inside; shown as 0" % one.found.path)
    warnings.extend(proof.warnings)
    if one.problem is not None:
        hint = ". Try: %s" % proof.hint if proof.hint else ""
        one.reason = "complete, but its model can't be taken out: %s" % one.problem
        warnings.append("%s is %s%s" % (one.found.path, one.reason, hint))
    return dict(
        one.details or _details(one, proof),
        age_s=max(0.0, round(now - proof.modified_at, 3)),
        modified_at=utc(proof.modified_at),
    )


def _details(one: Judged, proof: Proof) -> Dict[str, Any]:
    """{path, step, bytes, ship_bytes, identity, stamp} of a complete one."""
    step = one.step if one.step is not None else one.found.step
    return {
        "path": one.found.path,
        "step": step or 0,
        "bytes": proof.total,
        "ship_bytes": one.needed,
        "identity": proof.identity,
        "stamp": one.stamp(),
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
