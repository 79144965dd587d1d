"""The nouns. Frozen, in the domain's words, true once built: no half-filled values, no `None` for "not yet".

Bytes are integers, durations are seconds, times are ISO-8601 UTC strings. Paths on hosts are `str` in the host's own
notation: a host's path is never joined with a local one.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from orchestrator.measured import Difference as Difference
from orchestrator.measured import Digests as Digests
from orchestrator.measured import Entry as Entry
from orchestrator.measured import Estimate as Estimate
from orchestrator.measured import Receipt as Receipt
from orchestrator.measured import Result as Result
from orchestrator.measured import ResultRule as ResultRule
from orchestrator.measured import TrainingVerdict as TrainingVerdict
from orchestrator.measured import Verdict as Verdict

Role = Literal["train", "eval"]
TransportName = Literal["auto", "fabric", "openssh", "local"]
RouteName = Literal["direct", "tunnel", "relay"]
TransferName = Literal["auto", "direct", "tunnel", "relay"]
RunState = Literal["queued", "running", "succeeded", "failed", "cancelled", "refused", "lost"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Time limits in seconds; settings, so that tests need not wait minutes."""

    connect: float = 10.0
    """until a host has answered and let us in"""
    heartbeat: float = 3.0
    """between two signs of life, in both directions"""
    dead: float = 15.0
    """silence after which the controller takes a path to be dead"""
    agent_dead: float = 20.0
    """silence after which the agent ends, with all that it started"""
    question: float = 120.0
    """the longest that one question may take"""
    poll: float = 1.0
    """between two looks at a running evaluation"""
    sample: float = 10.0
    """between two samples of a training that is watched"""
    aftermath: float = 60.0
    """for which `guard` goes on watching after the command"""
    watch: float = 60.0
    """between two looks of `orch watch` at the training box"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What an evaluation may use. `None` means the host's own size."""

    threads: int | None = None
    memory: int | None = None
    """bytes"""
    wall: float | None = None
    """seconds"""
    evaluations: int | None = None
    """how many evaluations may run at once; of a host only"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A machine, reached under an ssh alias or `user@host[:port]`, or this machine (`transport: local`)."""

    name: str
    ssh: str
    """ssh target; the name itself where the inventory gives none"""
    roles: frozenset[Role]
    transport: TransportName = "auto"
    python: str = "python3"
    workdir: str = "~/orch"
    """where orch keeps its files on an evaluation host"""
    root: Path | None = None
    """only for `transport: local`: the home of relative paths and of ~"""
    limits: Limits = Limits()
    one_use_keys: bool = True
    """whether a shipment may put a key that opens one command into this user's authorized_keys for its time"""
    keep_free: int | None = None
    """bytes of an evaluation host's disk that a shipment leaves free; None: a small reserve"""
    keep_staged: int | None = None
    """how many checkpoints a watch leaves on an evaluation host of those that it has evaluated; None: all"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRule:
    """How to recognise the training process: exactly one of the three is given."""

    match: str | None = None
    """a substring of the command line"""
    pid: int | None = None
    pidfile: str | None = None

    def given(self) -> dict[str, str | int]:
        """The one that is given, by its name."""
        named = {"match": self.match, "pid": self.pid, "pidfile": self.pidfile}
        return {key: value for key, value in named.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """A live run on one or more hosts; the first host holds the checkpoints."""

    name: str
    hosts: tuple[str, ...]
    checkpoints: str
    """root folder of the checkpoints on the first host"""
    layout: str | None = None
    """name of a layout, or a pattern like `step_{step}/checkpoint.pt`; recognised where not given"""
    process: ProcessRule | None = None
    log: str | None = None
    progress: str | None = None
    """name of a preset, or a regular expression with named groups step, epoch, loss, rate, unit"""
    source: str | None = None
    """folder of the training's source tree, whose git state is recorded"""
    job: str | None = None
    eval_host: str | None = None
    gpus: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: MappingProxyType({}))
    """role name -> GPU indices"""
    transfer: TransferName | None = None
    """which way checkpoints go; None: as the inventory says"""
    limit_rate: int | None = None
    """bytes a second at which checkpoints leave the training box, at most"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """All hosts and training runs, from one hosts.yaml."""

    path: Path
    hosts: Mapping[str, Host]
    runs: Mapping[str, TrainingRun]
    timeouts: Timeouts = Timeouts()
    transfer: TransferName = "auto"
    """which way checkpoints go, where the run does not say"""
    named: Path | None = None
    """as `--inventory` named it; None where it was found without"""

    def typed(self, *words: str) -> str:
        """An orch command that reads this inventory, as it is typed in any folder where this one was typed."""
        named = [] if self.named is None else ["--inventory", str(self.named)]
        return shlex.join(["orch", *words, *named])


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueSource:
    """Where an environment value comes from, resolved on the laptop at the start of a run. Files hold only this."""

    kind: Literal["env", "file", "command"]
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A recipe for evaluating a checkpoint: one file in jobs/. It names no host and is never an execution."""

    name: str
    path: Path
    harness_local: Path
    harness_remote: str
    command: tuple[str, ...]
    """argv with {python}, {checkpoint}, {result} and {data.NAME}"""
    data: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """name -> path on the evaluation host; relative ones are relative to harness_remote"""
    ship: Literal["model", "whole"] = "model"
    model_key: str | None = None
    """which key of the file holds the model, where that can't be found"""
    env: Mapping[str, str | ValueSource] = field(default_factory=lambda: MappingProxyType({}))
    result: ResultRule = field(default_factory=ResultRule)
    limits: Limits = Limits()
    retries: int = 1
    """how often `orch watch` tries a failed evaluation again"""
    server: str | None = None
    """URL of the reference server that the evaluation needs, checked before the start from the evaluation host"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Complete weights at a path on a host. A save still being written is not a Checkpoint."""

    host: str
    root: str
    path: str
    """relative to root, as in CONTRACT: the file in one-file layouts, else the folder"""
    step: int
    bytes: int
    ship_bytes: int
    """what evaluation needs of it"""
    identity: str
    """opaque; equal exactly when the content is, as far as its structure tells"""
    stamp: str = ""
    """changes whenever a file of it is written anew; "" of one that only the evaluation host still has"""


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessFile:
    """One file of a harness: path relative to its folder, permission bits, sha256 (hex), size."""

    path: str
    mode: int
    sha256: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Harness:
    """One version of the evaluation scripts, named by the digest of its manifest (path, mode, sha256)."""

    digest: str
    files: tuple[HarnessFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One execution of a Job on a Host for a Checkpoint: one folder on the host, one id."""

    id: str
    job: str
    host: str
    run: str | None
    """name of the training run that the checkpoint comes from"""
    step: int
    state: RunState
    digests: Digests
    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""
    started_at: str | None = None
    ended_at: str | None = None
    key: str = ""
    """equal for two runs that would measure the same thing"""
    folder: str = ""
    """on the host"""
    rung: str = ""
    """in words: by what its host holds it to its limits"""

    @property
    def checkpoint(self) -> str:
        """Identity of the checkpoint."""
        return self.digests.checkpoint

    @property
    def goes_on(self) -> bool:
        """Whether it waits for its turn, or runs."""
        return self.state in ("queued", "running")

    @property
    def how_it_ended(self) -> str:
        """Its reason, else what its process ended with."""
        return self.reason or (f"exit {self.exit_code}" if self.exit_code is not None else f"signal {self.signal}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """What lies at one place below a checkpoint root, complete or not."""

    path: str
    step: int | None
    state: Literal["complete", "writing", "torn", "ignored"]
    reason: str
    unseen: bool = False
    """an ignored one that there was no time to look into"""
    stamp: str = ""
    """of a complete one, where every one was asked for: changes when a file of it does"""
    checkpoint: Checkpoint | None = None
    """of a complete one that was proven in such a look; not proven again while its stamp stays"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """One look at a checkpoint root: the latest complete checkpoint and everything that was passed over."""

    host: str
    root: str
    layout: str | None
    latest: Checkpoint | None
    latest_age: float | None
    """seconds since it was written, by its own host's clock"""
    candidates: tuple[Candidate, ...]
    warnings: tuple[str, ...]
    tensors: Mapping[str, object] | None = None
    """what the latest one holds, where it was asked for: its tensors, its settings, or why they can't be listed"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """What lies in an evaluation host's work folder: a checkpoint, or a shipment of one that has not ended."""

    host: str
    identity: str
    step: int | None
    bytes: int
    path: str
    source: str
    """host:root/path that it came from"""
    staged_at: str | None
    whole: bool
    used_by: tuple[str, ...]
    """ids of the runs that are queued or running on it"""
    removed: bool = False
    """by `clean`, or would be"""
    why: str = ""
    """why `clean` leaves it"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """One difference between two harness folders, in three-way terms."""

    path: str
    change: Literal["added", "modified", "deleted", "mode", "extra"]
    side: Literal["local", "remote", "both"]
    renamed_from: str = ""
    """with `added`: the path under which the same bytes lay at the last sync, and lie no more"""


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessFacts:
    """The harness folder on a host as it was found, against a local one."""

    harness: Harness | None
    """the files there that the local manifest or the last sync names; None where the folder is missing"""
    base: Harness | None
    """as it was last synced; None where orch never did"""
    extras: tuple[str, ...]
    """files there that neither names"""
    renames: tuple[tuple[str, HarnessFile], ...]
    """(path at the last sync, file as it lies there now)"""
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenFile:
    """A host's version of a file that was brought into the local tree and is not synced yet."""

    theirs: HarnessFile | None
    """as it lay there; None where it was deleted there"""
    replaced: HarnessFile | None
    """the local file before"""
    new: HarnessFile | None
    """the local file as it was written"""
    pending: bool
    """whether that was only begun, as far as is known"""

    def holds(self, here: HarnessFile | None) -> bool:
        """Whether the local file, as it is now, takes the host's version into account."""
        return here == self.new if self.pending else here != self.replaced


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What the local harness has taken in of one host since the last sync."""

    files: Mapping[str, TakenFile]
    """by path"""
    unresolved: tuple[str, ...]
    """local files in which conflicts of a merge stand now"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalChange:
    """What becomes of one local file when a host's edits are brought home."""

    path: str
    new: HarnessFile | None
    """None: it is deleted"""
    content: bytes | None
    """None: it is deleted, or keeps its bytes under another mode"""
    theirs: HarnessFile | None
    """the host's version that this takes in"""
    conflicts: int = 0
    """that stand in `content`"""


DriftState = Literal["in_sync", "local_ahead", "remote_edited", "both", "absent", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """The harness on a host against the local one and against what was last synced."""

    state: DriftState
    local: Harness
    remote: Harness | None
    base: Harness | None
    files: tuple[FileChange, ...]
    unresolved: tuple[str, ...] = ()
    """local files in which conflicts of a merge still stand"""

    @property
    def overwrites_unknown(self) -> bool:
        """Whether a push would replace what orch did not put there."""
        return self.state in ("remote_edited", "both", "unknown")


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that an evaluation needs, tried beforehand."""

    name: str
    state: Literal["ok", "fail", "skipped"]
    detail: str
    hint: str = ""
    """what would help"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One way of a shipment from the training box to the evaluation host."""

    kind: RouteName
    why: str
    """one sentence: why this one, and what passes this machine"""
    places: tuple[tuple[str, int], ...] = ()
    """addresses and ports of the evaluation host's sshd, as whoever connects to it sees them"""
    source: str = ""
    """address from which it will see the connection come"""
    lanes: int = 1
    """connections at once"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One step of a Plan."""

    do: Literal["sync", "ship", "launch", "join", "nothing"]
    why: str
    bytes: int = 0
    """that will cross to the evaluation host"""
    route: str = ""
    """which way they go"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a plan can't be carried out, and what would help."""

    reason: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a command will do and why. Nothing is done while anything is refused."""

    checkpoint: Checkpoint | None
    actions: tuple[Action, ...]
    refused: tuple[Refusal, ...]
    routes: tuple[Route, ...] = ()
    """the ways that a shipment may take, the best first"""

    def action(self, do: str) -> Action | None:
        """The step of that kind, if the plan has one."""
        return next((action for action in self.actions if action.do == do), None)
