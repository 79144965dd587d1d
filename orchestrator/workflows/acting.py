"""What eval-latest and watch do about one checkpoint: plan, sync, ship, launch. Each step looks before it acts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from orchestrator import plan as planning
from orchestrator import taken
from orchestrator.actions import harness, launched, runs, staging
from orchestrator.actions.harness_diff import FileDiff
from orchestrator.actions.observation import RunFacts
from orchestrator.keeping import state_folder
from orchestrator.model import Checkpoint, Plan, Route, Run
from orchestrator.ssh.choose import Connections
from orchestrator.workflows import witnessing
from orchestrator.workflows.scene import Scene, missing, server_place
from orchestrator.workflows.sync_harness import Consent, differences


def plan_for(
    scene: Scene, checkpoint: Checkpoint, consent: Consent, connections: Connections
) -> tuple[Plan, tuple[FileDiff, ...]]:
    """The plan, and the harness' difference for showing."""
    key = planning.run_key(scene.digests(checkpoint.identity))
    side = planning.EvalSide(
        host=scene.evaluate,
        staged=checkpoint.identity in scene.facts.staged,
        arriving=scene.facts.arriving.get(checkpoint.identity, 0),
        same_run=next((row for row in reversed(scene.facts.runs) if row.key == key), None),
        disk_free=int(scene.box["disk"]["free"]),
        memory_available=int(scene.box["memory"]["available"]),
        memory_reserve=int(scene.box["memory"]["total"]) // 10 if scene.beside else 0,
        missing=missing(scene),
        trains=scene.beside is not None,
        unseen=tuple(scene.beside["unseen"]) if scene.beside else (),
        server=server_place(scene),
    )
    plan = planning.make_plan(
        checkpoint=checkpoint,
        drift=scene.drift,
        side=side,
        job=scene.job,
        allow_on_training_host=scene.options.allow_on_training_host,
        consent_possible=consent.possible,
        routes=() if side.staged else routes_for(scene, connections),
    )
    if not plan.action("sync"):
        return plan, ()
    connection = connections.to(scene.evaluate)
    return plan, differences(connection, scene.evaluate, scene.job, scene.drift, scene.inventory)


def sync(scene: Scene, connections: Connections, warn: Callable[[str], None]) -> None:
    """Make the harness on the evaluation host equal to the local one."""
    limits = scene.inventory.timeouts
    pushed = harness.push(connections.to(scene.evaluate), scene.evaluate, scene.job, scene.drift, limits)
    if pushed.saved:
        warn(f"{scene.evaluate.name}: the files that were replaced there are saved in {pushed.saved}")
    taken.forget(scene.job, scene.evaluate)


def routes_for(scene: Scene, connections: Connections) -> tuple[Route, ...]:
    """The ways that a shipment may take, the best first. Raises Refused where the one that is asked for isn't there."""
    transfer = scene.run.transfer or scene.inventory.transfer
    source, target = _ends(scene, connections)
    return staging.choose(source, target, transfer, scene.inventory.timeouts, scene.run.limit_rate)


def ship(
    scene: Scene,
    checkpoint: Checkpoint,
    training: RunFacts,
    routes: Sequence[Route],
    connections: Connections,
    on_bytes: Callable[[int, int], None],
    warn: Callable[[str], None],
) -> dict[str, Any]:
    """Bring a checkpoint to the evaluation host, slower where the training, as it was seen last, would feel it.

    Returns the sender's account.
    """
    return staging.ship(
        checkpoint,
        scene.job,
        *_ends(scene, connections),
        scene.inventory.timeouts,
        on_bytes,
        warn,
        choice=routes,
        layout=scene.run.layout,
        limit_rate=scene.run.limit_rate,
        training=training.neighbour,
    )


def _ends(scene: Scene, connections: Connections) -> tuple[staging.End, staging.End]:
    """Where a shipment begins and where it ends."""
    source = staging.End(connection=connections.to(scene.train), host=scene.train, role="train")
    return source, staging.End(connection=connections.to(scene.evaluate), host=scene.evaluate, role="eval")


def launch(
    scene: Scene,
    checkpoint: Checkpoint,
    windows: list[dict[str, Any]],
    env: Mapping[str, str],
    secrets: Mapping[str, str],
    connections: Connections,
) -> Run:
    """Start the evaluation of a checkpoint that lies on the evaluation host, or find it started."""
    digests, state = scene.digests(checkpoint.identity), state_folder()
    run = runs.launch(
        connections.to(scene.evaluate),
        scene.evaluate,
        scene.job,
        key=planning.run_key(digests),
        training_run=scene.run.name,
        step=checkpoint.step,
        digests=digests,
        harness=scene.ours,
        env=env,
        secrets=secrets,
        windows=[*windows, *witnessing.beside_evaluation(scene)],
        beside=scene.beside,
        trains=scene.trains,
        origin=scene.origin,
        source=scene.training.source,
        timeouts=scene.inventory.timeouts,
        again=scene.options.again,
        taken=launched.ids(state, scene.evaluate.name),
    )
    launched.remember(state, run)
    return run
