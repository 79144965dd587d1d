"""What a supervisor looks at while its evaluation runs, each at its own times. What it finds stops the evaluation."""

import os
import signal
import subprocess
import time
from typing import Dict, List, Optional, Sequence

from remote_payload.agent import descendants, gpus, identity, quiet

MEMORY_LOOK = 2.0
GPU_LOOKS = (0.3, 1.0, 3.0, 10.0, 30.0)
"""seconds after the start; then every GPU_LOOK_LATER"""
GPU_LOOK_LATER = 60.0
CLIENT_LOOKS = (2.0, 20.0)
CLIENT_LOOK_LATER = 300.0
SESSION_LOOK = 2.0


class Guard:
    """`due` is the time (monotonic) of its next look; `look` returns why the evaluation must end, or ""."""

    due: float

    def look(self, pids: Sequence[int]) -> str:
        raise NotImplementedError


class Devices(Guard):
    """No process of the evaluation holds a GPU's device file, open or mapped."""

    def __init__(self, began: float, patterns: Sequence[str]) -> None:
        self._patterns = patterns
        self._looks = [began + seconds for seconds in GPU_LOOKS]
        self.due = self._looks.pop(0)

    def look(self, pids: Sequence[int]) -> str:
        self.due = self._looks.pop(0) if self._looks else time.monotonic() + GPU_LOOK_LATER
        found = descendants.open_device(pids, self._patterns)
        return "GPU in use: process %d opened %s although GPUs are hidden from it" % found if found else ""


class Clients(Guard):
    """The driver names no process of the evaluation among a GPU's clients. It is asked in a process of its own, for an
    answer may take seconds; where there is no driver's tool nothing is asked."""

    def __init__(self, began: float) -> None:
        self._question = gpus.client_question()
        self._looks = [began + seconds for seconds in CLIENT_LOOKS]
        self._asked: "Optional[subprocess.Popen[bytes]]" = None
        self._ticks: Optional[int] = None
        """when it was started: with its pid, who it is"""
        self._until = 0.0
        self._said = b""
        self.due = self._looks.pop(0) if self._question else float("inf")

    @property
    def own(self) -> List[int]:
        """The driver's tool while it runs: it is nobody's evaluation."""
        return [self._asked.pid] if self._asked else []

    def look(self, pids: Sequence[int]) -> str:
        now = time.monotonic()
        if self._asked is None:
            self._ask()
        elif not self._heard_all() and now < self._until:
            self.due = now + 0.3
        else:
            self._done()
            clients = self._question[1](self._said.decode("utf-8", "replace")) if self._question else []
            mine = [pid for _, pid in clients if pid in pids]
            if mine:
                return "GPU in use: the driver names process %d among its clients" % mine[0]
        return ""

    def _ask(self) -> None:
        assert self._question is not None
        self.due, self._until = time.monotonic() + 0.3, time.monotonic() + gpus.LIMIT_S
        self._said = b""
        try:
            self._asked = subprocess.Popen(
                self._question[0],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except OSError:
            self.due = float("inf")
            return
        assert self._asked.stdout is not None
        os.set_blocking(self._asked.stdout.fileno(), False)
        stat = identity.read_stat(self._asked.pid)
        self._ticks = stat.start_ticks if stat else None

    def _heard_all(self) -> bool:
        assert self._asked is not None and self._asked.stdout is not None
        while True:
            try:
                part = os.read(self._asked.stdout.fileno(), 65536)
            except BlockingIOError:
                return False
            self._said += part
            if not part:
                return True

    def _done(self) -> None:
        """It has said all, or had its time."""
        asked, self._asked = self._asked, None
        assert asked is not None and asked.stdout is not None
        asked.stdout.close()
        asked.returncode = 0  # waited for by the supervisor, with all its children
        stat = identity.read_stat(asked.pid)
        if stat is not None and stat.start_ticks == self._ticks and stat.state != "Z":
            os.kill(asked.pid, signal.SIGKILL)
        self.due = self._looks.pop(0) if self._looks else time.monotonic() + CLIENT_LOOK_LATER


class Sessions(Guard):
    """A process of the evaluation that made itself a session of its own has left the lowered one, and nice counts only
    inside each (quiet.py): that session is lowered too."""

    def __init__(self, began: float) -> None:
        self.due = began + SESSION_LOOK
        self._lowered: Dict[int, bool] = {}

    def look(self, pids: Sequence[int]) -> str:
        self.due = time.monotonic() + SESSION_LOOK
        for pid in pids:
            try:
                session = os.getsid(pid)
            except OSError:
                continue
            if session not in self._lowered:
                self._lowered[session] = quiet.lower_session_of(pid)
        return ""


class Memory(Guard):
    """What the evaluation holds, where no cgroup holds it."""

    def __init__(self, began: float, limit: int) -> None:
        self.due = began
        self._limit = limit

    def look(self, pids: Sequence[int]) -> str:
        self.due = time.monotonic() + MEMORY_LOOK
        held = descendants.memory(pids)
        return "memory limit: %d bytes held, %d allowed" % (held, self._limit) if held > self._limit else ""
