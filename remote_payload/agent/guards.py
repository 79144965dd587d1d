"""What a supervisor looks at while its evaluation runs, each at its own times. What it finds stops the evaluation."""

import os
import signal
import subprocess
import time
from typing import List, Optional, Sequence

from remote_payload.agent import descendants, gpus, identity

MEMORY_LOOK = 2.0
GPU_LOOKS = (0.3, 1.0, 3.0, 10.0, 30.0)
"""seconds after the start; then every GPU_LOOK_LATER"""
GPU_LOOK_LATER = 60.0
CLIENT_LOOKS = (2.0, 20.0)
CLIENT_LOOK_LATER = 300.0


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
    answer may take seconds; where there is no driver nothing is asked."""

    def __init__(self, began: float) -> None:
        self._tool = gpus.find("nvidia-smi") if os.path.exists("/dev/nvidiactl") else None
        self._looks = [began + seconds for seconds in CLIENT_LOOKS]
        self._asked: "Optional[subprocess.Popen[bytes]]" = None
        self._asked_ticks: Optional[int] = None
        self.due = self._looks.pop(0) if self._tool else float("inf")

    @property
    def own(self) -> List[int]:
        """The driver's tool while it runs: it is nobody's evaluation."""
        return [self._asked.pid] if self._asked else []

    def look(self, pids: Sequence[int]) -> str:
        if self._tool is None:
            self.due = float("inf")
            return ""
        if self._asked is None:
            self._asked = self._ask()
            stat = identity.read_stat(self._asked.pid) if self._asked else None
            self._asked_ticks = stat.start_ticks if stat else None
            self.due = time.monotonic() + gpus.LIMIT_S
            return ""
        answer = self._heard()
        self.due = self._looks.pop(0) if self._looks else time.monotonic() + CLIENT_LOOK_LATER
        mine = [pid for _, pid in gpus.parse_clients(answer) if pid in pids]
        return "GPU in use: the driver names process %d among its clients" % mine[0] if mine else ""

    def _ask(self) -> "Optional[subprocess.Popen[bytes]]":
        try:
            return subprocess.Popen(
                [str(self._tool), *gpus.CLIENT_QUESTION],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except OSError:
            self._tool = None
            return None

    def _heard(self) -> str:
        """What it has said by now; it is ended if it has not."""
        asked, self._asked = self._asked, None
        assert asked is not None and asked.stdout is not None
        with asked.stdout as pipe:
            os.set_blocking(pipe.fileno(), False)
            try:
                said = pipe.read()
            except OSError:
                said = None
        asked.returncode = 0  # waited for by the supervisor, with all its children
        stat = identity.read_stat(asked.pid)
        if stat is not None and stat.start_ticks == self._asked_ticks:
            os.kill(asked.pid, signal.SIGKILL)
        return (said or b"").decode("utf-8", "replace")


class Memory(Guard):
    """What the evaluation holds, where no cgroup holds it."""

    def __init__(self, began: float, limit: int) -> None:
        self.due = began
        self._limit = limit

    def look(self, pids: Sequence[int]) -> str:
        self.due = time.monotonic() + MEMORY_LOOK
        held = descendants.memory(pids)
        return "memory limit: %d bytes held, %d allowed" % (held, self._limit) if held > self._limit else ""
