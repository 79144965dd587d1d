"""orch runs, logs, attach, cancel and rerun on local boxes, with an evaluation of a few lines."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import jsonschema
import pytest
from small import RESULT, Small, agents, lives, wait_until

from orchestrator.reports.schema import document_schema

SLOW = "import time; print('begun', flush=True); time.sleep(60)\n" + RESULT
SAYING = """\
import sys, time
for i in range(20):
    sys.stdout.write('\\r%d%%|###' % i)
    sys.stdout.flush()
    if i % 5 == 4: print('\\nzeile %d ü' % i, flush=True)
    time.sleep(0.1)
"""


def begun(small: Small, run_id: str) -> None:
    log = small.runs / run_id / "log"
    wait_until(lambda: log.exists() and b"begun" in log.read_bytes())


def test_runs_are_listed_with_their_states_and_an_unreachable_host_is_a_row(small: Small) -> None:
    small.furnish("import sys; sys.exit(3)\n")
    failed = small.detach()
    small.wait_for_end(failed)
    small.code(SLOW)
    running = small.detach()
    text = (small.folder / "hosts.yaml").read_text()
    gone = f"  gone: {{roles: [eval], transport: local, root: {small.folder}, python: no-python}}\n"
    (small.folder / "hosts.yaml").write_text(
        text.replace("job: j", "job: j, eval_host: box").replace("runs:", f"{gone}runs:")
    )
    document = small.json("runs", code=4)
    jsonschema.validate(document, document_schema("runs"))
    states = {row["id"]: (row["state"], row["exit_code"]) for row in document["runs"]}
    assert states == {failed: ("failed", 3), running: ("running", None)}
    assert {row["name"]: row["ok"] for row in document["hosts"]} == {"box": True, "gone": False}
    shown = small.orch("runs")
    assert shown.returncode == 4 and "not usable" in shown.stdout and running in shown.stdout
    assert small.json("runs", "--host", "box")["runs"] == document["runs"]
    assert small.json("cancel", running[: len(running) - 2], "--host", "box")["run"]["state"] == "cancelled"


def test_a_run_is_meant_by_its_id_a_unique_beginning_or_latest(small: Small) -> None:
    small.furnish(SLOW, steps=(7, 9))
    first = small.detach("--step", "7")
    second = small.detach("--step", "9")
    assert small.json("cancel", "9-")["run"]["id"] == second
    third = small.detach("--step", "9")
    ambiguous = small.json("cancel", "9", code=2)
    assert second in ambiguous["error"]["message"] and third in ambiguous["error"]["message"]
    assert small.json("cancel", second)["before"] == "cancelled", "a whole id is never ambiguous"
    assert small.json("cancel", "latest")["run"]["id"] == third
    assert "no run 'x'" in small.json("logs", "x", code=2)["error"]["message"]
    assert small.json("cancel", "7")["run"]["id"] == first


def test_cancelling_answers_when_nothing_is_left(small: Small) -> None:
    small.furnish(SLOW)
    run_id = small.detach()
    begun(small, run_id)
    document = small.json("cancel", run_id, "--grace", "5")
    jsonschema.validate(document, document_schema("cancel"))
    assert (document["before"], document["run"]["state"], document["left"]) == ("running", "cancelled", [])
    assert small.processes(run_id) == [] and small.file(run_id, "exit.json")["state"] == "cancelled"


def test_who_follows_a_run_that_is_cancelled_hears_so(small: Small) -> None:
    small.furnish(SLOW)
    follower = small.start("eval-latest", "--yes", "--json")
    wait_until(small.ids)
    (run_id,) = small.ids()
    begun(small, run_id)
    assert small.orch("cancel", run_id).returncode == 0
    out, _ = follower.communicate(timeout=60)
    document = json.loads(out)
    assert follower.returncode == 8 and document["run"]["state"] == "cancelled"
    assert f"orch rerun {run_id}" in document["error"]["hint"]


def test_logs_follow_a_run_to_its_end_with_bars_collapsed(small: Small) -> None:
    small.furnish(SAYING + RESULT)
    run_id = small.detach()
    followed = small.orch("logs", "-f", "--all", run_id)
    assert followed.returncode == 0
    assert [line for line in followed.stdout.splitlines() if "zeile" in line] == [
        f"zeile {i} ü" for i in (4, 9, 14, 19)
    ]
    assert len(followed.stdout.splitlines()) == 8, "each bar once: its last state"
    assert f"run {run_id} succeeded" in followed.stderr
    last = small.orch("logs", "-n", "1", run_id)
    assert last.stdout == "zeile 19 ü\n"


def test_logs_for_programs_are_one_object_a_line(small: Small) -> None:
    small.furnish(SAYING + RESULT)
    run_id = small.detach()
    rows = [json.loads(line) for line in small.orch("logs", "-f", "--all", run_id, "--json").stdout.splitlines()]
    assert [row["text"] for row in rows[:-1] if "zeile" in row["text"]] == [f"zeile {i} ü" for i in (4, 9, 14, 19)]
    assert all(row["id"] == run_id and row["command"] == "logs" and row["schema"] == 1 for row in rows[:-1])
    assert rows[-1]["run"]["state"] == "succeeded"
    assert rows[-1]["offset"] == (small.runs / run_id / "log").stat().st_size
    jsonschema.validate(rows[-1], document_schema("logs"))


def test_ctrl_c_on_logs_leaves_no_process_and_the_run_going(small: Small) -> None:
    small.furnish("import time\nfor i in range(100): print('begun', i, flush=True); time.sleep(0.3)\n" + RESULT)
    run_id = small.detach()
    begun(small, run_id)
    typed = small.start("logs", "-f", run_id)
    wait_until(lambda: agents(typed.pid))
    time.sleep(0.5)
    mine = agents(typed.pid)
    typed.send_signal(signal.SIGINT)
    _, err = typed.communicate(timeout=30)
    assert typed.returncode == 130 and f"orch logs -f {run_id}" in err
    wait_until(lambda: not any(lives(pid) for pid in mine))
    assert small.state(run_id) == "running"


def test_when_the_time_of_a_follower_is_up_the_run_goes_on(small: Small) -> None:
    go = small.folder / "go"
    small.furnish(f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.1)\n" + RESULT)
    run_id = small.detach()
    error = small.json("eval-latest", "--timeout", "2s", code=124)["error"]
    assert error["code"] == 124 and "nothing that runs on a host was stopped" in error["message"] and error["hint"]
    assert small.orch("logs", "-f", run_id, "--timeout", "500ms").returncode == 124
    wrong = small.orch("attach", run_id, "--timeout", "soon")
    assert wrong.returncode == 2 and "a duration like 6h, 90s or 1h30m" in wrong.stderr
    assert small.state(run_id) == "running"
    go.touch()
    assert small.json("attach", run_id, "--timeout", "2m")["run"]["state"] == "succeeded"


def test_logs_go_on_where_they_stood_when_the_agent_is_killed(small: Small) -> None:
    small.furnish("import time\nfor i in range(40): print('line', i, flush=True); time.sleep(0.1)\n" + RESULT)
    run_id = small.detach()
    typed = small.start("logs", "-f", "--all", run_id)
    for _ in range(2):
        time.sleep(1)
        wait_until(lambda: agents(typed.pid))
        os.kill(agents(typed.pid)[0], signal.SIGKILL)
    out, err = typed.communicate(timeout=60)
    assert typed.returncode == 0 and "connecting again" in err
    assert out.splitlines() == [f"line {i}" for i in range(40)], "each line once, none missing"


def test_attach_follows_a_detached_run_and_brings_its_result_home(small: Small) -> None:
    small.furnish("import time; time.sleep(1.5)\n" + RESULT)
    run_id = small.detach()
    small.code("print('changed since')\n" + RESULT)
    document = small.json("attach", "latest")
    jsonschema.validate(document, document_schema("attach"))
    assert (document["run"]["id"], document["run"]["state"]) == (run_id, "succeeded")
    assert document["result"]["headline"]["value"] == 1.5
    assert (small.folder / "state" / "runs" / "box" / run_id / "orch-result.json").exists()
    assert small.json("attach", run_id)["plan"]["actions"][0]["do"] == "nothing"


def test_attach_works_without_the_training_box_and_says_that_it_was_not_seen(small: Small) -> None:
    small.furnish()
    run_id = small.detach()
    small.wait_for_end(run_id)
    inventory = small.folder / "hosts.yaml"
    there = f"{{roles: [train], transport: local, root: {small.train}, python: {sys.executable}}}"
    text = inventory.read_text()
    assert there in text
    inventory.write_text(text.replace(there, "{roles: [train], ssh: nobody@127.0.0.1:1}"))
    for _ in range(2):  # brought home, and known
        document = small.json("attach", run_id)
        jsonschema.validate(document, document_schema("attach"))
        assert document["result"]["headline"]["value"] == 1.5
    receipt = small.json("receipt", run_id)
    assert receipt["verdict"] == "not_observed", receipt
    assert any("train" in gap["why"] for window in receipt["windows"] for gap in window["gaps"]), receipt


def test_the_way_back_names_the_inventory_that_was_given_and_a_detached_run_is_not_left_by_ctrl_c(
    small: Small,
) -> None:
    small.furnish(SLOW)
    given = ["--inventory", str(small.folder / "hosts.yaml")]
    detached = small.orch("eval-latest", "--yes", "--detach", *given)
    run_id = detached.stdout.strip()
    assert f"To come back: orch eval-latest r --step 7 {' '.join(given)}" in detached.stderr
    assert "Ctrl-C" not in detached.stderr
    error = small.json("attach", run_id, "--timeout", "10s", "--inventory", "hosts.yaml", code=124)["error"]
    assert error["hint"] == f"to come back: orch eval-latest r --step 7 --job j --host box {' '.join(given)}"
    assert f"orch logs -f {run_id} {' '.join(given)}" in small.orch(
        "logs", "-f", run_id, "--timeout", "6s", *given
    ).stderr  # fmt: skip
    assert "--inventory" not in small.orch("logs", "-f", run_id, "--timeout", "6s").stderr
    small.orch("cancel", run_id)
    assert f"nothing to do: it was cancelled: run {run_id} of step 7" in small.orch("attach", run_id).stderr


def test_a_refusal_is_told_once(small: Small) -> None:
    small.furnish()
    job = small.folder / "jobs" / "j.yaml"
    job.write_text(job.read_text() + f"data: {{cache: {small.evaluate}/none}}\n")
    typed = small.orch("eval-latest", "--yes")
    assert typed.returncode == 6 and typed.stderr.count("data.cache: no") == 1, typed.stderr
    assert "orch: refused, as said above" in typed.stderr
    dry = small.orch("eval-latest", "--dry-run")
    assert dry.returncode == 6 and "data.cache: no" in dry.stdout and "data.cache: no" in dry.stderr
    assert "data.cache: no" in small.json("eval-latest", "--yes", code=6)["error"]["message"]


def test_attach_to_a_failed_run_says_how_it_failed(small: Small) -> None:
    small.furnish("import sys; print('no luck'); sys.exit(4)\n")
    run_id = small.detach()
    small.wait_for_end(run_id)
    document = small.json("attach", run_id, code=8)
    assert document["run"]["exit_code"] == 4 and "no luck" in document["error"]["message"]


def test_rerun_makes_a_second_run_of_the_same_checkpoint(small: Small) -> None:
    small.furnish(steps=(7, 9))
    first = small.json("eval-latest", "--step", "7", "--yes")["run"]["id"]
    shutil.rmtree(small.train / "small" / "step_7")  # rotated away; the evaluation box still has it
    document = small.json("rerun", first)
    jsonschema.validate(document, document_schema("rerun"))
    assert document["run"]["id"] == f"{first}-2" and document["run"]["step"] == 7
    assert [action["do"] for action in document["plan"]["actions"]] == ["launch"]
    assert small.json("eval-latest", "--step", "7")["run"]["id"] == f"{first}-2", "the newest counts"


def test_a_run_that_has_not_ended_is_not_run_again(small: Small) -> None:
    small.furnish(SLOW)
    run_id = small.detach()
    refused = small.json("rerun", run_id, code=6)
    assert f"orch cancel {run_id}" in refused["error"]["hint"]
    small.orch("cancel", run_id)


def test_two_commands_at_once_make_one_run_and_both_follow_it(small: Small) -> None:
    small.furnish("import time; time.sleep(2)\n" + RESULT)
    assert small.orch("sync-harness", "--yes").returncode == 0
    other = {"ORCH_HOME": str(small.folder / "other-laptop")}
    both = [small.start("eval-latest", "--json"), small.start("eval-latest", "--json", **other)]
    documents = [json.loads(typed.communicate(timeout=90)[0]) for typed in both]
    assert [typed.returncode for typed in both] == [0, 0]
    assert len({document["run"]["id"] for document in documents}) == 1 and len(small.ids()) == 1
    assert all(document["result"]["headline"]["value"] == 1.5 for document in documents)


def test_the_queue_moves_on_without_anybody_connected(small: Small) -> None:
    small.furnish("import time; time.sleep(1)\n" + RESULT, steps=(7, 8, 9))
    ids = [small.detach("--step", str(step)) for step in (7, 8, 9)]
    states = [row["state"] for row in small.json("runs")["runs"]]
    assert states[1:] == ["queued", "queued"] or "succeeded" in states
    ends = [small.wait_for_end(run_id) for run_id in ids]  # nobody asks the box anything meanwhile
    assert [end["state"] for end in ends] == ["succeeded"] * 3
    assert [end["started_at"] for end in ends] == sorted(end["started_at"] for end in ends)


def test_a_harness_edited_on_the_host_does_not_reach_a_run_from_its_snapshot(small: Small) -> None:
    small.furnish("import time; time.sleep(1.5); exec(open('late.py').read())\n" + RESULT)
    (small.folder / "harness" / "late.py").write_text("print('as planned')\n")
    run_id = small.detach()
    (small.evaluate / "eval" / "late.py").write_text("raise SystemExit('edited')\n")
    assert small.wait_for_end(run_id)["state"] == "succeeded"
    assert "as planned" in small.orch("logs", run_id).stdout


@pytest.mark.parametrize("shift", ["-1h", "+1h"])
def test_a_box_whose_clock_is_an_hour_off_is_no_trouble(small: Small, shift: str) -> None:
    library = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)
    if library is None:
        pytest.skip("no libfaketime here")
    small.furnish("import time; time.sleep(1)\n" + RESULT)
    wrapper = small.folder / "python"
    wrapper.write_text(f'#!/bin/sh\nFAKETIME={shift} LD_PRELOAD={library} exec {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    inventory = small.folder / "hosts.yaml"
    inventory.write_text(inventory.read_text().replace(f"{sys.executable}, workdir", f"{wrapper}, workdir"))
    run_id = small.detach()
    assert small.state(run_id) in ("queued", "running")
    started = small.file(run_id, "started.json")["queued_at"]
    assert abs(datetime.fromisoformat(started.replace("Z", "+00:00")).timestamp() - time.time()) > 3000
    document = small.json("eval-latest")
    assert document["run"]["state"] == "succeeded" and small.ids() == [run_id]


def test_a_box_that_came_back_empty_has_lost_the_run_and_runs_it_again(small: Small) -> None:
    small.furnish(SLOW)
    lost = small.detach()
    begun(small, lost)
    pids = small.processes(lost)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for folder in ("orch", "eval"):
        shutil.rmtree(small.evaluate / folder)
    row = {row["id"]: row for row in small.json("runs")["runs"]}[lost]
    assert row["state"] == "lost" and "came back empty" in row["reason"]
    assert "came back empty" in small.json("attach", lost, code=8)["error"]["message"]
    assert "came back empty" in small.json("logs", lost, code=8)["error"]["message"]
    assert small.json("cancel", lost)["before"] == "lost"
    small.code(RESULT)
    document = small.json("rerun", lost)
    assert document["run"]["state"] == "succeeded" and document["run"]["id"] != lost
    assert [action["do"] for action in document["plan"]["actions"]] == ["sync", "ship", "launch"]


def test_a_follower_whose_run_is_taken_away_hears_that_it_is_lost(small: Small) -> None:
    small.furnish(SLOW)
    follower = small.start("eval-latest", "--yes", "--json")
    wait_until(small.ids)
    (run_id,) = small.ids()
    begun(small, run_id)
    for pid in small.processes(run_id):
        os.kill(pid, signal.SIGKILL)
    shutil.rmtree(small.evaluate / "orch")
    out, _ = follower.communicate(timeout=60)
    document = json.loads(out)
    assert follower.returncode == 8 and document["run"]["state"] == "lost", document


def test_a_logout_that_kills_makes_the_run_lost_and_says_why(small: Small) -> None:
    """As logind does it: TERM to all in the session's scope, then KILL."""
    small.furnish(SLOW)
    run_id = small.detach()
    begun(small, run_id)
    scope = small.processes(run_id)
    for pid in scope:
        with suppress(ProcessLookupError):  # another's end took it along
            os.kill(pid, signal.SIGTERM)
    wait_until(lambda: not any(lives(pid) for pid in scope))
    row = {row["id"]: row for row in small.json("runs")["runs"]}[run_id]
    assert row["state"] in ("lost", "failed") and "SIGTERM" in row["reason"]
    small.code(RESULT)
    assert small.json("eval-latest", "--yes")["run"]["state"] == "succeeded"
