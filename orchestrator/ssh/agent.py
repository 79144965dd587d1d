"""The controller's side of the conversation with the agent: one exec, one question, one answer.

Everything orch does on a host passes here. A Conversation sends the agent with the request, keeps up the heartbeat that
the agent lives on, and takes silence from the other side for a dead path, even through a jump host that still answers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any

from orchestrator.errors import (
    ConfigError,
    ConnectionLost,
    NothingToEvaluate,
    OrchError,
    Refused,
    RemotePythonError,
    TornCheckpoint,
    TransferError,
)
from orchestrator.model import Host, Role, Timeouts
from orchestrator.ssh import bundle
from orchestrator.ssh.connection import Channel, Connection, Opener
from remote_payload.agent import wire

NOISE_LIMIT = 1 << 20
"""bytes of login-shell output before the agent's first frame"""
ERRORS = {
    "config": ConfigError,
    "nothing": NothingToEvaluate,
    "refused": Refused,
    "transfer": TransferError,
    "torn": TornCheckpoint,
}

PATIENCE = 4
"""times `timeouts.dead` for an agent on a host that trains: it comes last there, so where every core is wanted its
signs of life come late. A path that is cut is noticed as fast as elsewhere, by ssh's own signs of life."""
SLOW = "this machine is too busy to answer: raise timeouts.dead in hosts.yaml"
NOT_THERE = ("not found", "no such file", "unknown command")
"""what login shells say of a program that is not there"""


class Conversation:
    """One question put to one host's agent. Use as a context manager; leaving it lets the agent go."""

    def __init__(
        self,
        connection: Opener,
        host: Host,
        question: str,
        args: Mapping[str, Any],
        *,
        role: Role,
        timeouts: Timeouts,
        bulk: bool = False,
    ) -> None:
        self._host = host
        self._timeouts = timeouts
        self._channel: Channel = connection.open(bundle.start_argv(host.python), bulk=bulk)
        self._buffer = bytearray()
        self._until: float | None = None
        self._dead = timeouts.dead * (PATIENCE if "train" in host.roles else 1)
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._send_raw(bundle.preamble())
        beside = "train" in host.roles  # nothing that runs there may be felt, an evaluation's own questions neither
        self.tell({"question": question, "args": args, "role": role, "beside": beside, **self._rhythm()})
        threading.Thread(target=self._send_beats, daemon=True).start()
        self._skip_noise()

    def __enter__(self) -> Conversation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._channel.close()

    # -- sending ------------------------------------------------------------------------------------------------

    def tell(self, message: Mapping[str, Any]) -> None:
        """A message to the agent. Raises ConnectionLost."""
        self._send_raw(wire.encode_json(dict(message)))

    def send(self, data: bytes) -> bool:
        """A piece of a stream; blocks while the host does not take it. False once nobody listens: `result` says why."""
        return self._send_raw(wire.encode(wire.DATA, data))

    def finish_sending(self) -> None:
        """The end of the stream."""
        self._send_raw(wire.encode(wire.END))

    def _send_raw(self, data: bytes) -> bool:
        try:
            with self._lock:
                self._channel.write(data)
        except BrokenPipeError:
            return False  # the agent has ended: what it said last, or its exit status, says why
        return True

    def _send_beats(self) -> None:
        while not self._over.wait(self._timeouts.heartbeat):
            try:
                self._send_raw(wire.encode(wire.BEAT))
            except OrchError:
                return  # the reader meets the same loss, and reports it

    def _rhythm(self) -> dict[str, float]:
        return {"beat": self._timeouts.heartbeat, "dead": self._timeouts.agent_dead}

    # -- hearing ------------------------------------------------------------------------------------------------

    def events(self) -> Iterator[dict[str, Any] | bytes]:
        """Progress messages (dict) and pieces of a stream (bytes) until the answer, which `answer` then holds.

        Raises what the agent reports, or ConnectionLost.
        """
        while True:
            kind, payload = self._frame()
            if kind == wire.DATA:
                yield payload
            elif kind == wire.JSON:
                message = wire.decode_json(payload)
                if "progress" in message:
                    yield message["progress"]
                else:
                    self.answer = self._open(message)
                    return

    def result(
        self, on_progress: Callable[[dict[str, Any]], None] | None = None, *, within: float | None = None
    ) -> dict[str, Any]:
        """The answer, once all else has been heard. Raises ConnectionLost after `within` seconds, beats or not."""
        self._until = None if within is None else time.monotonic() + within
        for event in self.events():
            if on_progress and isinstance(event, dict):
                on_progress(event)
        return self.answer

    def _open(self, message: dict[str, Any]) -> dict[str, Any]:
        if "answer" in message:
            answer: dict[str, Any] = message["answer"]
            return answer
        if "bug" in message:
            raise RuntimeError(f"the agent on {self._host.name} failed:\n{message['bug']}")
        error = message["error"]
        raise ERRORS.get(error["kind"], OrchError)(error["message"], hint=error["hint"], host=self._host.name)

    def _frame(self) -> tuple[bytes, bytes]:
        if self._until is not None and time.monotonic() > self._until:
            message = f"{self._host.name}: the agent lives but gave no answer within timeouts.question"
            raise ConnectionLost(message, hint="raise it in hosts.yaml, or see what hangs there", host=self._host.name)
        try:
            frame = wire.read_frame(self._read)
        except wire.WireError as error:
            raise ConnectionLost(f"{self._host.name}: {error}; the result is unknown", host=self._host.name) from None
        if frame is None:
            raise self._gone()
        return frame

    def _read(self, size: int) -> bytes:
        if not self._buffer:
            self._fill(self._dead)
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def _fill(self, patience: float) -> bool:
        try:
            data = self._channel.read(wire.CHUNK, timeout=patience)
        except TimeoutError:
            raise ConnectionLost(
                f"{self._host.name}: no sign of life for {patience:.0f} s; the result is unknown",
                hint=_to_try(self._host, "true") if self._host.transport != "local" else SLOW,
                host=self._host.name,
            ) from None
        self._buffer += data
        return bool(data)

    def _skip_noise(self) -> None:
        began = time.monotonic()
        patience = max(self._dead, 2 * self._timeouts.dead)  # a python on a slow disk may take its time to start
        while (found := self._buffer.find(wire.MARK)) < 0:
            if len(self._buffer) > NOISE_LIMIT or time.monotonic() - began > self._timeouts.question:
                raise RemotePythonError(f"{self._host.name}: only noise came back, no agent", host=self._host.name)
            if not self._fill(patience):
                raise self._no_agent()
        del self._buffer[: found + len(wire.MARK)]

    # -- how it ended -------------------------------------------------------------------------------------------

    def _gone(self) -> OrchError:
        done = self._channel.wait(self._timeouts.dead)
        tail = done.stderr.decode("utf-8", "replace").strip()[-300:]
        return ConnectionLost(
            f"{self._host.name}: the agent ended without an answer (exit {done.exit}) {tail!r}", host=self._host.name
        )

    def _no_agent(self) -> OrchError:
        done = self._channel.wait(self._timeouts.dead)
        said = (bytes(self._buffer[-600:]) + b"\n" + done.stderr[-600:]).decode("utf-8", "replace")
        return RemotePythonError(**why_no_agent(self._host, done.exit, said))


def why_no_agent(host: Host, status: int, said: str) -> dict[str, str]:
    """Message and hint for a host on which the agent did not start, from its exit status and what the shell said."""
    lowered = said.lower()
    if "orch-old-python" in said:
        version = said.split("orch-old-python", 1)[1].split()[0]
        message = f"{host.name}: {host.python} is python {version}; 3.8 or later is needed"
        hint = f"name a newer one as `python:` of host {host.name} in hosts.yaml"
    elif "not available" in lowered or "nologin" in lowered:
        message = f"{host.name}: this user may not run commands there (its login shell is nologin)"
        hint = _to_try(host, "true")
    elif "shared librar" not in lowered and (status == 127 or any(word in lowered for word in NOT_THERE)):
        message = f"{host.name}: no {host.python} there"
        hint = f"name one as `python:` of host {host.name} in hosts.yaml; {_to_try(host, f'{host.python} --version')}"
    else:
        message = f"{host.name}: {host.python} did not start the agent (exit {status}): {said.strip()[-200:]!r}"
        hint = _to_try(host, f"{host.python} --version")
    return {"message": message, "hint": hint, "host": host.name}


def _to_try(host: Host, command: str) -> str:
    """What to type to see it for oneself; of a host that is this machine, without ssh."""
    return f"try: {command}" if host.transport == "local" else f"try: ssh {host.ssh} {command}"


def ask(
    connection: Connection,
    host: Host,
    question: str,
    args: Mapping[str, Any],
    *,
    role: Role,
    timeouts: Timeouts,
    pieces: Iterable[bytes] | None = None,
    on_progress: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Put one question and return its answer; `pieces` are sent as a stream behind it."""
    with Conversation(connection, host, question, args, role=role, timeouts=timeouts) as conversation:
        if pieces is not None and all(conversation.send(piece) for piece in pieces):
            conversation.finish_sending()
        return conversation.result(on_progress, within=timeouts.question)
