"""An evaluation on a host where a training lives: what it may have, and when it must go. The training comes first.

Before the start the training is looked at for a second: which cores are its own, how many it keeps busy, how long its
threads wait as things stand. The evaluation gets the other cores and the memory that is left above a reserve. While it
runs, memory, the training's waiting and its steps are watched; what crosses a limit stops the evaluation, and the
training is never touched. A short rise of the training's waiting may be its own doing, so before that counts the
evaluation is stopped for a moment and the training measured without it.
"""

import math
import os
import signal
import time
from typing import Any, Dict, List, Optional, Sequence, Set

from remote_payload.agent import hostinfo, identity, quiet, trainers
from remote_payload.agent.errors import AgentError
from remote_payload.agent.guards import Guard

MEASURE = 1.0
"""seconds in which the training is looked at before the start"""
LOOK = 1.0
WAIT_WINDOW = 5.0
"""seconds over which waiting for a core is measured"""
WAIT = 0.10
"""of the time: how much longer than without the evaluation its threads may wait (a neighbour that yields costs 0.03)"""
SETTLE = 0.2
PATIENCE = 30.0
"""seconds until a rise that was not the evaluation's doing is tried again"""
PACE_LOOK = 5.0
PACE_WINDOW = 60.0
PACE = 0.8
"""of its earlier steps a second: below this it is too slow"""
PACES = 5
"""seen steps that a judgement needs"""


class Beside:
    """The trainings of this host as an evaluation's neighbours. `asked` is {"trainings": [{"name", "identity", "ranks",
    "log", "progress"}], "unseen": [names of those that can't be seen], "reserve"?: bytes, "window"?: seconds of steps}.
    """

    def __init__(self, asked: Dict[str, Any]) -> None:
        self.names = [str(one["name"]) for one in asked.get("trainings", ())]
        self.unseen = [str(name) for name in asked.get("unseen", ())]
        self.reserve = hostinfo.reserve(asked)
        self.trainings = [
            Neighbour(one, float(asked.get("window") or PACE_WINDOW)) for one in asked.get("trainings", ())
        ]
        self.cores = self._measure()
        """cores for the evaluation"""

    def memory_limit(self, wanted: Optional[int]) -> int:
        """Bytes for the evaluation. Raises AgentError where what it wants is not there above the reserve."""
        left = hostinfo.memory()["available"] - self.reserve
        if left < (wanted or 1):
            told = "%d bytes of memory are left beside the training, %d of them for it; the job asks for %d"
            raise AgentError(told % (left + self.reserve, self.reserve, wanted or 1), kind="refused")
        return min(left, wanted or left)

    def guards(self, began: float) -> List[Guard]:
        """What watches while the evaluation runs."""
        return [MemoryLeft(began, self.reserve), *(guard for one in self.trainings for guard in one.guards(began))]

    def rung(self) -> str:
        """In words, for whoever asks how the evaluation is held."""
        told = "beside %s: memory, run queue and steps watched" % ", ".join(self.names) if self.names else ""
        unseen = "beside %s, which can't be seen: only memory watched" % ", ".join(self.unseen) if self.unseen else ""
        return ", ".join(filter(None, (told, unseen)))

    def _measure(self) -> Set[int]:
        """The cores that are left. Where trainings are pinned: all others. Else as many as they leave idle, and those
        that are idle most; at least one."""
        before, idle = [one.trainer.now() for one in self.trainings], idle_ticks()
        if self.trainings:
            time.sleep(MEASURE)
        usual = [trainers.between(moment, one.trainer.now()) for moment, one in zip(before, self.trainings)]
        for one, found in zip(self.trainings, usual):
            one.usual_wait = found.wait or 0.0
        allowed = os.sched_getaffinity(0)
        pinned = [quiet.cores_of(one.trainer.pids()) for one in self.trainings]
        free = allowed.difference(*pinned) or allowed
        busy = sum(math.ceil(found.busy - 0.1) for found, own in zip(usual, pinned) if not own)
        later = idle_ticks()
        idlest = sorted(free, key=lambda core: idle.get(core, 0) - later.get(core, 0))
        return set(idlest[: max(1, len(idlest) - busy)])


class Neighbour:
    """One training: how it stood before the evaluation."""

    def __init__(self, asked: Dict[str, Any], window: float) -> None:
        self.name = str(asked["name"])
        self.trainer = trainers.Trainer(asked["identity"], asked.get("ranks") or [])
        self.usual_wait = 0.0
        self._log, self._progress = asked.get("log"), asked.get("progress")
        self._started = identity.started_at(asked["identity"]["start_ticks"])
        self._window = window
        self.before = self.progress() or {}

    def progress(self) -> Optional[Dict[str, Any]]:
        """What its log tells now."""
        from remote_payload.agent import progress

        try:
            return progress.read(self._log, self._progress, time.time(), self._started) if self._log else None
        except AgentError:
            return None

    def guards(self, began: float) -> List[Guard]:
        found: List[Guard] = [Waiting(began, self)]
        if self.before.get("steps_per_s") or self.before.get("rate"):
            found.append(Steps(began, self, self._window))
        return found


class MemoryLeft(Guard):
    """Half of the reserve is there for the training at any time, whoever took the other half."""

    def __init__(self, began: float, reserve: int) -> None:
        self.due = began
        self._least = reserve // 2

    def look(self, pids: Sequence[int]) -> str:
        self.due = time.monotonic() + LOOK
        left = hostinfo.memory()["available"]
        told = "stopped for the training's sake: %d bytes of memory are left on this host, %d are kept for it"
        return told % (left, self._least) if left < self._least else ""


class Waiting(Guard):
    """The training's threads don't wait longer for cores than without the evaluation."""

    def __init__(self, began: float, training: Neighbour) -> None:
        self._training = training
        self._last = training.trainer.now()
        self.due = began + WAIT_WINDOW

    def look(self, pids: Sequence[int]) -> str:
        trainer = self._training.trainer
        self.due = time.monotonic() + WAIT_WINDOW
        moment = trainer.now()
        found = trainers.between(self._last, moment)
        self._last = moment
        if found.wait is None or found.wait <= self._training.usual_wait + WAIT:
            return ""
        self._training.usual_wait = self._without(pids)
        self._last = trainer.now()
        if found.wait > self._training.usual_wait + WAIT:
            told = "stopped for the training's sake: %s waited for a core %.0f%% of the time, without it %.0f%%"
            return told % (self._training.name, 100 * found.wait, 100 * self._training.usual_wait)
        self.due = time.monotonic() + PATIENCE
        return ""

    def _without(self, pids: Sequence[int]) -> float:
        """How long the training waits while these processes stand still."""
        try:
            _signal(pids, signal.SIGSTOP)
            time.sleep(SETTLE)
            before = self._training.trainer.now()
            time.sleep(MEASURE)
            return trainers.between(before, self._training.trainer.now()).wait or 0.0
        finally:
            _signal(pids, signal.SIGCONT)


class Steps(Guard):
    """The training makes its steps about as fast as before: by the steps that its log shows, seen with our own clock;
    where the log told no pace before, by the rate that it prints. The median of several: one long pause (a save) does
    not count."""

    def __init__(self, began: float, training: Neighbour, window: float) -> None:
        self._training = training
        self._window = window
        self.due = self._since = began
        self._step: Optional[int] = None
        self._at = began
        self._paces: List[float] = []
        self._rates: List[float] = []

    def look(self, pids: Sequence[int]) -> str:
        now = time.monotonic()
        self.due = now + min(PACE_LOOK, self._window / PACES)
        told = self._training.progress()
        if not told or not self._training.trainer.alive():
            return ""  # it ended by itself, or turned to another log
        if told["stalled"] and not self._training.before.get("stalled"):
            return "stopped for the training's sake: %s makes no steps any more" % self._training.name
        step = told["step"]
        if step is not None and step != self._step:
            if self._step is not None and step > self._step:
                self._paces.append((step - self._step) / (now - self._at))
                self._rates += [told["rate"]] if told["rate"] else []
            self._step, self._at = step, now
        return self._judged(now)

    def _judged(self, now: float) -> str:
        before = self._training.before
        usual, seen = before.get("steps_per_s"), self._paces
        if not usual:
            usual, seen = before.get("rate"), self._rates
        if now - self._since < self._window or len(seen) < PACES or not usual:
            return ""
        median = sorted(seen)[len(seen) // 2]
        self._since, self._paces, self._rates = now, [], []
        if median >= PACE * usual:
            return ""
        told = "stopped for the training's sake: %s went at %.3g of its earlier pace (%.3g, %.3g before)"
        return told % (self._training.name, median / usual, median, usual)


def idle_ticks() -> Dict[int, int]:
    """Core -> ticks in which it had nothing to do since the boot."""
    found = {}
    for line in (identity.read_proc("/proc/stat") or b"").decode("ascii", "replace").splitlines():
        words = line.split()
        if len(words) > 5 and words[0].startswith("cpu") and words[0][3:].isdigit():
            found[int(words[0][3:])] = int(words[4])
    return found


def _signal(pids: Sequence[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:
            continue
