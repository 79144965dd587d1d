"""What `clean` removes from an evaluation host: never what a run uses; of a list, nothing beside it."""

from __future__ import annotations

from typing import Any

from evalhost import EvalHost, Line, stage

from remote_payload.agent import retention, runs, staging


def left(host: EvalHost) -> list[str]:
    return sorted(str(row["identity"]) for row in staging.staged(str(host.workdir)))


def clean(host: EvalHost, keep: int, **more: Any) -> dict[str, str]:
    """Identity -> why it stays, empty for what went."""
    answer = retention.clean_answer({"workdir": str(host.workdir), "keep": keep, **more}, Line())
    return {row["identity"]: row["why"] for row in answer["staged"]}


def test_of_a_list_the_last_ones_stay_and_nothing_else_is_touched(eval_host: EvalHost) -> None:
    for identity in ("a", "b", "c", "other"):
        stage(eval_host.workdir, identity)
    dry = clean(eval_host, 1, among=["c", "a", "never-there", "b"], dry_run=True)
    assert dry == {"b": "one of the newest", "a": "", "c": ""} and left(eval_host) == ["a", "abc", "b", "c", "other"]
    assert clean(eval_host, 1, among=["c", "a", "never-there", "b"]) == dry
    assert left(eval_host) == ["abc", "b", "other"]
    assert clean(eval_host, 0, among=[]) == {} and left(eval_host) == ["abc", "b", "other"]


def test_what_a_run_uses_or_waits_for_stays(eval_host: EvalHost) -> None:
    stage(eval_host.workdir, "next")
    go = eval_host.root / "go"
    wait = "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.05)"
    eval_host.launch(["{python}", "-c", wait, str(go)])
    digests = {"checkpoint": "next", "harness": "h", "job": "j", "data": "d"}
    eval_host.launch(["{python}", "-c", "pass"], "key-2", checkpoint="next", digests=digests)
    reasons = clean(eval_host, 0, among=["abc", "next"])
    states = {row["checkpoint"]: row["state"] for row in runs.list_runs(str(eval_host.workdir))}
    go.touch()
    for row in runs.list_runs(str(eval_host.workdir)):
        eval_host.end(row["id"], 60)
    assert states == {"abc": "running", "next": "queued"}
    assert all(why.endswith("uses it") for why in reasons.values()) and left(eval_host) == ["abc", "next"]
    assert clean(eval_host, 0, among=["abc", "next"]) == {"abc": "", "next": ""} and left(eval_host) == []
