"""Runs of an evaluation host: starting one, what state each is in, following one, and its small files.

States come from files alone: exit.json says how a run ended; without it a run is running while the supervisor that
started.json names is alive (same incarnation, pid, start ticks, run id), and lost once it is gone.
"""

import base64
import json
import os
import time
from typing import Any, Dict, List, Optional, Set, Tuple

from remote_payload.agent import hostinfo, incarnation, launcher, limits, runfolder, scratch
from remote_payload.agent.errors import AgentError
from remote_payload.agent.runfolder import EXIT, SPEC, STARTED

START_PATIENCE = 10.0
"""seconds that a run may take between its folder's appearance and its supervisor's first file"""
STARTING = 2.0
"""seconds that a supervisor on its own may take to say how it holds the evaluation"""
LOG_PIECE = 64 << 10
"""bytes of log in one message"""
LOG_BEHIND = 1 << 20
"""bytes that a follower may be behind before the middle is skipped"""
COLLECT_LIMIT = 40 << 20
"""bytes of a run's small files together: any result (ending.RESULT_LIMIT) fits, and base64 of it fits one frame"""
ROOM = 8 << 20
"""bytes of disk for a run folder: the harness's copy, the log, the result"""
TERMINAL = ("succeeded", "failed", "cancelled", "refused", "lost")


def list_runs(workdir: str) -> List[Dict[str, Any]]:
    """One row for each run folder, oldest first: {"id", "key", "attempt", "job", "host", "run", "step", "state",
    "exit_code", "signal", "reason", "started_at", "ended_at", "rung", "checkpoint", "digests", "folder"}."""
    parent = runfolder.runs_folder(workdir)
    names = [name for name in os.listdir(parent) if not name.startswith(".")] if os.path.isdir(parent) else []
    rows = [row_of(os.path.join(parent, name)) for name in names]
    found = [row for row in rows if row is not None]
    return sorted(found, key=lambda row: (row["started_at"] or "~", row["id"]))


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
    row.update(started_at=started.get("started_at"), rung=started.get("rung", ""))
    row["state"], row["reason"] = _living_state(folder, started, str(spec.get("id")))
    ended = scratch.read_json(os.path.join(folder, EXIT))  # read last: what ended meanwhile has ended
    if ended is not None and ended.get("state") in TERMINAL:
        row.update({name: ended.get(name) for name in ("state", "exit_code", "signal", "reason", "ended_at", "rung")})
    return row


def _living_state(folder: str, started: Dict[str, Any], run_id: str) -> Tuple[str, str]:
    """(state, reason) of a run without exit.json."""
    if not started:
        writer = scratch.read_json(os.path.join(folder, scratch.WRITER)) or {}
        waiting = bool(writer) and incarnation.look(writer) == "alive"
        if waiting or scratch.age(folder) < START_PATIENCE:
            return "queued", ""
        return "lost", "its launch was cut off before the supervisor started"
    seen = incarnation.look(started, run_id)
    heartbeat = os.path.join(folder, "heartbeat")
    if seen == "alive":
        return "running", ""
    if seen == "elsewhere" and scratch.age(heartbeat) < 60:
        return "running", "on %s, which shares this folder" % started.get("node")
    reason = incarnation.why_gone(started)
    if incarnation.same_boot(started) and limits.oom_kills() > started.get("oom_kills", 0):
        reason += "; the kernel has killed processes for want of memory since it started"
    child = started.get("child")
    if child and incarnation.look(child, run_id) == "alive":
        reason += "; the evaluation itself (pid %d) still runs, unwatched" % child["pid"]
    return "lost", reason


def launch_answer(args: Dict[str, Any], talk: Any) -> Dict[str, Any]:
    """Start a run, or find that it is there already.

    args {"workdir", "key", "id", "spec", "secrets"}; spec {"job", "host", "run", "step", "checkpoint": identity,
    "harness": {"remote", "digest", "files": manifest}, "digests", "command", "python", "data": {name: path}, "env",
    "limits": {"threads", "memory", "wall", "grace"}, "result": file name, "gpu_devices"?, "beside"?: the trainings of
    this host, see beside.Beside}.
    Answers {"id", "run": row, "started", "joined", "already"}, one of the three true: joined for a run of this key
    that is queued or running, already for one that succeeded. After a failed or lost one comes a new attempt, ID-2.
    Raises AgentError: refused where the checkpoint, the harness's version, data, python or room is missing.
    """
    workdir, key, spec = args["workdir"], args["key"], args["spec"]
    secrets: Dict[str, str] = args.get("secrets") or {}
    found = _present(workdir, key)
    if found:
        return found
    _see_room(workdir, spec)
    draft = runfolder.prepare(workdir, spec, sorted(secrets), talk.bundle)
    try:
        while True:
            taken = set(
                os.listdir(runfolder.runs_folder(workdir))
            )  # before the look: what comes later is met by `take`
            found = _present(workdir, key)
            if found:
                return found
            run_id, attempt = _free_id(args["id"], taken)
            if draft.take(run_id, key, attempt):
                break
    finally:
        draft.discard()
    return _start(os.path.join(runfolder.runs_folder(workdir), run_id), run_id, secrets)


def _see_room(workdir: str, spec: Dict[str, Any]) -> None:
    """Shipping may have taken hours since the plan was made. Raises AgentError where the job's memory or a run folder's
    room is gone."""
    memory, disk = hostinfo.memory(), hostinfo.disk(workdir)
    reserve = hostinfo.reserve(spec.get("beside"))
    needed = ((spec.get("limits") or {}).get("memory") or 0) + reserve
    if memory["available"] < needed:
        told = "%d bytes of memory are available, %d needed" % (memory["available"], needed)
        told += " with what is kept for the training" if reserve else ""
        raise AgentError(told, "wait, or lower limits.memory", kind="refused")
    if disk["free"] < ROOM:
        raise AgentError("%s: %d bytes free, a run needs %d" % (workdir, disk["free"], ROOM), kind="refused")


def _present(workdir: str, key: str) -> Optional[Dict[str, Any]]:
    """The run of this key that lives or has succeeded. One whose launch was cut off is given its time, then up."""
    rows = [row for row in list_runs(workdir) if row["key"] == key]
    while any(row["state"] == "queued" and scratch.abandoned(row["folder"]) for row in rows):
        time.sleep(0.1)
        rows = [row for row in list_runs(workdir) if row["key"] == key]
    for row in rows:
        if row["state"] == "lost" and not row["started_at"]:
            _write_off(row["folder"], "lost", row["reason"])
    for state, answer in (("succeeded", "already"), ("running", "joined"), ("queued", "joined")):
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
        try:
            _write_off(folder, "failed", str(error))
        except OSError:
            pass  # a full disk: without that file the run counts as lost
        raise AgentError("run %s did not start: %s" % (run_id, error)) from None
    row = row_of(folder)
    deadline = time.monotonic() + STARTING
    while row is not None and row["state"] == "running" and not row["rung"] and time.monotonic() < deadline:
        time.sleep(0.02)
        row = row_of(folder)
    if row is None or row["state"] not in ("running", *TERMINAL):
        raise AgentError("run %s was started, but a second look does not find its supervisor" % run_id)
    return _launched(row, "started")


def _write_off(folder: str, state: str, reason: str) -> None:
    """Say how a run ended that never began, unless its supervisor has said more."""
    if not os.path.exists(os.path.join(folder, EXIT)) and not os.path.exists(os.path.join(folder, STARTED)):
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        value = {"schema": 1, "state": state, "exit_code": None, "signal": None, "reason": reason[:1000]}
        scratch.write_json(os.path.join(folder, EXIT), dict(value, started_at=None, ended_at=now, rung=""))


def follow_answer(args: Dict[str, Any], talk: Any) -> Dict[str, Any]:
    """Watch a run until it has ended.

    args {"workdir", "id", "offset"?: bytes of log already seen (absent: the last 64 KiB), "poll"?: seconds, "for"?:
    seconds after which it is answered though the run goes on}.
    Says progress {"state", "log": text, "offset", "skipped": bytes, "progress": object or None} every poll, with at
    most 64 KiB of log in each; answers {"run": row, "offset"}. A character cut by the log's end waits for its rest.
    """
    folder = runfolder.folder_of(args["workdir"], args["id"])
    offset = args.get("offset")
    until = None if args.get("for") is None else time.monotonic() + args["for"]
    while True:
        row = row_of(folder)
        if row is None:
            raise AgentError("run %s has been removed" % args["id"], kind="nothing")
        ended = row["state"] in TERMINAL
        text, offset, skipped, more = read_log(os.path.join(folder, "log"), offset, ended)
        talk.progress(
            {"state": row["state"], "log": text, "offset": offset, "skipped": skipped, "progress": progress_of(folder)}
        )
        left = None if until is None else until - time.monotonic()
        if (ended and not more) or (left is not None and left <= 0):
            return {"run": row, "offset": offset}
        if not more:
            poll = args.get("poll", 1.0)
            time.sleep(poll if left is None else min(poll, left))


def read_log(path: str, offset: Optional[int], ended: bool) -> Tuple[str, int, int, bool]:
    """(text, new offset, bytes skipped, whether more is there) of a log from a byte offset on.

    NULs are dropped; an offset past the end (the log was cut) starts again at 0.
    """
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if offset is None:
                offset = max(0, size - LOG_PIECE)
            start = 0 if offset > size else offset
            skipped = 0
            if size - start > LOG_BEHIND:
                skipped, start = size - LOG_PIECE - start, size - LOG_PIECE
            file.seek(start)
            data = file.read(LOG_PIECE)
    except FileNotFoundError:
        return "", offset or 0, 0, False
    more = start + len(data) < size
    if not ended or more:
        data = data[: len(data) - _unfinished(data)]
    return data.decode("utf-8", "replace").replace("\0", ""), start + len(data), skipped, more


def _unfinished(data: bytes) -> int:
    """How many bytes at the end begin a UTF-8 character whose rest has not come."""
    for back in range(1, min(4, len(data) + 1)):
        byte = data[-back]
        if byte >= 0xC0:
            return back if back < (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4) else 0
        if byte < 0x80:
            return 0
    return 0


def progress_of(folder: str) -> Optional[Dict[str, Any]]:
    """The last whole line of the run's progress.jsonl, as an object; None where there is none."""
    for path in (os.path.join(folder, "progress.jsonl"), os.path.join(folder, "harness", "progress.jsonl")):
        try:
            with open(path, "rb") as file:
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
            with open(os.path.join(folder, name), "rb") as file:
                data = file.read(room + 1)
        except OSError:
            continue
        if len(data) > room:
            left_out.append(name)
            continue
        room -= len(data)
        files.append(_file(name, data))
    files.append(_file("log.tail", read_log(os.path.join(folder, "log"), None, True)[0].encode("utf-8")))
    return {"run": row, "files": files, "left_out": left_out}


def _file(name: str, data: bytes) -> Dict[str, Any]:
    return {"name": name, "size": len(data), "data": base64.b64encode(data).decode("ascii")}
