"""Facts in, plan out."""

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.model import (
    Checkpoint,
    Digests,
    Drift,
    FileChange,
    Harness,
    HarnessFile,
    Host,
    Job,
    Limits,
    Plan,
    Route,
    Run,
    ValueSource,
)
from orchestrator.plan import RESERVE, RUN_ROOM, EvalSide, data_digest, drift_refusal, job_digest, make_plan, run_key

HOST = Host(name="box", ssh="box", roles=frozenset({"eval"}))
CHECKPOINT = Checkpoint(
    host="train", root="/c", path="step_7/checkpoint.pt", step=7, bytes=5000, ship_bytes=1000, identity="i7"
)
FILE = HarnessFile(path="eval.py", mode=0o644, sha256="a" * 64, size=40)
OURS = Harness(digest="ours", files=(FILE,))
JOB = Job(
    name="j",
    path=Path("jobs/j.yaml"),
    harness_local=Path("h"),
    harness_remote="/h",
    command=("{python}", "eval.py", "{checkpoint}"),
)
SAME = Drift(state="in_sync", local=OURS, remote=OURS, base=OURS, files=())
AHEAD = replace(SAME, state="local_ahead", files=(FileChange(path="eval.py", change="modified", side="local"),))
SIDE = EvalSide(
    host=HOST,
    staged=False,
    arriving=0,
    same_run=None,
    disk_free=1 << 40,
    memory_available=1 << 40,
    missing=(),
    trains=False,
)


def plan(drift: Drift = SAME, side: EvalSide = SIDE, job: Job = JOB, allow: bool = False, consent: bool = True) -> Plan:
    return make_plan(
        checkpoint=CHECKPOINT,
        drift=drift,
        side=side,
        job=job,
        allow_on_training_host=allow,
        consent_possible=consent,
        routes=(Route(kind="relay", why="asked for"),),
    )


def run(state: str) -> Run:
    digests = Digests(checkpoint="i7", harness="h", job="j", data="d")
    return Run(id="7-abc", job="j", host="box", run="d", step=7, state=state, digests=digests, key="k")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("drift", "staged", "state", "expected"),
    [
        (SAME, False, None, ["ship", "launch"]),
        (AHEAD, False, None, ["sync", "ship", "launch"]),
        (AHEAD, True, None, ["sync", "launch"]),
        (SAME, True, None, ["launch"]),
        (SAME, True, "failed", ["launch"]),
        (SAME, True, "lost", ["launch"]),
    ],
)
def test_only_what_is_missing_is_done(drift: Drift, staged: bool, state: str | None, expected: list[str]) -> None:
    side = replace(SIDE, staged=staged, same_run=run(state) if state else None)
    assert [action.do for action in plan(drift, side).actions] == expected


def test_a_plan_names_the_way_and_what_an_earlier_shipment_left() -> None:
    ship = plan().action("ship")
    assert ship is not None and ship.route == "relay: asked for" and "is not on box yet" in ship.why
    tight = replace(SIDE, disk_free=RESERVE + 400, arriving=600)
    found = plan(side=tight).action("ship")
    assert plan(side=tight).refused == () and found is not None and "is partly on box yet" in found.why
    assert plan(side=replace(tight, arriving=500)).refused != ()


def test_a_plan_names_the_bytes_that_cross() -> None:
    found = plan(AHEAD)
    assert {action.do: action.bytes for action in found.actions} == {"sync": 40, "ship": 1000, "launch": 0}


@pytest.mark.parametrize(
    ("side", "allow", "word"),
    [
        (replace(SIDE, trains=True), False, "a training runs on box"),
        (replace(SIDE, trains=True), True, None),
        (replace(SIDE, trains=True, unseen=("d",)), False, "whether d runs on box can't be seen"),
        (replace(SIDE, disk_free=1000), False, "1 kB free"),
        (replace(SIDE, disk_free=RUN_ROOM, staged=True), False, None),
        (replace(SIDE, disk_free=1000, staged=True), False, "1 kB free"),
        (replace(SIDE, memory_available=1 << 20), False, "memory available"),
        (replace(SIDE, memory_available=2 << 30, memory_reserve=1 << 30, trains=True), True, None),
        (replace(SIDE, memory_available=2 << 30, memory_reserve=2 << 30, trains=True), True, "kept for the training"),
        (replace(SIDE, host=replace(HOST, limits=Limits(memory=1 << 29))), False, "may use 512 MiB"),
    ],
)
def test_refusals(side: EvalSide, allow: bool, word: str | None) -> None:
    job = replace(JOB, limits=Limits(memory=1 << 30))
    reasons = [refusal.reason for refusal in plan(side=side, job=job, allow=allow).refused]
    assert (word is None and not reasons) or (len(reasons) == 1 and word is not None and word in reasons[0])


def test_a_job_without_an_estimate_needs_its_weights_in_memory() -> None:
    assert "the weights alone are 1000" in plan(side=replace(SIDE, memory_available=999)).refused[0].reason
    assert plan(side=replace(SIDE, memory_available=1000)).refused == ()


def test_a_plan_says_what_an_evaluation_beside_a_training_gets_and_where_its_server_is() -> None:
    side = replace(SIDE, trains=True, memory_reserve=2 << 30, server="its reference server is on train")
    launch = plan(side=side, allow=True).action("launch")
    assert launch is not None and "2.0 GiB of memory kept for it" in launch.why
    assert launch.why.endswith("stopped if it suffers; its reference server is on train")


def test_drift_that_nobody_could_agree_to_replace_is_refused() -> None:
    edited = replace(SAME, state="remote_edited")
    assert plan(edited, consent=True).refused == ()
    assert plan(edited, consent=False).refused == (drift_refusal(edited, HOST, JOB),)
    assert plan(AHEAD, consent=False).refused == ()


def test_a_drift_refusal_says_what_to_type() -> None:
    refusal = drift_refusal(replace(SAME, state="remote_edited"), HOST, JOB)
    assert "edited on box" in refusal.reason and "orch sync-harness j --host box" in refusal.hint


def test_a_run_is_the_same_only_when_all_four_digests_are() -> None:
    digests = Digests(checkpoint="c", harness="h", job="j", data="d")
    keys = {run_key(replace(digests, **{name: "x"})) for name in ("checkpoint", "harness", "job", "data")}
    assert len(keys | {run_key(digests)}) == 5


def test_a_jobs_digest_knows_the_name_of_a_secret_and_nothing_of_its_place_on_disk() -> None:
    moved = replace(JOB, path=Path("elsewhere/j.yaml"), harness_local=Path("k"))
    assert job_digest(moved) == job_digest(JOB)
    secret = replace(JOB, env={"TOKEN": ValueSource(kind="env", name="A")})
    other = replace(JOB, env={"TOKEN": ValueSource(kind="env", name="B")})
    assert len({job_digest(JOB), job_digest(secret), job_digest(other)}) == 3


def test_a_data_digest_follows_the_data_and_not_its_path() -> None:
    assert data_digest({"a": {"path": "/x", "digest": "1"}}) == data_digest({"a": {"path": "/y", "digest": "1"}})
    assert data_digest({"a": {"digest": "1"}}) != data_digest({"a": {"digest": "2"}})
