"""The same question to many hosts at once. One dead host is a row, not a crash."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from orchestrator.errors import HostUnreachable, OrchError

AT_ONCE = 32
"""hosts asked at the same time; about what a laptop's cores can encrypt"""


class Named(Protocol):
    """A host, or what is wanted of one."""

    @property
    def name(self) -> str: ...


H = TypeVar("H", bound=Named)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Outcome(Generic[H, T]):
    """What came of asking one host: exactly one of `value` and `error` is set (unless the question answers None)."""

    host: H
    value: T | None = None
    error: OrchError | None = None


def on_each(hosts: Sequence[H], question: Callable[[H], T], *, limit: int = AT_ONCE) -> list[Outcome[H, T]]:
    """Ask all hosts at once and return their outcomes in order.

    An OrchError or a TimeoutError becomes its host's row; anything else is a bug and is raised as soon as it is seen.
    On Ctrl-C nobody waits for hosts that don't answer: the threads are daemons.
    """
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[int, Outcome[H, T] | BaseException]] = queue.SimpleQueue()
    for index in range(len(hosts)):
        waiting.put(index)

    def work() -> None:
        while True:
            try:
                index = waiting.get_nowait()
            except queue.Empty:
                return
            done.put((index, _ask(hosts[index], question)))

    for _ in range(min(limit, len(hosts))):
        threading.Thread(target=work, daemon=True).start()
    outcomes: dict[int, Outcome[H, T]] = {}
    while len(outcomes) < len(hosts):
        index, outcome = done.get()
        if isinstance(outcome, BaseException):
            raise outcome
        outcomes[index] = outcome
    return [outcomes[index] for index in range(len(hosts))]


def _ask(host: H, question: Callable[[H], T]) -> Outcome[H, T] | BaseException:
    try:
        return Outcome(host, value=question(host))
    except OrchError as error:
        return Outcome(host, error=error)
    except TimeoutError as error:
        return Outcome(host, error=HostUnreachable(f"{host.name}: {error or 'no answer in time'}", host=host.name))
    except BaseException as bug:
        return bug
