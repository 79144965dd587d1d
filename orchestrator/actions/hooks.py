"""A command of the user's own, told of something on its stdin."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

SAID = 300
"""characters of what a failing command wrote to stderr"""


def tell(argv: Sequence[str], document: Mapping[str, Any], timeout: float) -> str:
    """Run the command with the document on its stdin. Returns why it failed, "" where it did not.

    It gets a session of its own, so that what it started ends with it when it is out of time. Its stdout is dropped.
    """
    try:
        child = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        return f"can't start: {error.strerror}"
    try:
        _, said = child.communicate(json.dumps(document).encode("utf-8"), timeout=timeout)
    except subprocess.TimeoutExpired:
        return f"not done within {timeout:g} s, and was ended"
    finally:
        if child.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
    words = said.decode("utf-8", "replace").strip()[-SAID:]
    return f"exit {child.returncode}{': ' if words else ''}{words}" if child.returncode else ""
