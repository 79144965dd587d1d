"""A command of the user's own, told of something on its stdin."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

SAID = 300
"""characters of what a failing command wrote to stderr"""
KEPT = 4 * SAID
"""bytes of that which are held in memory, the last ones"""
LOOK = 0.05
"""seconds between two looks whether the command has ended"""
PIPE = 1 << 16
"""bytes that a pipe passes on at once"""


def tell(argv: Sequence[str], document: Mapping[str, Any], timeout: float) -> str:
    """Run the command with the document on its stdin. Returns why it failed, "" where it did not.

    It gets a session of its own, so that what it started ends with it when it is out of time. What it leaves running
    by intent is not waited for. Its stdout is dropped.
    """
    try:
        child = subprocess.Popen(
            list(argv),
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:  # the latter for a word that holds a NUL
        return f"can't start: {getattr(error, 'strerror', None) or error}"
    with child:
        try:
            said = _said(child, json.dumps(document).encode("utf-8"), timeout)
        finally:
            if child.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
    if said is None:
        return f"not done within {timeout:g} s, and was ended"
    words = said.decode("utf-8", "replace").strip()[-SAID:]
    return f"exit {child.returncode}{': ' if words else ''}{words}" if child.returncode else ""


def _said(child: subprocess.Popen[bytes], heard: bytes, timeout: float) -> bytes | None:
    """The end of what it writes to stderr until it has ended; None when it is out of time.

    A process that it started may hold its stderr open for longer, so that its own end is what counts.
    """
    deadline = time.monotonic() + timeout
    said, left = b"", memoryview(heard)
    assert child.stdin is not None and child.stderr is not None
    with selectors.DefaultSelector() as ends:
        for pipe, event in ((child.stdin, selectors.EVENT_WRITE), (child.stderr, selectors.EVENT_READ)):
            os.set_blocking(pipe.fileno(), False)
            ends.register(pipe, event)
        while child.poll() is None:
            if time.monotonic() > deadline:
                return None
            for key, _ in ends.select(LOOK):
                if key.fileobj is child.stdin:
                    left = _fed(child.stdin.fileno(), left)
                    if not left:
                        ends.unregister(child.stdin)
                        child.stdin.close()
                elif piece := child.stderr.read(PIPE):
                    said = (said + piece)[-KEPT:]
                else:
                    ends.unregister(child.stderr)
    return (said + (child.stderr.read(PIPE) or b""))[-KEPT:]


def _fed(pipe: int, left: memoryview) -> memoryview:
    """What is still to be written after a write; nothing for a reader that has gone."""
    try:
        return left[os.write(pipe, left[:PIPE]) :]
    except BlockingIOError:
        return left
    except BrokenPipeError:
        return left[:0]
