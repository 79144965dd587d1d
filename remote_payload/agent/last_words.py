"""How a training ended, where that can be known: from a zombie's exit status, or from what its log says at the end.

Nothing is guessed: without either, nobody can say whether it finished, crashed or was killed.
"""

import os
import re
import signal
from typing import Any, Dict, List, Optional, Pattern, Tuple

from remote_payload.agent.errors import AgentError
from remote_payload.agent.identity import read_proc
from remote_payload.agent.logtail import read_tail
from remote_payload.agent.processes import uid_of
from remote_payload.agent.progress_formats import PRESETS

LINES, BYTES = 60, 64 * 1024
"""looked at from the end of the log"""
SHOWN = 200
"""characters of the line that tells"""

Ending = Dict[str, Optional[str]]

_TELLING: Tuple[Tuple[str, Pattern[str]], ...] = (
    (
        "killed",
        re.compile(
            r"\bSIG(?:KILL|TERM|HUP|INT)\b|exitcode\s*:\s*-\d|^(?:\S+: line \d+:\s+\d+ )?Killed\b|oom[-_ ]?kill"
            r"|DUE TO (?:TIME LIMIT|PREEMPTION)|\bCANCELLED AT\b",
            re.IGNORECASE,
        ),
    ),
    (
        "crashed",
        re.compile(
            r"^(?:\[rank\d+\]:\s*)?(?:Traceback \(most recent call last\)|(?:[\w.]+\.)?\w*(?:Error|Exception)\b)"
            r"|exitcode\s*:\s*[1-9]|\b(?:CUDA )?out of memory\b|Segmentation fault|core dumped|KeyboardInterrupt"
        ),
    ),
    (
        "finished",
        re.compile(
            r"['\"]train_runtime['\"]|\btraining (?:is |was |has )?(?:completed?|finished|done|ended)\b"
            r"|\bfinished (?:training|after step)\b|Trainer\.fit` stopped|\breached max_(?:steps|epochs)\b",
            re.IGNORECASE,
        ),
    ),
    ("stopped", re.compile(r"\bstopped after step\b|\btraining (?:was )?(?:stopped|interrupted)\b", re.IGNORECASE)),
)


def ending(log: Optional[str], zombie: Optional[int] = None) -> Ending:
    """{how, why}: finished, crashed, killed (by a signal), stopped (asked to, and did), or None where nothing tells.

    `zombie` is the pid of one that nobody has waited for yet: its exit status is the surest word of all, only that one
    which was asked to stop may end with 0 too.
    """
    logged = of_lines(_lines(log) if log is not None else [])
    told = _of_status(exit_status(zombie)) if zombie is not None else logged
    if told["how"] is None or (told["how"], logged["how"]) == ("finished", "stopped"):
        return logged
    return told


def of_lines(lines: List[str]) -> Ending:
    """What the last lines of a log say. A line that tells a step, behind all that would tell, means that it went on."""
    for line in reversed(lines[-LINES:]):
        for how, pattern in _TELLING:
            if pattern.search(line):
                return {"how": how, "why": "its log ends with: " + line[:SHOWN]}
        if any((reader(line) or _NOTHING).step is not None for reader in PRESETS.values()):
            break
    return {"how": None, "why": None}


def exit_status(pid: int) -> Optional[int]:
    """The wait status of a zombie (field 52 of its stat); None where the kernel does not tell this user."""
    line = read_proc("/proc/%d/stat" % pid) or b""
    fields = line[line.rfind(b")") + 1 :].split()
    if len(fields) < 50 or fields[0] != b"Z" or os.geteuid() not in (0, uid_of(pid)):
        return None
    return int(fields[49])


def _of_status(status: Optional[int]) -> Ending:
    if status is None:
        return {"how": None, "why": None}
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        known = {int(one): one.name for one in signal.Signals}
        return {"how": "killed", "why": "signal %d (%s)" % (number, known.get(number, "unnamed"))}
    code = os.WEXITSTATUS(status)
    return {"how": "crashed" if code else "finished", "why": "exit code %d" % code}


def _lines(log: str) -> List[str]:
    log = os.path.expanduser(log)
    try:
        return read_tail(log, BYTES).lines
    except AgentError:
        return []


class _Nothing:
    step: Any = None


_NOTHING = _Nothing()
