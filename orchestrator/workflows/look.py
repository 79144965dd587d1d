"""Look at several boxes at once: one exec a box and role, all at the same time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.actions import observation, torn
from orchestrator.actions.observation import HostFacts
from orchestrator.keeping import state_folder
from orchestrator.model import Harness, Host, Job, Timeouts, TrainingRun
from orchestrator.ssh.choose import Connections
from orchestrator.ssh.fleet import Outcome, on_each


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What is wanted of one box in one role."""

    host: Host
    runs: tuple[TrainingRun, ...] = ()
    """training runs on this host"""
    job: Job | None = None
    """the one to prepare for on an evaluation host; with `runs`, the one that will get the checkpoint"""
    local: Harness | None = None
    """with `job`: the local harness to hold the host's against"""
    digest: bool = False
    """with `job`: also digest its data and try its interpreter, as a plan needs it"""
    step: int | None = None
    """with `runs`: the only checkpoint wanted, instead of the latest"""
    known: Mapping[str, str] | None = None
    """with `runs`: look into every checkpoint but those that still have this stamp (path -> stamp)"""
    sample: bool = False
    """with `runs`: also take a receipt sample"""
    gpus: bool = True
    """also ask what its GPUs do"""
    tensors: bool = False
    """with `runs` and `job`: also list what the latest checkpoint holds"""

    @property
    def name(self) -> str:
        """For messages."""
        return self.host.name


def look_at(looks: Sequence[Look], connections: Connections, timeouts: Timeouts) -> list[Outcome[Look, HostFacts]]:
    """All answers, in order; a box that can't be reached is an outcome with an error."""
    known_torn = torn.known(state_folder())

    def one(look: Look) -> HostFacts:
        evaluation = None
        if look.job is not None and look.local is not None:
            evaluation = observation.eval_question(look.host, look.job, look.local, digest=look.digest)
        return observation.observe(
            connections.to(look.host),
            look.host,
            role="train" if look.runs else "eval",
            timeouts=timeouts,
            runs=look.runs,
            evaluation=evaluation,
            step=look.step,
            torn=known_torn,
            job=look.job,
            sample=look.sample,
            tensors=look.tensors,
            known=look.known,
            gpus=look.gpus,
        )

    return on_each(looks, one)
