"""Progress by the user's own regular expression, which may be one that takes for ever.

Python can't interrupt a match in a thread, and the match would hold the interpreter: no heartbeat, no time limit. So
it runs in a forked child with a limit on its CPU time. The child only matches and writes to a pipe: it imports nothing,
since another thread may have been importing when it was forked.
"""

import json
import os
import re
import resource
import select
import signal
import time
from typing import Any, Callable, Dict, List, Pattern, Sequence

from remote_payload.agent.errors import AgentError
from remote_payload.agent.progress_formats import Reading
from remote_payload.agent.progress_numbers import line_clock, number, rate_of, whole

GROUPS = frozenset(("step", "epoch", "loss", "rate", "unit"))

STARVED = 10.0
"""times its CPU limit by the clock: so long may take what runs at the lowest priority of a busy box"""


def own_pattern(pattern: str, kept: int, limit_s: float) -> Callable[[Sequence[str]], List[Reading]]:
    """A function that reads lines by this expression, newest first, at most `kept` readings.

    Raises AgentError(kind="config") for a text that is no expression or names none of GROUPS; the function raises it
    where matching took longer than `limit_s` seconds.
    """
    try:
        compiled = re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise AgentError("the progress pattern is no regular expression: %s" % error, kind="config") from None
    if not GROUPS & set(compiled.groupindex):
        hint = "for example (?P<step>\\d+); or one of the presets"
        raise AgentError("the progress pattern names none of %s" % ", ".join(sorted(GROUPS)), hint, "config")
    return lambda lines: [_reading(found) for found in _in_a_child(compiled, lines, kept, limit_s)]


def _reading(found: Dict[str, Any]) -> Reading:
    rate, unit = rate_of(found.get("rate"), found.get("unit"))
    dated = line_clock(found["line"])
    return Reading(
        step=whole(found.get("step")),
        epoch=number(found.get("epoch")),
        loss=number(found.get("loss")),
        rate=rate,
        unit=unit,
        clock=dated,
        dated=dated,
    )


def _in_a_child(pattern: Pattern[str], lines: Sequence[str], kept: int, limit_s: float) -> List[Dict[str, Any]]:
    reading_end, writing_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _match_and_write(pattern, lines, kept, limit_s, writing_end)
        finally:
            os._exit(0)
    os.close(writing_end)
    answer = b""
    try:
        answer = _read_until(reading_end, time.monotonic() + STARVED * limit_s)
    finally:
        os.close(reading_end)
        if not answer.endswith(b"\n"):
            os.kill(child, signal.SIGKILL)  # our own child, not yet waited for: the number can't be another's
        os.waitpid(child, 0)
    if not answer.endswith(b"\n"):
        hint = "make it more particular: no repetition inside a repetition, no more than one .*"
        raise AgentError("the progress pattern took longer than %.1f s" % limit_s, hint, "config")
    found: List[Dict[str, Any]] = json.loads(answer.decode("utf-8"))
    return found


def _match_and_write(pattern: Pattern[str], lines: Sequence[str], kept: int, limit_s: float, pipe: int) -> None:
    """In the child: everything that could take long, under a limit that the kernel keeps."""
    seconds = max(1, int(limit_s))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    found = []
    for line in reversed(lines):
        match = pattern.search(line)
        if match:
            found.append({**match.groupdict(), "line": line[:200]})
            if len(found) == kept:
                break
    data = json.dumps(found).encode("utf-8") + b"\n"
    while data:
        data = data[os.write(pipe, data) :]


def _read_until(descriptor: int, deadline: float) -> bytes:
    parts: List[bytes] = []
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([descriptor], [], [], left)[0]:
            return b"".join(parts)
        part = os.read(descriptor, 1 << 16)
        if not part:
            return b"".join(parts)
        parts.append(part)
