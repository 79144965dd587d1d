"""The evaluation host's side of `orch watch`: one evaluation after the other, in the order of steps."""

from __future__ import annotations

import time
from dataclasses import replace

from orchestrator import config
from orchestrator.actions import retention, runs, watched
from orchestrator.actions.runs import Reading
from orchestrator.actions.watched import Watched
from orchestrator.answers import Json
from orchestrator.errors import (
    ConfigError,
    EvaluationFailed,
    HostKeyError,
    HostUnreachable,
    NothingToEvaluate,
    OrchError,
    Refused,
)
from orchestrator.keeping import state_folder
from orchestrator.model import Run
from orchestrator.workflows import reading
from orchestrator.workflows.acting import launch, plan_for, sync
from orchestrator.workflows.collecting import collect
from orchestrator.workflows.scene import Scene, observe
from orchestrator.workflows.sync_harness import NoConsent
from orchestrator.workflows.watch_scene import Event, Kind, Watch


class Evaluating:
    """Launches what lies ready, follows it, brings it home. Every step looks first, so each may be cut anywhere."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._scene = watch.scene
        self._place: Json | None = None
        """where the log of the run that is followed was last read"""
        self._blocked_until = 0.0
        self._refusal = ""

    def busy(self) -> bool:
        """Whether there is anything to do on the evaluation host now."""
        if self._watch.memory.items("running"):
            return True
        return bool(self._watch.memory.items("staged")) and time.monotonic() >= self._blocked_until

    def advance(self, within: float) -> None:
        """One step: start the next one, or follow the one that runs to its end, or for `within` seconds.

        Raises what reaching the host raises.
        """
        if running := self._watch.memory.items("running"):
            self._follow(running[0], within)
        elif self.busy():
            self._start(self._watch.memory.items("staged")[0])

    def _start(self, item: Watched) -> None:
        try:
            self._launch(item)
        except (Refused, ConfigError) as error:
            self._postpone(item, error.message, error.hint)
        except (HostUnreachable, HostKeyError):
            raise
        except OrchError as error:  # it did not start
            again = item.failures < self._scene.job.retries
            self._failed(item, None, f"could not be started: {error.message}", again=again)

    def _postpone(self, item: Watched, why: str, hint: str = "") -> None:
        """Say once why it can't be evaluated yet; it is tried again after a while."""
        self._blocked_until = time.monotonic() + self._scene.inventory.timeouts.watch
        if why != self._refusal:
            self._refusal = why
            text = f"step {item.step} can't be evaluated yet: {why}"
            self._tell("refused", item, f"{text}. {hint}" if hint else text)

    def _launch(self, item: Watched) -> None:
        first, memory = self._watch.scene, self._watch.memory
        options, connections = replace(first.options, step=item.step), self._watch.connections
        scene = self._scene = observe(first.inventory, options, connections, without_training=True)
        identity = item.checkpoint.identity
        if (begun := _begun(scene, identity)) is not None:
            memory.put(item, state="running", run=begun.id)
            self._tell("launched", item, f"step {item.step}: run {begun.id} is {begun.state} already", begun)
            return
        if identity not in scene.facts.staged:
            memory.put(item, state="seen")  # somebody cleaned it away: shipped again, while it is still there
            return
        plan, _ = plan_for(scene, item.checkpoint, NoConsent(), connections)
        if plan.refused:
            raise Refused("; ".join(refusal.reason for refusal in plan.refused), hint=plan.refused[0].hint)
        env, secrets = config.resolve_env(scene.job)
        if plan.action("sync"):
            sync(scene, connections, lambda text: self._tell("warning", item, text))
        windows = [dict(one) for one in item.windows] or [scene.window()]
        run = launch(scene, item.checkpoint, windows, env, secrets, connections)
        memory.put(item, state="running", run=run.id, windows=())  # the run's own spec holds them now
        self._place, self._refusal = None, ""
        self._tell("launched", item, f"step {item.step}: run {run.id} on {scene.evaluate.name}", run)

    def _follow(self, item: Watched, within: float) -> None:
        def looked(look: Json) -> None:
            self._place = look["place"]

        host, timeouts = self._scene.evaluate, self._scene.inventory.timeouts
        connection = self._watch.connections.to(host)
        try:
            run = runs.follow(connection, host, item.run, Reading(place=self._place, within=within), timeouts, looked)
        except NothingToEvaluate as error:  # its folder has been removed
            self._watch.memory.put(item, state="staged", run="")
            self._tell("warning", item, f"step {item.step}: {error.message}")
            return
        if not run.goes_on:
            self._end(item, run)

    def _end(self, item: Watched, run: Run) -> None:
        """Bring it home, tell of it, and only then note that: one that is killed here tells it a second time."""
        try:
            result = collect(self._scene, run, self._watch.connections)
        except EvaluationFailed as error:
            self._failed(item, run, f"{error.message}. {error.hint}", again=False)
            return
        if run.state == "refused":  # in the queue, for what would have refused its launch
            item = self._watch.memory.put(item, state="staged", run="")
            self._postpone(item, run.reason)
            return
        if result is None:
            again = run.state in ("failed", "lost") and item.failures < self._scene.job.retries
            self._failed(item, run, f"run {run.id} {_how_it_ended(run)}", again=again)
            return
        event = Event(
            kind="result", text=f"step {item.step}", step=item.step, checkpoint=item.checkpoint, run=run, result=result
        )
        self._watch.tell(event)
        if lacks := reading.doubt(result):
            self._tell("warning", item, f"step {item.step}: {lacks}", run)
        self._watch.memory.put(item, state="evaluated")
        self._make_room()

    def _failed(self, item: Watched, run: Run | None, why: str, *, again: bool) -> None:
        text = f"step {item.step}: {why}{'; trying it again' if again else ''}"
        self._tell("retry" if again else "failed", item, text, run)
        changes = {"state": "staged", "run": ""} if again else {"state": "failed"}
        self._watch.memory.put(item, failures=item.failures + 1, **changes)
        if not again:
            self._make_room()

    def _make_room(self) -> None:
        """Remove what `keep_staged` lets go: of what this watch is done with, and nobody here has still to evaluate."""
        host, connections = self._scene.evaluate, self._watch.connections
        if host.keep_staged is None:
            return
        done = self._watch.memory.items("evaluated", "failed")
        mine = {one.checkpoint.identity: one.step for one in done if one.run or one.failures}  # evaluated by a watch
        try:
            waiting = watched.waiting(state_folder())
            may_go = [identity for identity in mine if identity not in waiting]
            timeouts = self._scene.inventory.timeouts
            rows = retention.clean(connections.to(host), host, host.keep_staged, timeouts, among=may_go)
        except (HostUnreachable, HostKeyError):
            raise  # what was left goes after the next evaluation
        except OrchError as error:
            self._watch.tell(Event(kind="warning", text=f"nothing was removed on {host.name}: {error.message}"))
            return
        if gone := sorted(mine[row.identity] for row in rows if row.removed):
            steps = ", ".join(map(str, gone))
            text = f"step {steps} removed from {host.name}, which keeps {host.keep_staged} (keep_staged)"
            self._watch.tell(Event(kind="cleaned", text=text, host=host.name))

    def _tell(self, kind: Kind, item: Watched, text: str, run: Run | None = None) -> None:
        self._watch.tell(Event(kind=kind, text=text, step=item.step, checkpoint=item.checkpoint, run=run))


def _begun(scene: Scene, identity: str) -> Run | None:
    """A run of this job on this checkpoint that lives or has succeeded, whoever started it."""
    wanted = (scene.run.name, scene.job.name, identity)
    mine = [row for row in reversed(scene.facts.runs) if (row.run, row.job, row.checkpoint) == wanted]
    living = next((row for row in mine if row.goes_on), None)
    return living or next((row for row in mine if row.state == "succeeded"), None)


def _how_it_ended(run: Run) -> str:
    return f"{run.state}: {run.how_it_ended} (its log is in {run.folder} on {run.host})"
