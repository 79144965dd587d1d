"""How fast a shipment may leave a training box: at most as fast as asked, and slower while the training feels it.

What this process and its children use comes last for cores and disks by itself (quiet.py). What is out of reach are
the sshd that encrypts for a relay or a tunnel, the kernel's own work, and the disk's queue: so the training's waiting
is measured while bytes go out. Where it rises, sending pauses for a moment and it is measured again: if the training
waits as much without us, it is not us; else the rate is halved, and grows slowly from there.
"""

import time
from typing import Any, Dict, Iterator, Optional, TypeVar

from remote_payload.agent import quiet
from remote_payload.agent.trainers import Between, Moment, Trainer, between

WAIT = 0.02
"""of the time: how much longer than without us its threads may wait for a core"""
IO_WAIT = 0.10
"""of the time: how much longer than without us others may wait for disks"""
LOOK = 0.5
"""seconds between two looks, at least"""
LOOKING = 0.02
"""of the time that looking may take: of very many threads it is done less often"""
SETTLE, PAUSE = 0.2, 0.4
"""seconds: what is under way still goes out, then it is measured without us"""
START = 16e6
"""bytes a second to begin with beside a training"""
LEAST = 256e3
ENOUGH = 4e9
"""above this a rate limits nothing"""
CAREFUL = 1.25
"""growth at each look once it was too much; until then the rate doubles"""
Item = TypeVar("Item")


class Pace:
    """Told of every chunk that goes out; sleeps where that was too fast."""

    def __init__(self, limit_rate: Optional[float], training: Optional[Dict[str, Any]]) -> None:
        """`training` is {"identity", "ranks"} of the process on this box, or None where none is known."""
        self._limit = limit_rate
        self._trainer = Trainer(training["identity"], training["ranks"]) if training else None
        self._rate = START if self._trainer else ENOUGH
        self._growth = 2.0
        self._due = 0.0
        self._sent = 0
        self._reading = 0.0
        self._usual = self._usual_seen = Between(1.0, None, 0.0, None)
        self._last = Moment(0.0, {}, None)
        self._next_look = 0.0
        self._backed_off = 0
        self._slept = 0.0
        self._highest: Optional[float] = None

    def begin(self) -> None:
        """Leave its own cores to the training, and measure how it stands before anything is sent."""
        if self._trainer is not None:
            quiet.avoid(quiet.cores_of(self._trainer.pids()))
            self._usual = self._usual_seen = self._without_us()
        self._due = time.monotonic()

    def reading(self, items: Iterator[Item]) -> Iterator[Item]:
        """The items, with the time noted that getting them takes: our own waiting for a disk is not the others'."""
        while True:
            began = time.monotonic()
            try:
                item = next(items)
            except StopIteration:
                return
            finally:
                self._reading += time.monotonic() - began
            yield item

    def sent(self, size: int) -> None:
        """So many bytes went out. Returns when the next ones may."""
        self._sent += size
        rate = min(self._rate, self._limit or ENOUGH)
        now = time.monotonic()
        self._due = max(self._due, now - LOOK) + size / rate
        if self._due > now and rate < ENOUGH:
            time.sleep(self._due - now)
            self._slept += self._due - now if rate < (self._limit or ENOUGH) else 0.0
        if self._trainer is not None and time.monotonic() >= self._next_look:
            self._look(self._trainer)

    def account(self) -> Dict[str, Any]:
        """{"watched": whether a training was measured meanwhile, "backed_off": how often the rate was lowered, "slept":
        seconds for the training's sake, "wait_before", "wait_highest": of the time, waiting for a core}."""
        return {
            "watched": self._highest is not None,
            "backed_off": self._backed_off,
            "slept": round(self._slept, 3),
            "wait_before": self._usual.wait,
            "wait_highest": self._highest,
        }

    def _look(self, trainer: Trainer) -> None:
        moment = trainer.now()
        seen = between(self._last, moment)
        if not moment.threads and seen.io is None:
            return  # it ended, or is hidden: nothing to go by
        sent, own_io = self._sent / seen.seconds, self._reading / seen.seconds
        if seen.wait is not None:
            self._highest = max(self._highest or 0.0, seen.wait)
        if not _felt(seen, self._usual, own_io):
            self._rate = min(self._rate * self._growth, ENOUGH)
        else:
            earlier, now = self._usual_seen, self._without_us()
            self._usual_seen = now
            self._usual = Between(now.seconds, _less(now.wait, earlier.wait), now.busy, _less(now.io, earlier.io))
            if _felt(seen, self._usual, own_io):
                self._backed_off += 1
                self._growth = CAREFUL
                self._rate = max(LEAST, min(self._rate, sent) / 2)
        self._start_window(trainer)

    def _without_us(self) -> Between:
        """How the training fares while nothing is sent."""
        assert self._trainer is not None
        began = time.monotonic()
        time.sleep(SETTLE)
        before = self._trainer.now()
        time.sleep(PAUSE)
        told = between(before, self._trainer.now())
        self._start_window(self._trainer)
        self._slept += time.monotonic() - began
        return told

    def _start_window(self, trainer: Trainer) -> None:
        began = time.monotonic()
        self._last = trainer.now()
        cost = time.monotonic() - began
        self._sent, self._reading = 0, 0.0
        self._next_look = self._last.at + max(LOOK, 2 * cost / LOOKING)


def _less(now: Optional[float], earlier: Optional[float]) -> Optional[float]:
    """Of two looks without us: a short burst of somebody else's must not pass for the usual."""
    return now if earlier is None or now is None else min(now, earlier)


def _felt(seen: Between, usual: Between, own_io: float) -> bool:
    """Whether the training, or anybody who needs a disk, waited longer than without us."""
    cores = seen.wait is not None and seen.wait > (usual.wait or 0.0) + WAIT
    disks = seen.io is not None and seen.io - own_io > (usual.io or 0.0) + IO_WAIT
    return cores or disks
