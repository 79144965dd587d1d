"""The ways of a shipment: lanes that carry chunks, and the queue that keeps them busy."""

import queue
import threading
from typing import Any, Dict, List, Optional, Sequence

from remote_payload.agent import chunks
from remote_payload.agent.wire import CHUNK as PIECE

WAITING = 2
"""chunks read ahead of the connections"""


class Lane:
    """One connection that carries chunks. `write` raises OSError when it is dead; `end` returns why it was, or ""."""

    def write(self, data: memoryview) -> None:
        raise NotImplementedError

    def end(self) -> str:
        raise NotImplementedError


class Relay(Lane):
    """The conversation itself: the controller passes on what it hears."""

    def __init__(self, talk: Any) -> None:
        self._talk = talk

    def write(self, data: memoryview) -> None:
        for at in range(0, len(data), PIECE):
            self._talk.send(data[at : at + PIECE])

    def end(self) -> str:
        return ""


class Way:
    """Several lanes fed from one queue, each by a thread of its own; a thread also hashes what it sends."""

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self._queue: "queue.Queue[Optional[Any]]" = queue.Queue(maxsize=WAITING)
        self._alive = len(lanes)
        self._lock = threading.Lock()
        self.digests: Dict[int, bytes] = {}
        """chunk number -> sha256 of what went out"""
        self.problems: List[str] = []
        self._threads = [threading.Thread(target=self._run, args=(lane,), daemon=True) for lane in lanes]
        for thread in self._threads:
            thread.start()

    def put(self, number: int, parts: Sequence[memoryview]) -> bool:
        """Hand over a chunk; blocks while all lanes are busy. False once every lane is dead."""
        return self._put((number, parts))

    def finish(self) -> List[str]:
        """Let the lanes send what they have and end. Returns why lanes died; what they carried may not have arrived."""
        for _ in self._threads:
            self._put(None)
        for thread in self._threads:
            thread.join()
        return self.problems

    def _put(self, item: Optional[Any]) -> bool:
        while True:
            try:
                self._queue.put(item, timeout=0.2)
                return True
            except queue.Full:
                if not self._alive:
                    return False

    def _run(self, lane: Lane) -> None:
        problem = ""
        while True:
            item = self._queue.get()
            if item is None:
                break
            number, parts = item
            try:
                before, behind = chunks.frame(number, parts)
                for part in (memoryview(before), *parts, memoryview(behind)):
                    lane.write(part)
                self.digests[number] = behind
            except OSError as error:
                problem = error.strerror or str(error)
                break
        said = lane.end()
        with self._lock:
            self._alive -= 1
            if problem or said:
                self.problems.append(said or problem)
