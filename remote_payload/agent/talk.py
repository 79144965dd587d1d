"""The agent's side of the conversation: frames in and out, the heartbeat that it lives on, and its children."""

import os
import queue
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, BinaryIO, Callable, Dict, Iterator, List, Optional, Tuple, Union

from remote_payload.agent import wire

if TYPE_CHECKING:
    import subprocess

ENDED_BY_SILENCE = 71
"""exit status when the controller was not heard for `dead` seconds, or closed stdin"""


class Talk:
    """What a question function gets beside its arguments.

    Three threads stand beside the question: one reads frames, one sends heartbeats, one watches for silence.
    """

    def __init__(self, stdin: BinaryIO, out: BinaryIO, *, beat: float, dead: float, bundle: str) -> None:
        self.bundle = bundle
        """Python source that makes the agent's modules importable when executed with __name__ == "agent" """
        self._stdin = stdin
        self._out = out
        self._beat = beat
        self._dead = dead
        self._write_lock = threading.Lock()
        self._frames: "queue.Queue[Tuple[bytes, bytes]]" = queue.Queue(maxsize=16)
        self._heard = time.monotonic()
        self._storing = False
        self._children: "List[subprocess.Popen[Any]]" = []
        self._last_acts: List[Callable[[], None]] = []

    def start(self) -> None:
        """Begin to read, beat and watch."""
        for work in (self._read, self._send_beats, self._watch):
            threading.Thread(target=work, daemon=True).start()

    # -- what questions use -------------------------------------------------------------------------------------

    def progress(self, message: Dict[str, Any]) -> None:
        """Tell the controller something before the answer."""
        self._write(wire.encode_json({"progress": message}))

    def send(self, data: Union[bytes, memoryview]) -> None:
        """A piece of a stream, at most wire.MAX_PAYLOAD. Blocks while the controller does not take it."""
        self._write(wire.encode(wire.DATA, data))

    def received(self) -> Iterator[bytes]:
        """The pieces of the incoming stream, until its end."""
        while True:
            kind, payload = self._frames.get()
            if kind == wire.END:
                return
            if kind != wire.DATA:
                raise wire.WireError("expected a piece of a stream, got %r" % kind)
            yield payload

    def message(self) -> Dict[str, Any]:
        """The controller's next message."""
        kind, payload = self._frames.get()
        if kind != wire.JSON:
            raise wire.WireError("expected a message, got %r" % kind)
        return wire.decode_json(payload)

    def spawn(self, argv: List[str], **options: Any) -> "subprocess.Popen[Any]":
        """A child process that ends with the agent."""
        import subprocess

        child = subprocess.Popen(argv, **options)
        self._children.append(child)
        return child

    def at_end(self, act: Callable[[], None]) -> None:
        """Have this done before the agent ends, also where it ends by itself because nobody is heard any more."""
        self._last_acts.append(act)

    def finish(self, message: Dict[str, Any]) -> None:
        """Send the last message and exit 0, ending what was spawned."""
        self._write(wire.encode_json(message))
        self._end(0)

    # -- threads ------------------------------------------------------------------------------------------------

    def _write(self, frame: bytes) -> None:
        view = memoryview(frame)
        try:
            with self._write_lock:
                while view:
                    view = view[self._out.write(view) or 0 :]
        except OSError:
            self._end(ENDED_BY_SILENCE)

    def _read(self) -> None:
        while True:
            frame = self._next_frame()
            if frame is None:
                self._end(ENDED_BY_SILENCE)
                return
            self._heard = time.monotonic()
            if frame[0] != wire.BEAT:
                self._storing = True  # a full queue keeps us from hearing beats: that is no silence
                self._frames.put(frame)
                self._heard = time.monotonic()
                self._storing = False

    def _next_frame(self) -> Optional[Tuple[bytes, bytes]]:
        try:
            return wire.read_frame(self._some)
        except (wire.WireError, OSError, ValueError):
            return None

    def _some(self, size: int) -> bytes:
        """A part of a frame: on a slow line a whole one may take longer than the silence that counts as an end."""
        data: bytes = self._stdin.read1(size)  # type: ignore[attr-defined]
        self._heard = time.monotonic()
        return data

    def _send_beats(self) -> None:
        while True:
            time.sleep(self._beat)
            self._write(wire.encode(wire.BEAT))

    def _watch(self) -> None:
        """Counts silence by its own looks: when one comes late, for others had the cores, the reader waited too."""
        pause = min(1.0, self._dead / 4)
        silent, heard, looked = 0.0, self._heard, time.monotonic()
        while silent <= self._dead:
            time.sleep(pause)
            since, looked = looked, time.monotonic()
            if self._storing or self._heard != heard:
                silent, heard = 0.0, self._heard
            else:
                silent += min(looked - since, 2 * pause)
        self._end(ENDED_BY_SILENCE)

    def _end(self, status: int) -> None:
        for child in self._children:
            if child.poll() is None:
                child.kill()
        while self._last_acts:
            try:
                self._last_acts.pop()()
            except Exception as error:  # the end comes all the same
                print("at the end: %s" % error, file=sys.stderr)
        os._exit(status)
