"""The story of `orch watch`: look at the training box now and then, take what is new, evaluate it, and again.

One loop, nothing in parallel here: evaluations run detached on their host, so shipping goes on beside them. What is
known of each checkpoint is written down after every step (actions/watched.py), so any end is followed by the same
command.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from orchestrator import config, receipts
from orchestrator import plan as planning
from orchestrator.actions import watched
from orchestrator.actions.ledger import Ledger, origin_of
from orchestrator.actions.observation import RunFacts
from orchestrator.actions.watched import PENDING, Memory
from orchestrator.errors import ConfigError, EvaluationFailed, OrchError, Refused, TrainingDisturbed
from orchestrator.keeping import state_folder
from orchestrator.model import Inventory, Receipt
from orchestrator.ssh.choose import Connections
from orchestrator.workflows.acting import sync
from orchestrator.workflows.preflight import refuse_what_does_not_fit
from orchestrator.workflows.scene import Options, Scene, missing, observe
from orchestrator.workflows.watch_evaluating import Evaluating
from orchestrator.workflows.watch_scene import Event, Links, Tell, Until, Wanted, Watch
from orchestrator.workflows.watch_taking import Taking

QUIET_LOOKS = 2
"""looks in a row without a training process, after which it counts as ended: one that is started anew is not"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchReport:
    """What a watch that came to its end has seen: how many, by kind of event, and what went wrong."""

    counts: dict[str, int]
    failed: tuple[int, ...]
    disturbed: tuple[str, ...]


def watch(inventory: Inventory, options: Options, wanted: Wanted, connections: Connections, tell: Tell) -> WatchReport:
    """Evaluate each new complete checkpoint of a run as it appears, until `wanted.until`; without it, for ever.

    Raises at the start what eval-latest raises: Refused (also where the run is watched already), HostUnreachable,
    ConfigError; later only AuthenticationFailed, HostKeyError and bugs.
    """
    run = config.choose_run(inventory, options.run)
    job = config.choose_job(inventory, run, options.job)
    if wanted.until == "training-ends" and run.process is None:
        raise ConfigError(f"run {run.name} names no process: its end can't be seen", hint="give it process: first")
    name = watched.name_of(run.name, job.name, origin_of(inventory.hosts[run.hosts[0]], run))
    with watched.held(state_folder(), name, f"run {run.name}"):
        scene = observe(inventory, options, connections)
        told = Told(tell, wanted.until)
        _prepare(scene, connections, lambda text: told.tell(Event(kind="warning", text=text)))
        memory = Memory.of(state_folder(), name)
        story = _Story(Watch(scene=scene, wanted=wanted, connections=connections, memory=memory, tell=told.tell))
        story.go_on_to_the_end()
    return WatchReport(counts=dict(told.counts), failed=tuple(told.failed), disturbed=tuple(told.disturbed))


def failure(report: WatchReport) -> OrchError | None:
    """The error that a whole watch amounts to, if any."""
    if report.failed:
        steps = ", ".join(map(str, report.failed))
        hint = "orch eval-latest RUN --step N tries one again"
        return EvaluationFailed(f"the evaluation of step {steps} failed", hint=hint)
    if report.disturbed:
        return TrainingDisturbed("; ".join(report.disturbed), hint="orch status shows how training stands")
    return None


class Told:
    """Passes events on, and keeps what the end of the watch is judged by."""

    def __init__(self, tell: Tell, until: Until) -> None:
        self._tell, self._until = tell, until
        self.counts: Counter[str] = Counter()
        self.failed: list[int] = []
        self.disturbed: list[str] = []

    def tell(self, event: Event) -> None:
        """Hear one event."""
        self.counts[event.kind] += 1
        if event.kind == "failed" and event.step is not None:
            self.failed.append(event.step)
        if event.result is not None and self._is_disturbed(event.result.receipt):
            self.disturbed.append("; ".join(event.result.receipt.reasons))
        self._tell(event)

    def _is_disturbed(self, receipt: Receipt) -> bool:
        """Training that is over soon after its last checkpoint was shipped is what `training-ends` waits for."""
        inside = any(receipts.receipt([one]).verdict == "changed" for one in receipt.windows)
        awaited = self._until == "training-ends" and not inside
        return receipt.verdict == "changed" and not awaited


def _prepare(scene: Scene, connections: Connections, warn: Callable[[str], None]) -> None:
    """Sync the harness, and raise what would stop every single evaluation, before anything is waited for."""
    reasons = list(missing(scene))
    if scene.drift.overwrites_unknown:
        reasons.append(planning.drift_refusal(scene.drift, scene.evaluate, scene.job))
    if scene.beside is not None and not scene.options.allow_on_training_host:
        reasons.insert(0, planning.beside_refusal(scene.evaluate, scene.beside["unseen"]))
    if reasons:
        text = "; ".join(refusal.reason for refusal in reasons)
        raise Refused(text, hint=reasons[0].hint, host=scene.evaluate.name)
    Ledger.at_home().close()  # where results can't be kept, evaluating had better not begin
    config.resolve_env(scene.job)
    if scene.drift.state != "in_sync":
        sync(scene, connections, warn)
    if scene.scan is not None and scene.scan.latest is not None:
        refuse_what_does_not_fit(scene, connections)


class _Story:
    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._interval = watch.scene.inventory.timeouts.watch
        self._train, self._evaluate = watch.scene.train, watch.scene.evaluate
        self._links = Links(watch.connections, self._interval, watch.tell)
        self._taking, self._evaluating = Taking(watch), Evaluating(watch)

    def go_on_to_the_end(self) -> None:
        self._say_what_begins()
        while True:
            facts = self._links.trying((self._train,), self._taking.look)
            due = time.monotonic() + (self._interval if facts else self._links.pause(self._train))
            if facts is not None:
                self._ship_what_is_new(facts)
            while not self._over() and (left := due - time.monotonic()) > 0:
                self._evaluate_or_wait(left)
            if self._over():
                return

    def _ship_what_is_new(self, facts: RunFacts) -> None:
        """Oldest first, for rotation takes the oldest; between two of them the evaluation host gets its next work."""
        both = (self._train, self._evaluate)
        tried: set[str] = set()
        while waiting := [i for i in self._watch.memory.items("seen") if i.checkpoint.identity not in tried]:
            item = waiting[0]
            tried.add(item.checkpoint.identity)
            facts = self._links.trying(both, partial(self._taking.ship, item, facts)) or facts
            if self._evaluating.busy():
                self._links.trying((self._evaluate,), lambda: self._evaluating.advance(0))

    def _evaluate_or_wait(self, left: float) -> None:
        if not self._evaluating.busy():
            time.sleep(left)
            return
        self._links.trying((self._evaluate,), lambda: self._evaluating.advance(left))
        if (pause := self._links.pause(self._evaluate)) > 0:
            time.sleep(min(left, pause))

    def _over(self) -> bool:
        until, memory = self._watch.wanted.until, self._watch.memory
        if until is None or memory.new or memory.items(*PENDING):
            return False
        if until == "training-ends":
            return self._taking.quiet_looks >= QUIET_LOOKS
        return memory.newest is not None and memory.newest >= until

    def _say_what_begins(self) -> None:
        scene, wanted, memory = self._watch.scene, self._watch.wanted, self._watch.memory
        which = (
            "each new checkpoint" if wanted.every == 1 else f"each new checkpoint of a step divisible by {wanted.every}"
        )
        waiting = [str(item.step) for item in memory.items(*PENDING)]
        went_on = f"; going on with step {', '.join(waiting)}" if waiting else ""
        text = (
            f"{which} of {scene.run.name} on {self._train.name}, by {scene.job.name} on {self._evaluate.name}{went_on}"
        )
        self._watch.tell(Event(kind="watching", text=text))
        for warning in scene.warnings:
            self._watch.tell(Event(kind="warning", text=warning))
