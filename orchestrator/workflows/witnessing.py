"""Watching training while eval-latest ships from its box, or evaluates on it."""

from __future__ import annotations

from functools import partial
from typing import Any

from orchestrator.actions import training
from orchestrator.ssh.choose import Connections
from orchestrator.ssh.witness import Witness
from orchestrator.workflows.collecting import look_again
from orchestrator.workflows.scene import Scene


def begin(scene: Scene, connections: Connections) -> Witness | None:
    """Watch from now on; there is a first sample on return. None where the inventory names no process.

    A training that can't be watched keeps nobody from shipping: the receipt will say so.
    """
    if scene.run.process is None:
        return None
    reach = partial(connections.to, scene.train)
    witness = training.watch(reach, scene.train, scene.run, scene.inventory.timeouts)
    witness.wait_for_first(scene.inventory.timeouts.dead)
    return witness


def end(witness: Witness | None, scene: Scene, connections: Connections) -> dict[str, Any]:
    """The window that ends now. Where the witness lost contact, another look tells how it ended."""
    if witness is None:
        return training.window("ship", scene.train.name, None, None)
    witness.dismiss()
    after = None if witness.saw_the_end else look_again(scene, connections, "observe")["after"]
    return training.watched("ship", scene.train.name, witness, after)


def beside_evaluation(scene: Scene) -> list[dict[str, Any]]:
    """The windows of an evaluation that is about to begin on a host that trains; collecting closes them."""
    opened = []
    for name, facts in scene.neighbours.items():
        before = training.observed("evaluate", scene.evaluate.name, facts)["after"]
        if before is not None and before.get("identity"):
            host = scene.named_there(name)
            opened.append({**training.window("evaluate", host, before, None), "run": name, "to": None})
    return opened
