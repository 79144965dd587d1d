"""Runs of an evaluation host: starting one, what state each is in, following one, and its small files.

States come from files alone: exit.json says how a run ended; without it a run is queued or running while the supervisor
that started.json names is alive (same incarnation, pid, start ticks, run id), and lost once it is gone.
"""

import base64
import json
import os
import time
from typing import Any, Dict, List, Optional, Set, Tuple

from remote_payload.agent import ending, launcher, logfollow, lookagain, runfolder, scratch
from remote_payload.agent.errors import AgentError
from remote_payload.agent.runfolder import EXIT, SPEC, STARTED

STARTING = 2.0
"""seconds that a supervisor on its own may take to say how it holds the evaluation"""
LOG_BEHIND = 1 << 20
"""bytes that a follower who does not want all of it may be behind before the middle is skipped"""
COLLECT_LIMIT = 40 << 20
"""bytes of a run's small files together: any result (ending.RESULT_LIMIT) fits, and base64 of it fits one frame"""
TERMINAL = ("succeeded", "failed", "cancelled", "refused", "lost")


def list_runs(workdir: str) -> List[Dict[str, Any]]:
    """One row for each run folder, oldest first: {"id", "key", "attempt", "job", "host", "run", "step", "state",
    "exit_code", "signal", "reason", "queued_at", "started_at", "ended_at", "rung", "checkpoint", "digests",
    "folder"}."""
    parent = runfolder.runs_folder(workdir)
    names = [name for name in os.listdir(parent) if not name.startswith(".")] if os.path.isdir(parent) else []
    rows = [row_of(os.path.join(parent, name)) for name in names]
    found = [row for row in rows if row is not None]
    return sorted(found, key=lambda row: (row["queued_at"] or row["ended_at"] or "~", row["id"]))


def runs_answer(args: Dict[str, Any], talk: Any) -> Dict[str, Any]:
    """args {"workdir"} -> {"runs": [row]}, oldest first. Nothing is written."""
    return {"runs": list_runs(args["workdir"])}


def row_of(folder: str) -> Optional[Dict[str, Any]]:
    """The row of one run folder; None for a folder that is none, such as a copy of one under another name.

    Raises AgentError for one that a newer orch wrote.
    """
    spec = scratch.read_record(os.path.join(folder, SPEC))
    if spec is None or spec.get("id") != os.path.basename(folder) or not isinstance(spec.get("step"), int):
        return None
    row = {name: spec.get(name) for name in ("id", "key", "attempt", "job", "host", "run", "step", "checkpoint")}
    row.update(
        folder=folder, digests=spec.get("digests"), exit_code=None, signal=None, reason="", rung="", ended_at=None
    )
    started = scratch.read_json(os.path.join(folder, STARTED)) or {}
    row.update({name: started.get(name) for name in ("queued_at", "started_at")}, rung=started.get("rung", ""))
    ended = scratch.read_json(os.path.join(folder, EXIT))
    if ended is None or ended.get("state") not in TERMINAL:
        row["state"], row["reason"] = launcher.look(folder, str(spec.get("id")))
        ended = scratch.read_json(os.path.join(folder, EXIT))  # again: what ended meanwhile has ended
    if ended is not None and ended.get("state") in TERMINAL:
        row.update({name: ended.get(name) for name in ("state", "exit_code", "signal", "reason", "ended_at", "rung")})
    return row


def launch_answer(args: Dict[str, Any], talk: Any) -> Dict[str, Any]:
    """Start a run, or find that it is there already.

    args {"workdir", "key", "id", "spec", "secrets", "again"?: bool, "taken"?: [ids in use elsewhere]}; spec {"job",
    "host", "run", "step", "checkpoint": identity, "harness": {"remote", "digest", "files": manifest}, "digests",
    "command", "python", "data": {name: path}, "env", "limits": {"threads", "memory", "wall", "grace", "evaluations"},
    "result": file name, "gpu_devices"?, "beside"?: the trainings of this host, see beside.Beside, "trains"?: what to
    look for again, see lookagain}.
    Answers {"id", "run": row, "started", "joined", "already"}, one of the three true: joined for a run of this key
    that is queued or running, already for one that succeeded. After a failed or lost one comes a new attempt, ID-2, and
    with "again" after one that succeeded, too. While another evaluation is at work on the host the run is queued.
    Raises AgentError: refused where the checkpoint, the harness's version, data, python or room is missing.
    """
    workdir, key, spec = args["workdir"], args["key"], args["spec"]
    secrets: Dict[str, str] = args.get("secrets") or {}
    again = bool(args.get("again"))
    found = _present(workdir, key, again)
    if found:
        return found
    spec = lookagain.look_again(workdir, spec)
    draft = runfolder.prepare(workdir, spec, sorted(secrets), talk.bundle)
    try:
        while True:
            taken = set(
                os.listdir(runfolder.runs_folder(workdir))
            )  # before the look: what comes later is met by `take`
            taken.update(args.get("taken") or ())
            found = _present(workdir, key, again)
            if found:
                return found
            run_id, attempt = _free_id(args["id"], taken)
            if draft.take(run_id, key, attempt):
                break
    finally:
        draft.discard()
    return _start(os.path.join(runfolder.runs_folder(workdir), run_id), run_id, secrets)


def _present(workdir: str, key: str, again: bool) -> Optional[Dict[str, Any]]:
    """The newest run of this key that lives or, unless `again`, has succeeded. A cut-off launch is given up."""
    every = list_runs(workdir)
    rows = [row for row in reversed(every) if row["key"] == key]
    for row in every:
        if row["state"] == "lost" and not os.path.exists(os.path.join(row["folder"], STARTED)):
            ending.write_off(row["folder"], "lost", row["reason"])
    answers = [("running", "joined"), ("queued", "joined"), *([] if again else [("succeeded", "already")])]
    for state, answer in answers:
        for row in rows:
            if row["state"] == state:
                return _launched(row, answer)
    return None


def _launched(row: Dict[str, Any], how: str) -> Dict[str, Any]:
    return dict(dict.fromkeys(("started", "joined", "already"), False), **{how: True}, id=row["id"], run=row)


def _free_id(wished: str, taken: Set[str]) -> Tuple[str, int]:
    """(id, number of the attempt): the wished id, or the first of ID-2, ID-3 ... that was not taken."""
    if wished not in taken:
        return wished, 1
    number = 2
    while "%s-%d" % (wished, number) in taken:
        number += 1
    return "%s-%d" % (wished, number), number


def _start(folder: str, run_id: str, secrets: Dict[str, str]) -> Dict[str, Any]:
    try:
        launcher.start(folder, run_id, secrets)
    except (OSError, AgentError) as error:
        if not os.path.exists(os.path.join(folder, STARTED)):
            ending.write_off(folder, "failed", str(error))
        raise AgentError("run %s did not start: %s" % (run_id, error)) from None
    row = row_of(folder)
    deadline = time.monotonic() + STARTING
    while row is not None and row["state"] == "running" and not row["rung"] and time.monotonic() < deadline:
        time.sleep(0.02)
        row = row_of(folder)
    if row is None or row["state"] not in ("queued", "running", *TERMINAL):
        raise AgentError("run %s was started, but a second look does not find its supervisor" % run_id)
    return _launched(row, "started")


def follow_answer(args: Dict[str, Any], talk: Any) -> Dict[str, Any]:
    """Watch a run and its log until it has ended, or for "for" seconds: 0 reads what is there now.

    args {"workdir", "id", "place"?: where an earlier follower stood (logfollow.py), "lines"?: how many of the last to
    begin with where there is no place (absent: what fits one piece), "all"?: bool, "for"?: seconds, "poll"?: seconds}.
    "all" begins with the first byte and never skips; else who falls LOG_BEHIND bytes behind is moved on.
    Says progress {"state", "reason", "log": text, "place", "skipped": bytes, "notes", "progress": object or None} every
    poll and for each full piece; overwritten parts of lines are left out. Answers {"run": row, "place"}.
    """
    folder = runfolder.folder_of(args["workdir"], args["id"])
    log = logfollow.Log(os.path.join(folder, launcher.LOG), args.get("place"))
    fresh = not args.get("place")
    until = None if args.get("for") is None else time.monotonic() + args["for"]
    while True:
        row = row_of(folder)
        if row is None:
            raise AgentError("run %s has been removed" % args["id"], kind="nothing")
        ended = row["state"] in TERMINAL
        fresh = fresh and not _begin(log, args)
        _tell_log(log, args, row, talk)
        left = None if until is None else until - time.monotonic()
        if ended or (left is not None and left <= 0):
            return {"run": row, "place": log.place()}
        poll = args.get("poll", 1.0)
        time.sleep(poll if left is None else min(poll, left))


def _begin(log: logfollow.Log, args: Dict[str, Any]) -> bool:
    """Go where a new follower begins; False while there is no log."""
    size = log.size()
    if "lines" in args:
        log.skip_to_last_lines(int(args["lines"]))
    elif not args.get("all"):
        log.skip_to(max(0, size - logfollow.PIECE))
    return size > 0


def _tell_log(log: logfollow.Log, args: Dict[str, Any], row: Dict[str, Any], talk: Any) -> None:
    """All that the log holds now, one message a piece; at least one."""
    ended = row["state"] in TERMINAL
    said, skipped, more = b"", 0, True
    while more:
        size = log.size()
        if "lines" not in args and not args.get("all") and size - log.offset > LOG_BEHIND:
            skipped = size - logfollow.PIECE - log.offset
            log.skip_to(size - logfollow.PIECE)
        data, more = log.read(whole=ended or args.get("for") == 0)
        said = logfollow.collapse(said + data)
        if more and len(said) < logfollow.PIECE:
            continue  # most of a progress bar has collapsed to nothing
        message = {"state": row["state"], "reason": row["reason"], "log": said.decode("utf-8", "replace")}
        message.update(place=log.place(), skipped=skipped, notes=log.notes, progress=progress_of(row["folder"]))
        talk.progress(message)
        log.notes, said, skipped = [], b"", 0


def progress_of(folder: str) -> Optional[Dict[str, Any]]:
    """The last whole line of the run's progress.jsonl, as an object; None where there is none."""
    for path in (os.path.join(folder, "progress.jsonl"), os.path.join(folder, "harness", "progress.jsonl")):
        try:
            with scratch.open_file(path) as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - 16384))
                lines = file.read().rpartition(b"\n")[0].split(b"\n")
            value = json.loads(lines[-1].decode("utf-8"))
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            return value
    return None


def collect_answer(args: Dict[str, Any], talk: Any) -> Dict[str, Any]:
    """args {"workdir", "id"} -> {"run": row, "files": [{"name", "size", "data": base64}], "left_out": [names]}: spec,
    harness manifest, started, exit, result and the log's last 64 KiB (as "log.tail"); COLLECT_LIMIT bytes in all."""
    folder = runfolder.folder_of(args["workdir"], args["id"])
    row = row_of(folder)
    if row is None:
        raise AgentError("run %s has been removed" % args["id"], kind="nothing")
    result = str((scratch.read_json(os.path.join(folder, SPEC)) or {}).get("result"))
    files = []
    left_out = []
    room = COLLECT_LIMIT
    for name in (SPEC, "harness.json", STARTED, EXIT, result):
        try:
            with scratch.open_file(os.path.join(folder, name)) as file:
                data = file.read(room + 1)
        except OSError:
            continue
        if len(data) > room:
            left_out.append(name)
            continue
        room -= len(data)
        files.append(_file(name, data))
    log = logfollow.Log(os.path.join(folder, launcher.LOG))
    log.skip_to(max(0, log.size() - logfollow.PIECE))
    files.append(_file("log.tail", log.read(whole=True)[0]))
    return {"run": row, "files": files, "left_out": left_out}


def _file(name: str, data: bytes) -> Dict[str, Any]:
    return {"name": name, "size": len(data), "data": base64.b64encode(data).decode("ascii")}
