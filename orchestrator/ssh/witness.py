"""Hearing the samples of a training while something else is done: the pump of a watching agent's messages."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from orchestrator import windows
from orchestrator.errors import AuthenticationFailed, HostUnreachable, OrchError
from orchestrator.ssh.agent import Conversation

PATIENCE = 30.0
"""seconds for the last sample, once it was asked for"""
LONGEST_PAUSE = 30.0
"""seconds between two attempts to take up a lost connection again"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A stretch in which nobody watched. Times are of the samples around it, by the box's own clock; "?" for none."""

    since: str
    until: str
    why: str


class Witness:
    """A thread keeps the samples that a host's agent takes, from now until `dismiss`.

    Losing contact is no failure of what is done meanwhile: it becomes a gap. `again` opens a conversation after that,
    or is None: then nobody watches from there on. A host that never told a sample is given up at once.
    """

    def __init__(
        self, start: Callable[[], Conversation], again: Callable[[], Conversation] | None = None, pause: float = 1.0
    ) -> None:
        self.samples: list[dict[str, Any]] = []
        self.widest = 0.0
        """seconds between two samples, at most"""
        self.gaps: list[Gap] = []
        self.saw_the_end = False
        """whether the last of `samples` was taken after `dismiss`"""
        self.failure: OrchError | None = None
        """why nobody watches any more, or did so late"""
        self._start, self._again, self._pause = start, again, pause
        self._seen, self._over = threading.Event(), threading.Event()
        self._conversation: Conversation | None = None
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def wait_for_first(self, seconds: float) -> bool:
        """Whether there is a sample by then; False as soon as it is known that there will be none."""
        self._seen.wait(seconds)
        return bool(self.samples)

    def dismiss(self) -> None:
        """Ask for the last sample, and stop watching. Never raises: what is not heard becomes a gap."""
        self._over.set()
        if (conversation := self._conversation) is not None:
            try:
                conversation.tell({"stop": True})
            except OrchError:
                pass  # the thread meets the same loss, and notes it
        self._thread.join(PATIENCE)
        if self._thread.is_alive():
            self._note("the last sample did not come")

    def _watch(self) -> None:
        start, attempt = self._start, 0
        while True:
            heard = len(self.samples)
            try:
                self._hear(start)
                return
            except (OrchError, RuntimeError, OSError, ValueError) as error:
                self.failure = error if isinstance(error, OrchError) else OrchError(f"{type(error).__name__}: {error}")
                self._note(self.failure.message)
            attempt = 0 if len(self.samples) > heard else attempt + 1
            final = self._again is None or not self.samples or not isinstance(self.failure, HostUnreachable)
            final = final or isinstance(self.failure, AuthenticationFailed)  # again would lock the user out
            if final or self._over.wait(min(self._pause * 2.0**attempt, LONGEST_PAUSE)):
                self._seen.set()
                return
            assert self._again is not None
            start = self._again

    def _hear(self, start: Callable[[], Conversation]) -> None:
        with start() as conversation:
            self._conversation = conversation
            try:
                if self._over.is_set():
                    conversation.tell({"stop": True})
                for event in conversation.events():
                    if isinstance(event, dict) and "sample" in event:
                        self._keep(event["sample"])
                self._keep(conversation.answer["sample"])
                self.saw_the_end = True
            finally:
                self._conversation = None

    def _keep(self, sample: dict[str, Any]) -> None:
        if self.gaps and self.gaps[-1].until == "?":
            last = self.gaps[-1]
            self.gaps[-1] = Gap(since=last.since, until=str(sample.get("at") or "?"), why=last.why)
        if self.samples:
            self.widest = max(self.widest, windows.elapsed(self.samples[-1], sample) or 0.0)
        if len(self.samples) > 2 * windows.MOST_SAMPLES:
            self.samples[1:] = windows.thinned(self.samples[1:])
        self.samples.append(sample)
        self._seen.set()

    def _note(self, why: str) -> None:
        if self.gaps and self.gaps[-1].until == "?":
            return
        since = str(self.samples[-1].get("at") or "?") if self.samples else "?"
        self.gaps.append(Gap(since=since, until="?", why=why))
