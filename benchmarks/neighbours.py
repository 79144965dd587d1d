"""Stop and go beside a real training on a test host: what harm.py measures with.

The training box has one core for itself (or what a row says), laptop and evaluation box have the others. A neighbour is
something that works on the training box and can be made to stand still; windows with and without it alternate, so that
what else happens on the machine falls on both alike.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "hosts")]

from conftest import TestHosts  # noqa: E402

from remote_payload.agent import identity, trainers  # noqa: E402

TRAINER = ROOT / "remote_payload" / "trainer" / "train_dflash_pipeline.py"
EVERY = frozenset(os.sched_getaffinity(0))
STEP = re.compile(rb"\bstep (\d+)")
SETTLE = 0.25
"""seconds after stop or go that belong to no window"""


def listed(cores: Collection[int]) -> str:
    """As taskset wants them."""
    return ",".join(map(str, sorted(cores)))


def pids_of(hosts: TestHosts, host: str) -> list[int]:
    """All processes of a host, by the numbers that this machine gives them."""
    first = (hosts.state / host / "pid").read_text().strip()
    namespace = os.readlink(f"/proc/{first}/ns/pid")
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.readlink(entry / "ns" / "pid") == namespace:
                found.append(int(entry.name))
    return found


def spent(hosts: TestHosts, host: str, but: int) -> float:
    """CPU seconds of a host's processes and of all that they have waited for, without one of them. Ticks of 10 ms."""
    ticks = 0
    for pid in pids_of(hosts, host):
        with suppress(OSError):
            if pid != but:
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def pin(pids: Collection[int], cores: Collection[int]) -> None:
    """Move processes, with all their threads, to these cores; what they start later stays there."""
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").glob("*"):
            with suppress(OSError):
                os.sched_setaffinity(int(task.name), set(cores))


@dataclass(frozen=True)
class Window:
    """A stretch of time, as the training lived through it."""

    steps: float
    """a second"""
    wait: float
    """of the time: its threads' waiting for a core, by the kernel's count"""
    beside: float
    """cores that everything else on its box used; nothing there can make it wait longer than that. What it waited
    above that it waited for the rest of this machine"""


@dataclass
class Training:
    """The real trainer on the training box."""

    hosts: TestHosts
    cores: Collection[int]
    threads: int
    device: str
    pid: int = 0
    inside: int = 0
    """its number on its host"""
    _watched: trainers.Trainer | None = field(default=None)

    @property
    def home(self) -> Path:
        return self.hosts.state / "train" / "fs" / "p" / "root"

    def __enter__(self) -> Training:
        words = [sys.executable, str(TRAINER), "--out", "/root/live", "--log", "/root/train.log", "--log-every", "1"]
        words += ["--pidfile", "/root/train.pid", "--texts", "32", "--save-every", "100000000"]
        words += ["--threads", str(self.threads), "--device", self.device]
        setting = f"HF_HUB_OFFLINE=1 OMP_NUM_THREADS={self.threads} taskset -c {listed(self.cores)} setsid"
        (self.home / "train.log").unlink(missing_ok=True)
        self.hosts.sh("train", f"cd /root; {setting} {shlex.join(words)} </dev/null >/root/out.log 2>&1 &")
        try:
            wait_for(lambda: self.step() > 20, 120, "the training's first steps")
        except SystemExit as over:
            sys.exit(f"{over}\n{(self.home / 'out.log').read_text()[-2000:]}")
        self.inside = int((self.home / "train.pid").read_text())
        self.pid = next(pid for pid in pids_of(self.hosts, "train") if inner(pid) == self.inside)
        self._watched = trainers.Trainer(identity.of_pid(self.pid) or {}, [self.pid])
        return self

    def __exit__(self, *_: object) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def step(self) -> int:
        """The last one in its log."""
        try:
            with (self.home / "train.log").open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
                found = STEP.findall(file.read())
        except OSError:
            return 0
        return int(found[-1]) if found else 0

    def window(self, seconds: float) -> Window:
        """Of about so many seconds: from the end of a step to the end of another, for a step is 3% of 3 seconds."""
        assert self._watched is not None
        first, began = self._step_end(seconds)
        before, used = self._watched.now(), spent(self.hosts, "train", self.pid)
        time.sleep(seconds)
        last, ended = self._step_end(seconds)
        after, more = self._watched.now(), spent(self.hosts, "train", self.pid)
        told = trainers.between(before, after)
        wait = math.nan if told.wait is None else told.wait  # a kernel without schedstat: no goal of waiting is reached
        return Window((last - first) / (ended - began), wait, (more - used) / told.seconds)

    def _step_end(self, seconds: float) -> tuple[int, float]:
        """(its number, now) once the next step has ended, or so many seconds have gone by without one."""
        before, deadline = self.step(), time.monotonic() + seconds
        while (step := self.step()) == before and time.monotonic() < deadline:
            time.sleep(0.002)
        return step, time.monotonic()


def inner(pid: int) -> int:
    """A process's number in its own namespace."""
    with suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("NSpid:")).split()[-1])
    return 0


@dataclass
class Neighbour:
    """Work on the training box that stops and goes: every process there that was not there before."""

    name: str
    hosts: TestHosts
    before: frozenset[int] = frozenset()

    def others(self) -> list[int]:
        return [pid for pid in pids_of(self.hosts, "train") if pid not in self.before]

    def go(self) -> None:
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        self._signal(signal.SIGSTOP)

    def _signal(self, number: int) -> None:
        for pid in self.others():
            with suppress(OSError):
                os.kill(pid, number)


@contextmanager
def working(name: str, hosts: TestHosts, words: Sequence[str], *, bytes_first: int = 4_000_000) -> Iterator[Neighbour]:
    """A program of the laptop that has work done on the training box, once bytes arrive on the evaluation box."""
    neighbour = Neighbour(name, hosts, frozenset(pids_of(hosts, "train")))
    came = received(hosts)
    log = hosts.state / f"{name}.log"
    with log.open("wb") as out:
        child = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)
    try:
        wait_for(lambda: received(hosts) - came > bytes_first or child.poll() is not None, 150, f"bytes of {name}")
        if child.poll() is not None:
            sys.exit(f"{name} ended: {log.read_text()[-2000:]}")
        yield neighbour
    finally:
        neighbour.go()
        with suppress(OSError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        for pid in neighbour.others():  # sessions of a laptop that is gone
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)


class Commands(Neighbour):
    """Commands typed one after the other; standing still means that none is typed, and the last one has ended."""

    def __init__(self, name: str, hosts: TestHosts, run: Callable[[], None]) -> None:
        super().__init__(name, hosts)
        self._run = run
        self._over = threading.Event()
        self._typing = threading.Thread()
        self.failed = ""
        self.count = 0
        self.seconds = 0.0
        """for which something was typed"""

    def go(self) -> None:
        if self._typing.is_alive():
            return  # it is going: of two pairs, the first may end with it and the second begin with it
        self._over = threading.Event()
        self._typing = threading.Thread(target=self._type, args=(self._over,), daemon=True)
        self._typing.start()

    def stop(self) -> None:
        self._over.set()
        if self._typing.ident is not None:
            self._typing.join()

    def _type(self, over: threading.Event) -> None:
        while not over.is_set():
            began = time.monotonic()
            try:
                self._run()
            except (SystemExit, Exception) as failure:
                self.failed = f"{type(failure).__name__}: {failure}"
                return
            self.count += 1
            self.seconds += time.monotonic() - began


def received(hosts: TestHosts) -> int:
    """Bytes that have arrived on the evaluation box."""
    return int(hosts.sh("eval", "cat /sys/class/net/eth0/statistics/rx_bytes").stdout)


@dataclass(frozen=True)
class Pairs:
    """Windows with and without a neighbour, in pairs."""

    name: str
    with_it: tuple[Window, ...]
    without: tuple[Window, ...]

    @property
    def ratios(self) -> list[float]:
        """Steps a second with it, of those without."""
        return [a.steps / max(b.steps, 1e-9) for a, b in zip(self.with_it, self.without, strict=True)]

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    @property
    def likely(self) -> tuple[float, float]:
        """The ratios between which the median of endless pairs lies, at 95% and without an assumption of their
        distribution: ranks half of n plus and minus 0.98 times its root (the sign test's interval)."""
        ordered, far = sorted(self.ratios), 0.98 * math.sqrt(len(self.ratios))
        middle = (len(ordered) - 1) / 2
        low, high = math.floor(middle - far), math.ceil(middle + far)
        return ordered[max(low, 0)], ordered[min(high, len(ordered) - 1)]

    @property
    def wait(self) -> float:
        """Of the time, over all windows with it."""
        return statistics.fmean(window.wait for window in self.with_it)

    @property
    def beside(self) -> float:
        """Cores that the rest of the training's box used, over all windows with it."""
        return statistics.fmean(window.beside for window in self.with_it)

    def __str__(self) -> str:
        least, most, (low, high) = min(self.ratios), max(self.ratios), self.likely
        usual = statistics.fmean(window.wait for window in self.without)
        waits = [window.wait for window in self.with_it]
        return (
            f"{self.name:<28} steps {self.ratio:.3f} ({low:.3f} to {high:.3f} at 95%; {least:.3f} to {most:.3f}, "
            f"n {len(waits)}), "
            f"waits {self.wait:.4f} ({min(waits):.4f} to {max(waits):.4f}), without it {usual:.4f}; "
            f"the box's other processes had {self.beside:.4f} of a core"
        )


def alternate(training: Training, neighbour: Neighbour, rounds: int, seconds: float) -> Pairs:
    """Windows with the neighbour and without, the order turned from pair to pair."""
    with_it: list[Window] = []
    without: list[Window] = []

    def measured(act: Callable[[], None], into: list[Window]) -> None:
        act()
        time.sleep(SETTLE)
        into.append(training.window(seconds))

    for number in range(rounds):
        halves = [(neighbour.go, with_it), (neighbour.stop, without)]
        for act, into in halves if number % 2 else reversed(halves):
            measured(act, into)
    neighbour.go()
    pairs = Pairs(neighbour.name, tuple(with_it), tuple(without))
    print(pairs, flush=True)
    return pairs


def wait_for(happened: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > deadline:
            sys.exit(f"waited {seconds:.0f} s in vain for {what}")
        time.sleep(0.1)
