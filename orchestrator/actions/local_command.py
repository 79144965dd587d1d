"""A command of the user's own on this machine: its terminal, its signals and its exit code stay as without orch."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from types import FrameType

from orchestrator.errors import ConfigError

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
BY_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
"""which a terminal sends to the command as well as to us"""


def run(argv: Sequence[str], *, output: int | None = None) -> int:
    """Run it to its end and return its exit code, 128 + N after signal N. Call it from the main thread.

    Signals that reach this process meanwhile are passed on. `output`: descriptor that takes the place of stdout.
    Raises ConfigError where it can't be started.
    """
    early: list[int] = []
    child: subprocess.Popen[bytes] | None = None

    def pass_on(number: int, frame: FrameType | None) -> None:
        if child is None:
            early.append(number)
        elif not (number in BY_TERMINAL and _in_foreground()):
            child.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in PASSED_ON}
    try:
        child = subprocess.Popen(list(argv), stdout=output)
        for number in early:
            child.send_signal(number)
        status = child.wait()
    except OSError as error:
        raise ConfigError(f"{argv[0]} can't be started: {error.strerror}") from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 128 - status if status < 0 else status


def _in_foreground() -> bool:
    """Whether this process' group, to which the command belongs, has the terminal."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
