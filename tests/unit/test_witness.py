"""Each verdict reached for real: a training that steps, watched by a real agent, and what becomes of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from observing import wait_for_state

from orchestrator.actions import training
from orchestrator.model import Host, ProcessRule, Receipt, Timeouts, TrainingRun
from orchestrator.receipts import receipt
from orchestrator.ssh.local import LocalConnection
from orchestrator.ssh.witness import Witness

STEPPING = Path(__file__).parents[1] / "stepping.py"
TIMEOUTS = Timeouts(sample=0.5)
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="a PID namespace needs root")


@dataclass
class Box:
    """This machine as a training box, and the training on it."""

    folder: Path
    python: str = sys.executable
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def log(self) -> Path:
        return self.folder / "train.log"

    @property
    def pidfile(self) -> Path:
        return self.folder / "train.pid"

    @property
    def host(self) -> Host:
        return Host(
            name="box",
            ssh="box",
            roles=frozenset({"train"}),
            transport="local",
            python=self.python,
            root=self.folder,
        )

    @property
    def run(self) -> TrainingRun:
        rule = ProcessRule(pidfile=str(self.pidfile))
        return TrainingRun(name="r", hosts=("box",), checkpoints="/", process=rule, log=str(self.log))

    def words(self, *more: str) -> list[str]:
        return [sys.executable, str(STEPPING), str(self.log), "--pidfile", str(self.pidfile), *more]

    def train(self, *more: str, prefix: tuple[str, ...] = (), lines: int = 1) -> subprocess.Popen[bytes]:
        """Start a training; it has told so many steps when this returns."""
        before = self.lines()
        child = subprocess.Popen([*prefix, *self.words(*more)], stdin=subprocess.DEVNULL)
        self.started.append(child)
        wait_until(lambda: self.lines() >= before + lines)
        return child

    def lines(self) -> int:
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0

    @property
    def pid(self) -> int:
        return int(self.pidfile.read_text())

    def witness(self) -> Witness:
        connection = LocalConnection(self.host, TIMEOUTS)
        witness = training.watch(lambda: connection, self.host, self.run, TIMEOUTS)
        assert witness.wait_for_first(30), witness.failure
        return witness

    def receipt(self, meanwhile: Callable[[], object]) -> Receipt:
        """The receipt of one window in which something happens."""
        witness = self.witness()
        meanwhile()
        witness.dismiss()
        assert witness.failure is None
        return receipt([training.watched("ship", "box", witness)])


def wait_until(happened: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    box = Box(tmp_path)
    yield box
    for child in box.started:
        child.kill()
        child.wait()


def test_a_training_left_alone_is_undisturbed_and_its_numbers_are_kept(box: Box) -> None:
    box.train(lines=10)
    found = box.receipt(lambda: time.sleep(1.5))
    assert found.verdict == "undisturbed", found.reasons
    assert f"same process {box.pid} since" in found.reasons[0] and ", step " in found.reasons[0]
    (window,) = found.windows
    assert len(window["samples"]) >= 2, "before, during and after"
    assert window["measured"]["steps"] > 10 and window["measured"]["rate"]["lines"] > 3
    names = ("run_queue_wait_ns", "major_faults", "voluntary_switches", "involuntary_switches", "rss", "io", "lived_s")
    assert all(window["after"][name] is not None for name in names)
    assert any("between two samples, up to" in limit for limit in found.limits) or window["widest_s"] < 1


def test_a_training_killed_in_a_window_is_changed_and_the_signal_is_named(box: Box) -> None:
    child = box.train()
    found = box.receipt(lambda: (child.kill(), time.sleep(0.7)))
    assert found.verdict == "changed"
    assert f"process {child.pid} is zombie: it was killed (signal 9 (SIGKILL))" in found.reasons[0]


def test_a_training_that_vanished_in_a_window_is_changed_and_nobody_guesses_how(box: Box) -> None:
    child = box.train()
    found = box.receipt(lambda: (child.kill(), child.wait()))
    assert found.verdict == "changed"
    assert f"process {child.pid} is absent: process {child.pid} ended" in found.reasons[0]


def test_a_training_that_was_stopped_is_changed(box: Box) -> None:
    child = box.train()

    def meanwhile() -> None:
        child.send_signal(signal.SIGSTOP)
        wait_for_state(child.pid, "T")  # a busy machine takes its time to stop one

    found = box.receipt(meanwhile)
    assert found.verdict == "changed" and "from running to stopped" in found.reasons[0]


def test_a_training_that_was_stopped_and_went_on_is_seen_by_the_samples_between(box: Box) -> None:
    child = box.train()

    def meanwhile() -> None:
        child.send_signal(signal.SIGSTOP)
        time.sleep(1.2)
        child.send_signal(signal.SIGCONT)
        time.sleep(0.3)

    found = box.receipt(meanwhile)
    assert found.verdict == "changed" and "from running to stopped" in found.reasons[0]
    assert found.windows[0]["after"]["state"] == "running"


@pytest.mark.parametrize("waited_for", [False, True], ids=["exit code", "log"])
def test_a_training_that_finished_by_itself_has_ended(box: Box, waited_for: bool) -> None:
    child, over = box.train("--until", str(box.folder / "over"), "--end", "finished"), box.folder / "over"
    found = box.receipt(lambda: (over.touch(), child.wait() if waited_for else wait_for_state(child.pid, "Z")))
    assert found.verdict == "ended", found.reasons
    assert "it finished by itself" in found.reasons[0]
    assert ("training finished after step" if waited_for else "exit code 0") in found.reasons[0]


@pytest.mark.parametrize("waited_for", [False, True], ids=["exit code", "log"])
def test_a_training_that_crashed_in_a_window_is_changed_and_said(box: Box, waited_for: bool) -> None:
    child, over = box.train("--until", str(box.folder / "over"), "--end", "crashed"), box.folder / "over"
    found = box.receipt(lambda: (over.touch(), child.wait() if waited_for else wait_for_state(child.pid, "Z")))
    assert found.verdict == "changed"
    assert "it crashed" in found.reasons[0]
    assert ("RuntimeError: CUDA error" if waited_for else "exit code 1") in found.reasons[0]


def test_a_training_that_was_started_again_is_changed(box: Box) -> None:
    child = box.train()
    found = box.receipt(lambda: (child.kill(), child.wait(), box.train()))
    assert found.verdict == "changed"
    assert f"process {child.pid} was replaced by {box.pid}" in found.reasons[0]


@pytest.mark.parametrize("how", ["renamed", "copied and cut"])
def test_a_log_that_is_rotated_accuses_nobody(box: Box, how: str) -> None:
    box.train(lines=25)

    def rotate() -> None:
        if how == "renamed":
            box.log.rename(box.log.with_name("train.log.1"))
        else:
            box.log.with_name("train.log.1").write_bytes(box.log.read_bytes())
            os.truncate(box.log, 0)
        wait_until(lambda: box.lines() > 2)

    found = box.receipt(rotate)
    assert found.verdict == "undisturbed", found.reasons
    assert "its log was rotated or begun anew inside a window" in found.limits


def test_a_training_that_a_neighbour_slows_is_changed_with_how_long_it_waited(box: Box) -> None:
    core = str(min(os.sched_getaffinity(0)))
    box.train("--burn", prefix=("taskset", "-c", core), lines=20)

    def neighbour() -> None:
        burning = [sys.executable, "-c", "while True: pass"]
        beside = [subprocess.Popen(["taskset", "-c", core, *burning]) for _ in range(3)]
        time.sleep(5.5)
        for one in beside:
            one.kill()
            one.wait()

    for _ in range(3):  # where this machine itself is busy, waiting may be as usual: then once more
        found = box.receipt(neighbour)
        if "of the time for a core, usually" in " ".join(found.reasons):
            break
    assert found.verdict == "changed", (found.reasons, found.windows[0]["measured"])
    assert "of the time for a core, usually" in " ".join(found.reasons)
    waiting = found.windows[0]["after"]["waiting"][0]
    assert (waiting["pid"], waiting["thread"]) == (box.pid, box.pid) and waiting["wait_ns"] > 1e9


def test_a_new_client_on_a_gpu_is_changed(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's tool is a script here that prints what the real one prints."""
    child, clients, tools = box.train(), box.folder / "clients", box.folder / "bin"
    clients.write_text(f"GPU-a, {child.pid}\n")
    tools.mkdir()
    script = '#!/bin/sh\ncase "$1" in --query-gpu*) echo "0, GPU-a, NVIDIA H200, 99, 2861, 143771, 59";;'
    (tools / "nvidia-smi").write_text(f"{script} *) cat {clients};; esac\n")
    (tools / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    assert box.receipt(lambda: None).verdict == "undisturbed"
    found = box.receipt(lambda: clients.write_text(f"GPU-a, {child.pid}\nGPU-a, {os.getpid()}\n"))
    assert found.verdict == "changed"
    assert f"process {os.getpid()} came to GPU 0" in found.reasons[0]


# -- containers ----------------------------------------------------------------------------------------------------


@dataclass
class Container(Box):
    """A box with process numbers of its own; orch's agent runs inside, as sshd in a container would start it."""

    first: subprocess.Popen[bytes] | None = None

    def boot(self) -> None:
        """Its first process, and with it the container; a running one is ended before, with everything in it."""
        if self.first is not None:
            self.shut_down()
        alive, number = "trap : TERM; while :; do wait; sleep 0.05; done", self.folder / "first"
        words = ["unshare", "--pid", "--mount", "--fork", "--mount-proc", "--kill-child", "sh", "-c", alive]
        self.first = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        children = Path(f"/proc/{self.first.pid}/task/{self.first.pid}/children")
        wait_until(lambda: bool(children.read_text().split()))
        number.write_text(children.read_text().split()[0])
        wait_until(lambda: self.sh("[ -d /proc/1/fd ]").returncode == 0)
        python = self.folder / "python"
        python.write_text(f'#!/bin/sh\nexec nsenter -t $(cat {number}) -p -m {sys.executable} "$@"\n')
        python.chmod(0o755)
        self.python = str(python)

    def shut_down(self) -> None:
        assert self.first is not None
        self.first.kill()
        self.first.wait()

    def sh(self, command: str) -> subprocess.CompletedProcess[bytes]:
        first = (self.folder / "first").read_text()
        return subprocess.run(["nsenter", "-t", first, "-p", "-m", "sh", "-c", command], capture_output=True)

    def train_as(self, number: int | None = None) -> int:
        """Start a training, maybe under that process number; its number inside."""
        before = self.lines()
        first = f"echo {number - 1} > /proc/sys/kernel/ns_last_pid; " if number else ""
        self.sh(f"{first}{' '.join(self.words())} </dev/null >/dev/null 2>&1 &")
        wait_until(lambda: self.lines() > before)
        return self.pid


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Container]:
    container = Container(tmp_path)
    container.boot()
    yield container
    container.shut_down()


@root_only
def test_a_restarted_training_with_the_same_number_is_another_one(container: Container) -> None:
    number = container.train_as(4000)
    assert number == 4000

    def restart() -> None:
        container.sh(f"kill -9 {number}")
        time.sleep(0.3)
        assert container.train_as(number) == number

    found = container.receipt(restart)
    assert found.verdict == "changed"
    assert "process 4000 was replaced by another one with the same number" in found.reasons[0]


@root_only
def test_a_box_that_was_restarted_between_two_windows_is_said(container: Container) -> None:
    """Within the minute after a window it counts as changed; whenever it was, the restart is named."""
    number = container.train_as(4000)
    first = container.witness()
    first.dismiss()
    container.boot()
    assert container.train_as(number) == number
    second = container.witness()
    second.dismiss()
    windows = [training.watched("ship", "box", witness) for witness in (first, second)]
    found = receipt(windows)
    assert found.verdict == "changed" and "the process was replaced within" in found.reasons[0]
    # the same an hour later: the box counts seconds since its boot, and its first process is as young as before
    for sample in (windows[1]["before"], windows[1]["after"]):
        sample["monotonic"] += 3600
    found = receipt(windows)
    assert found.verdict == "ended"
    assert "training ended with a restart of the host or container" in found.reasons[0]


@root_only
def test_a_box_that_goes_down_in_a_window_is_not_observed_until_somebody_looks_again(container: Container) -> None:
    container.train_as()
    witness = container.witness()
    container.shut_down()
    witness.dismiss()
    window = training.watched("ship", "box", witness)
    found = receipt([window])
    assert found.verdict == "not_observed" and window["gaps"][0]["why"] in found.reasons[0]
    container.boot()
    again = container.witness()
    again.dismiss()
    found = receipt([training.watched("ship", "box", witness, again.samples[-1])])
    assert found.verdict == "changed"
