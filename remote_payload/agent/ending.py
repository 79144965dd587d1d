"""How an evaluation ended, from its wait status, its log and what it left; and the file that says so for a supervisor
that no longer can."""

import json
import os
import signal
import stat
from typing import Optional, Tuple

from remote_payload.agent import scratch
from remote_payload.agent.identity import utc

RESULT_LIMIT = 32 << 20
"""bytes of a result; it is brought to the laptop with the other small files of its run (runs.COLLECT_LIMIT)"""


def of(folder: str, result: str, status: Optional[int], memory_gone: bool) -> Tuple[str, str]:
    """(state, reason) of an evaluation that ended by itself. `memory_gone`: the kernel killed for want of memory."""
    code, number = decode(status)
    if number:
        why = "killed by signal %d (%s)" % (number, _name(number))
        return "failed", why + (": out of memory" if number == signal.SIGKILL and memory_gone else "")
    if code:
        why = last_line(os.path.join(folder, "log")) or "its log is empty"
        return "failed", "exit code %s: %s%s" % (code, why, "" if _has_room(folder) else "; the disk is full")
    return judge_result(folder, result)


def write_off(folder: str, state: str, reason: str) -> None:
    """Say how a run ended whose supervisor is gone, or never was, unless exit.json is there. A full disk: nothing."""
    final = os.path.join(folder, "exit.json")
    began = (scratch.read_json(os.path.join(folder, "started.json")) or {}).get("started_at")
    value = {"schema": 1, "state": state, "exit_code": None, "signal": None, "reason": reason[:1000]}
    value.update(started_at=began, ended_at=utc(), rung="")
    try:
        scratch.write_new(final, value)
    except OSError:
        pass


def decode(status: Optional[int]) -> Tuple[Optional[int], Optional[int]]:
    """(exit code, signal) of a wait status; (None, None) without one."""
    if status is None:
        return None, None
    if os.WIFSIGNALED(status):
        return None, os.WTERMSIG(status)
    return os.WEXITSTATUS(status), None


def _has_room(folder: str) -> bool:
    disk = os.statvfs(folder)
    return disk.f_blocks == 0 or disk.f_bavail > 0


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unnamed"


def last_line(log: str) -> str:
    """The last line of a log that says something, its last 300 characters; "" where there is none."""
    try:
        with scratch.open_file(log) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
            lines = file.read().decode("utf-8", "replace").replace("\r", "\n").strip().split("\n")
    except OSError:
        return ""
    return lines[-1][-300:]


def judge_result(folder: str, name: str) -> Tuple[str, str]:
    """(state, reason) of an evaluation with exit code 0: it succeeded when its result file is a JSON object.

    A result that was written beside the scripts is moved to its place in the run folder.
    """
    path, beside = os.path.join(folder, name), os.path.join(folder, "harness", name)
    try:
        if not os.path.lexists(path) and os.path.isfile(beside):
            os.replace(beside, path)
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):
            return "failed", "%s is no file" % name
        if found.st_size > RESULT_LIMIT:
            return "failed", "%s is larger than %d bytes" % (name, RESULT_LIMIT)
        with open(path, "rb") as file:
            if not isinstance(json.loads(file.read().decode("utf-8")), dict):
                return "failed", "%s holds no JSON object" % name
            os.fsync(file.fileno())
    except OSError as error:
        return "failed", "it ended with exit code 0 but left no %s (%s)" % (name, error.strerror)
    except (ValueError, RecursionError) as error:
        return "failed", "%s is not JSON: %s" % (name, error)
    return "succeeded", ""
