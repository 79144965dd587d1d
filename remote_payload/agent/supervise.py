"""The supervisor of one run: starts the evaluation within its limits, watches it, and writes how it ended.

It runs from its run folder alone, detached, and knows nothing of any controller. All that it says is in files: the log,
started.json, a heartbeat (the file's time), and at the very end exit.json. Where another evaluation is at work on the
host, it waits for its turn first.
"""

import json
import os
import signal
import subprocess
import time
import traceback
from typing import Any, Dict, List, Optional, Tuple

from remote_payload.agent import (
    belongings,
    beside,
    descendants,
    ending,
    guards,
    hostinfo,
    incarnation,
    limits,
    lookagain,
    quiet,
    scratch,
)
from remote_payload.agent.errors import AgentError
from remote_payload.agent.identity import utc
from remote_payload.agent.turn import AT_ONCE, Turn

BEAT = 5.0
"""seconds between two heartbeats"""
GRACE = 10.0
"""seconds between TERM and KILL"""
QUEUE_LOOK = 1.0
"""seconds between two looks at the queue"""
CANCEL = signal.SIGUSR1
"""asks a supervisor to end its run as cancelled; cancel.json may hold the grace"""
_RESERVED = 8192
_SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, CANCEL)


def main(folder: str) -> None:
    """Supervise the run in `folder`; never returns. Secrets come as one JSON line on stdin, "ready" goes to stdout."""
    if os.fork():
        os._exit(0)
    umask = os.umask(0o077)
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    supervisor = Supervisor(folder, umask)
    try:
        supervisor.run()
    except Exception:
        supervisor.give_up(traceback.format_exc())
    os._exit(0)


class Supervisor:
    """One run from its start to its exit.json."""

    def __init__(self, folder: str, umask: int) -> None:
        self.folder = folder
        self.umask = umask
        """the one that the evaluation gets"""
        self.spec: Dict[str, Any] = scratch.read_json(self._path("spec.json")) or {}
        limit = self.spec.get("limits") or {}
        self.wall: Optional[float] = limit.get("wall")
        self.grace = float(limit.get("grace") or GRACE)
        self._set_limits()
        self.gpu_devices: List[str] = self.spec.get("gpu_devices") or list(descendants.GPU_DEVICES)
        self.workdir = os.path.dirname(os.path.dirname(folder))
        self.turn = Turn(self.workdir, str(self.spec.get("id")), limit.get("evaluations") or AT_ONCE)
        self.waiting = False
        self.status: Optional[int] = None
        """wait status of the evaluation once it has ended"""
        self.child = 0
        self.queued_at = utc()
        self.started_at = ""
        self.rung = ""
        self.kills_before = 0
        """what the kernel had killed for want of memory before the start"""

    def _set_limits(self) -> None:
        """As the spec has them, with nobody beside it."""
        limit = self.spec.get("limits") or {}
        self.threads: Optional[int] = limit.get("threads")
        self.memory: Optional[int] = limit.get("memory")
        self.beside: Optional[beside.Beside] = None
        """the trainings of this host, where it has some"""
        self.cage = limits.Cage(str(self.spec.get("id")), self.memory, self.threads)

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def run(self) -> None:
        """Everything, in order."""
        if os.path.exists(self._path("exit.json")):
            return  # it took so long to get here that the run was given up
        secrets = _read_secrets()
        if secrets is None:
            self._finish("lost", "the launch was cut off before it was complete; nothing was started")
            return
        limits.adopt_orphans()
        try:
            self._come_after_trainings()
        except AgentError as error:
            self._finish("refused", "nothing was started: " + error.message)
            os.write(2, error.message.encode("utf-8"))  # who started it listens until it is ready
            return
        self.cage.build()
        self._reserve_room()
        self.turn.take()
        self.waiting = waited = not self.turn.come()
        self._write_started()
        self._let_go()
        unbegun = self._wait_for_turn() or (self._look_again() if waited else None)
        if unbegun:
            self._finish(*unbegun)
            return
        self.kills_before = limits.oom_kills(self.cage.memory_group)
        began = time.monotonic()
        try:
            self._start(secrets)
        except (OSError, subprocess.SubprocessError) as error:
            self._finish("failed", "could not start %s: %s" % (self.spec["command"][0], error))
            return
        del secrets
        stopped = self._watch(began)
        left = self._end_all()
        memory_gone = limits.oom_kills(self.cage.memory_group) > self.kills_before
        state, reason = stopped or ending.of(self.folder, self.spec["result"], self.status, memory_gone)
        self._finish(state, reason + ("; not to be killed: processes %s" % left if left else ""))

    def give_up(self, trace: str) -> None:
        """The supervisor itself can't go on (its folder was removed, or a bug): end everything and say so."""
        self._end_all()
        os.write(2, trace.encode("utf-8", "replace"))  # who started it listens until it is ready
        try:
            self._finish("failed", "orch's supervisor failed: " + trace.strip().splitlines()[-1])
            with open(self._path("log"), "a") as log:
                log.write(trace)
        except OSError:
            self.turn.leave()
            self.cage.close()

    # -- start --------------------------------------------------------------------------------------------------

    def _come_after_trainings(self) -> None:
        """On a host where one runs: take what it leaves, here and for the evaluation. Raises AgentError."""
        asked = self.spec.get("beside")
        if not asked:
            return
        quiet.be_quiet(first_to_go=False)
        self.beside = beside.Beside(asked)
        self.memory = self.beside.memory_limit(self.memory)
        self.threads = min(self.threads or len(self.beside.cores), len(self.beside.cores))
        self.cage = limits.Cage(str(self.spec["id"]), self.memory, self.threads, self.beside.cores)

    def _look_again(self) -> Optional[Tuple[str, str]]:
        """While it waited a training may have begun or ended, and memory or disk may have gone: (state, reason) where
        it may not start any more."""
        try:
            self.spec = lookagain.look_again(self.workdir, self.spec)
            self.cage.close()
            self._set_limits()
            self._come_after_trainings()
        except AgentError as error:
            return "refused", "nothing was started: " + ": ".join(filter(None, (error.message, error.hint)))
        self.cage.build()
        return None

    def _reserve_room(self) -> None:
        """Blocks for exit.json, taken while there are some: a full disk must not hide how a run ended."""
        with open(self._path(".exit.json"), "wb") as file:
            file.write(b" " * _RESERVED)
            os.fsync(file.fileno())

    def _write_started(self) -> None:
        value = dict(incarnation.record(os.getpid()), schema=1, queued_at=self.queued_at, waiting=self.waiting)
        value["started_at"] = self.started_at or (None if self.waiting else utc())
        value.update(rung=self.rung, child=incarnation.record(self.child) if self.child else None)
        value["oom_kills"] = limits.oom_kills()
        value["beside"] = [one["name"] for one in (self.spec.get("beside") or {}).get("trainings", ())]
        scratch.write_json(self._path("started.json"), value)

    def _let_go(self) -> None:
        """Say ready, then turn the three descriptors away: the connection may close."""
        self._beat()
        os.write(1, b"ready\n")
        away = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(away, descriptor)
        os.close(away)

    def _wait_for_turn(self) -> Optional[Tuple[str, str]]:
        """Until fewer evaluations than allowed are ahead, or (state, reason) where it was asked to end meanwhile."""
        while self.waiting:
            asked = self._wait(QUEUE_LOOK)
            if asked:
                return asked
            self._beat()
            self.waiting = not self.turn.come()
        return None

    def _start(self, secrets: Dict[str, str]) -> None:
        log = os.open(self._path("log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            child = subprocess.Popen(
                self.spec["command"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._path("harness"),
                env=self._environment(secrets),
                start_new_session=True,
                preexec_fn=self._become,
            )
        finally:
            os.close(log)
        child.returncode = 0  # waited for here, not by subprocess
        self.child = child.pid
        self.started_at = utc()
        told = [self.cage.rung(self.child), "%s threads" % (self.threads or hostinfo.cpus())]
        self.rung = ", ".join(told + ([self.beside.rung()] if self.beside else []))
        try:
            self._write_started()
        except OSError:
            pass  # the disk is full already; what was written before the start identifies the supervisor

    def _become(self) -> None:
        """In the child, before it is the evaluation."""
        os.umask(self.umask)
        self.cage.enter()

    def _environment(self, secrets: Dict[str, str]) -> Dict[str, str]:
        """What the evaluation sees; hidden GPUs come last, so that nothing shows them again."""
        environment = dict(os.environ, PYTHONUNBUFFERED="1", ORCH_PROGRESS=self._path("progress.jsonl"))
        environment.update(limits.thread_environment(self.threads))
        environment.update({name: value for name, value in self.spec["env"].items() if isinstance(value, str)})
        environment.update(secrets)
        environment.update(limits.HIDDEN_GPUS)
        environment.update(belongings.mark(self.spec["id"], self.folder))
        return environment

    # -- watch --------------------------------------------------------------------------------------------------

    def _watch(self, began: float) -> Optional[Tuple[str, str]]:
        """Until the evaluation ends (None) or must be stopped: (state, reason)."""
        beat = began + BEAT
        clients = guards.Clients(began)
        watching: List[guards.Guard] = [guards.Devices(began, self.gpu_devices), clients, guards.Sessions(began)]
        if self.memory and not self.cage.memory_group:
            watching.append(guards.Memory(began, self.memory))
        if self.beside:
            watching += self.beside.guards(began)
        while True:
            now = time.monotonic()
            if now >= beat:
                self._beat()
                beat = now + BEAT
            for guard in watching:
                if now >= guard.due:
                    own = clients.own
                    reason = guard.look([pid for pid in descendants.descendants(os.getpid()) if pid not in own])
                    if reason:
                        return "failed", reason
            if self.wall and now >= began + self.wall:
                return "failed", "time limit: %g s have passed" % self.wall
            due = min([beat, *(guard.due for guard in watching)] + ([began + self.wall] if self.wall else []))
            asked = self._wait(min(1.0, max(0.01, due - time.monotonic())))
            if self.status is not None:
                return None
            if asked:
                return asked

    def _beat(self) -> None:
        with open(self._path("heartbeat"), "a"):
            os.utime(self._path("heartbeat"))

    def _wait(self, seconds: float) -> Optional[Tuple[str, str]]:
        """Sleep until a child ends or `seconds` have passed; (state, reason) where this supervisor was asked to end."""
        info = signal.sigtimedwait(_SIGNALS, seconds)
        self._reap()
        if info is not None and info.si_signo == CANCEL:
            wish = scratch.read_json(self._path("cancel.json")) or {}
            self.grace = float(wish.get("grace", self.grace))
            return "cancelled", "cancelled by orch cancel"
        if info is not None and info.si_signo == signal.SIGTERM:
            return "lost", "the host asked its processes to end (SIGTERM): a shutdown, or a logout that kills"
        return None

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.child:
                self.status = status

    # -- end ----------------------------------------------------------------------------------------------------

    def _end_all(self) -> List[int]:
        """TERM to all that the evaluation started, KILL after the grace, until nothing is left; who is left after all.

        Those are in the kernel's hands.
        """
        deadline = time.monotonic() + self.grace
        number = signal.SIGTERM
        told: Dict[int, int] = {}
        while True:
            self._reap()
            living = descendants.descendants(os.getpid())
            if not living or time.monotonic() >= deadline + GRACE:
                return living
            if time.monotonic() >= deadline:
                number = signal.SIGKILL
            for pid in living:
                if told.get(pid) != number:
                    told[pid] = number
                    _signal(pid, number)
            signal.sigtimedwait([signal.SIGCHLD], 0.1)

    def _finish(self, state: str, reason: str) -> None:
        """exit.json: the last file written, whole or absent, in blocks that were reserved at the start."""
        code, number = ending.decode(self.status)
        value = {"schema": 1, "state": state, "exit_code": code, "signal": number, "reason": reason[:1000]}
        value.update(started_at=self.started_at or None, ended_at=utc(), rung=self.rung)
        text = json.dumps(value).encode("ascii")
        descriptor = os.open(self._path(".exit.json"), os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.pwrite(descriptor, text, 0)
            os.ftruncate(descriptor, len(text))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(self._path(".exit.json"), self._path("exit.json"))
        self.turn.leave()
        self.cage.close()


def _read_secrets() -> Optional[Dict[str, str]]:
    """The one line on stdin; None where it did not arrive whole."""
    text = b""
    while not text.endswith(b"\n"):
        data = os.read(0, 65536)
        if not data:
            return None
        text += data
    value = json.loads(text.decode("utf-8"))
    return value if isinstance(value, dict) else None


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        pass
