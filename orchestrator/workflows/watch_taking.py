"""The training box's side of `orch watch`: what is new there, what went away, and shipping it before rotation does."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator import windows
from orchestrator.actions import checkpoints, retention, torn, training
from orchestrator.actions.ledger import Ledger
from orchestrator.actions.observation import RunFacts
from orchestrator.actions.watched import Watched
from orchestrator.answers import Json
from orchestrator.errors import HostKeyError, HostUnreachable, OrchError, Refused, TornCheckpoint
from orchestrator.keeping import state_folder
from orchestrator.model import Candidate, Checkpoint, Scan
from orchestrator.workflows import witnessing
from orchestrator.workflows.acting import routes_for, ship
from orchestrator.workflows.look import Look, look_at
from orchestrator.workflows.watch_scene import Event, Kind, Watch

FAR = 100_000
"""steps that are looked through for those: a folder's number may be anything"""
MISSED = 100
"""steps that one event names at most, of those that came and went unseen"""


WINDOWS = 8
"""of a checkpoint's receipt that are kept, the newest ones: a shipment that is tried for hours has many"""


class Taking:
    """Looks at the training box, one exec a look, and takes what is new."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._there: dict[str, Checkpoint] = {}
        """path -> what lay there, complete, at the last look"""
        self._stamps: dict[str, str] = {}
        self._told: set[str] = set()
        self._training: str | None = None
        self.quiet_looks = 0
        """looks in a row that found no training process"""

    def look(self) -> RunFacts:
        """One look: what is complete, what is gone, how training stands. Raises what reaching the box raises."""
        scene = self._watch.scene
        look = Look(host=scene.train, runs=(scene.run,), job=scene.job, known=self._stamps, sample=True, gpus=False)
        outcome = look_at([look], self._watch.connections, scene.inventory.timeouts)[0]
        if outcome.value is None:
            raise outcome.error or AssertionError("an outcome without value has an error")
        facts = outcome.value.runs[scene.run.name]
        self._note_training(facts.process)
        for error in facts.errors:
            self._tell_once("warning", error)
        if facts.scan is not None:
            self._note(facts.scan)
        return facts

    def ship(self, item: Watched, facts: RunFacts) -> RunFacts:
        """Bring a checkpoint to the evaluation host; returns a look from after that (`facts`, where nothing came).

        What can't be taken now is tried again after the next look, for as long as it is there.
        """
        scene, memory = self._watch.scene, self._watch.memory
        witness = witnessing.begin(scene, self._watch.connections)
        problem = None
        try:
            self._bring(item.checkpoint, facts)
        except OrchError as error:
            problem = error
        finally:
            shipped = witnessing.end(witness, scene, self._watch.connections)
        observed = training.observed("observe", scene.train.name, facts)
        item = memory.put(item, windows=(*item.windows, observed, shipped)[-WINDOWS:])
        if problem is not None:
            self._not_shipped(item, problem)
            return facts
        item = memory.put(item, state="staged")
        self._tell("staged", f"step {item.step} lies on {scene.evaluate.name}", item.checkpoint)
        return self.look()

    def _not_shipped(self, item: Watched, problem: OrchError) -> None:
        """Raises what reaching a box raised; all else is said once."""
        if isinstance(problem, HostUnreachable | HostKeyError):
            raise problem
        if isinstance(problem, TornCheckpoint):
            torn.remember(state_folder(), item.checkpoint, problem.message)
            self._watch.memory.put(item, state="torn")
            self._there.pop(item.checkpoint.path, None)
            self._stamps.pop(item.checkpoint.path, None)
            self._told.add(f"torn {item.checkpoint.path}")
            text = f"step {item.step} ({item.checkpoint.path}) is {problem.message}"
            self._tell("torn", text, item.checkpoint)
            return
        kind: Kind = "refused" if isinstance(problem, Refused) else "warning"
        self._tell_once(kind, f"step {item.step} was not shipped yet: {problem.message}. {problem.hint}")

    def _bring(self, checkpoint: Checkpoint, facts: RunFacts) -> None:
        scene, connections = self._watch.scene, self._watch.connections
        ship(
            scene,
            checkpoint,
            facts,
            routes_for(scene, connections),
            connections,
            lambda done, total: None,
            lambda trouble: self._tell_once("warning", trouble),
        )

    # -- what a look shows --------------------------------------------------------------------------------------

    def _note_training(self, process: Json | None) -> None:
        state = (process or {}).get("state")
        self.quiet_looks = self.quiet_looks + 1 if state in windows.GONE else 0
        if state is not None and state != self._training:
            self._training = state
            pid = f" (pid {process['pid']})" if process and process.get("pid") else ""
            self._tell("training", f"the training process is {state}{pid}")

    def _note(self, scan: Scan) -> None:
        memory = self._watch.memory
        rows = {row.path: row for row in scan.candidates}
        complete = [row for row in scan.candidates if row.state == "complete" and row.stamp]
        found = {row.path: row.checkpoint or self._there.get(row.path) for row in complete}
        self._there = {path: checkpoint for path, checkpoint in found.items() if checkpoint is not None}
        self._stamps = {path: rows[path].stamp for path in self._there}
        if memory.new:
            memory.begin(frozenset(checkpoint.identity for checkpoint in self._there.values()))
        self._told -= {f"torn {path}" for path in self._there}
        for row in rows.values():
            if row.state == "torn":
                self._tell_once("torn", f"{row.path} is torn: {row.reason}", key=f"torn {row.path}")
        self._note_gone(rows)
        self._note_missed(scan)
        self._take_new()

    def _take_new(self) -> None:
        memory, wanted = self._watch.memory, self._watch.wanted
        there = sorted(self._there.values(), key=lambda checkpoint: checkpoint.step)
        new = [one for one in there if not memory.knows(one) and wanted.takes(one.step)]
        new = [one for one in new if wanted.backfill or one.identity not in memory.before]
        evaluated = self._evaluated() if new else frozenset()
        for one in new:
            if one.identity in evaluated:
                memory.put(Watched(checkpoint=one, state="evaluated"))
                self._tell("already", f"step {one.step} was evaluated before", one)
            elif not memory.knows(one):  # two paths may hold the same
                memory.put(Watched(checkpoint=one, state="seen"))
                self._tell("found", f"step {one.step} is complete: {one.path}", one)
        if there:
            memory.reached(there[-1].step)

    def _evaluated(self) -> frozenset[str]:
        """Checkpoints that the ledger has a result of, by this job."""
        scene = self._watch.scene
        with Ledger.at_home() as ledger:
            known = ledger.entries(scene.run.name, scene.origin, scene.job.name)
        return frozenset(one.digests.checkpoint for one in known)

    def _note_gone(self, rows: Mapping[str, Candidate]) -> None:
        """Those that were seen complete, are not shipped, and no longer there. Raises what reaching a box raises."""
        lost = [item for item in self._watch.memory.items("seen") if self._is_gone(item, rows)]
        if not lost:
            return
        scene = self._watch.scene
        connection = self._watch.connections.to(scene.evaluate)
        kept = retention.staged(connection, scene.evaluate, scene.inventory.timeouts)
        arrived = {one.identity for one in kept if one.whole}  # by a watch that was killed before it could note that
        for item in lost:
            if item.checkpoint.identity in arrived:
                self._watch.memory.put(item, state="staged")
                continue
            how = "written anew" if item.checkpoint.path in rows else "removed"
            self._watch.memory.put(item, state="gone")
            self._tell("gone", f"step {item.step} was {how} before it could be taken", item.checkpoint)

    def _is_gone(self, item: Watched, rows: Mapping[str, Candidate]) -> bool:
        row, now = rows.get(item.checkpoint.path), self._there.get(item.checkpoint.path)
        if row is not None and row.state == "ignored":
            return False  # it can't be read at the moment
        return now is None or now.identity != item.checkpoint.identity

    def _note_missed(self, scan: Scan) -> None:
        """Steps that must have come and gone since the last look, going by their usual distance.

        Rotation removes the oldest: so only where nothing up to the newest known step is left there.
        """
        newest, gap = self._watch.memory.newest, checkpoints.spacing(scan)
        steps = [row.step for row in scan.candidates if row.step is not None]
        if newest is None or gap is None or not steps or min(steps) <= newest:
            return
        between = range(newest + gap, min(steps), gap)[-FAR:]
        missed = [step for step in between if self._watch.wanted.takes(step)]
        for step in missed[-MISSED:]:
            text = f"step {step} came and went while nobody looked, going by the usual distance of {gap} steps"
            self._watch.tell(Event(kind="gone", text=text, step=step))

    def _tell(self, kind: Kind, text: str, checkpoint: Checkpoint | None = None) -> None:
        step = checkpoint.step if checkpoint else None
        self._watch.tell(Event(kind=kind, text=text, step=step, checkpoint=checkpoint))

    def _tell_once(self, kind: Kind, text: str, *, key: str = "") -> None:
        if (key or text) not in self._told:
            self._told.add(key or text)
            self._tell(kind, text)
