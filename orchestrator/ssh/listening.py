"""Hearing one end of a shipment while the other one is heard too: the pump of a conversation's messages."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

from orchestrator.errors import OrchError
from orchestrator.ssh.agent import Conversation


class Listening:
    """A thread hears the agent out: what `wanted` names is kept for `expect`, other progress goes to `on_progress`."""

    def __init__(
        self, conversation: Conversation, wanted: frozenset[str], on_progress: Callable[[dict[str, Any]], None]
    ) -> None:
        self._conversation = conversation
        self._wanted = wanted
        self._on_progress = on_progress
        self._said: queue.SimpleQueue[dict[str, Any] | Exception] = queue.SimpleQueue()
        self._failure: Exception | None = None
        threading.Thread(target=self._hear, daemon=True).start()

    def expect(self, key: str) -> Any:
        """What the next message says under `key`; the answer counts as {"answer": ...}.

        None where the answer came instead. Raises what the agent reports, or ConnectionLost.
        """
        said = self._said.get()
        if isinstance(said, Exception):
            raise said
        return said.get(key)

    def check(self) -> None:
        """Raises what the agent reported, if it has."""
        if self._failure is not None:
            raise self._failure

    def _hear(self) -> None:
        try:
            for event in self._conversation.events():
                if not isinstance(event, dict):
                    continue
                if "received" in event:
                    self._on_progress(event)
                if self._wanted & event.keys():
                    self._said.put(event)
            self._said.put({"answer": self._conversation.answer})
        except (OrchError, RuntimeError, OSError, ValueError) as error:
            self._failure = error
            self._said.put(error)
