"""Files on an evaluation host that somebody else wrote, or that are damaged: each costs its own place only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from evalhost import EvalHost, wait_until, write_files

from remote_payload.agent import evalbox, harness, manifest, runfolder, runs, staging
from remote_payload.agent.errors import AgentError

DEEP = "[" * 200_000
SUCCEED = ["{python}", "eval.py", "{result}"]


def ended(host: EvalHost, code: str) -> dict[str, Any]:
    """The row of an evaluation that runs this code, its result's path being sys.argv[1]."""
    return host.end(host.launch(["{python}", "-c", code, "{result}"])["id"])


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import sys; open(sys.argv[1], 'w').write('[' * 200_000)", "is not JSON"),
        ("import os, sys; os.mkfifo(sys.argv[1])", "is no file"),
        ("import os, sys; os.mkdir(sys.argv[1])", "is no file"),
        ("import sys; open(sys.argv[1], 'wb').truncate(33 << 20)", "is larger than"),
    ],
)
def test_a_result_that_is_none_is_said(eval_host: EvalHost, code: str, reason: str) -> None:
    row = ended(eval_host, code)
    assert row["state"] == "failed" and reason in row["reason"]


@pytest.mark.parametrize("name", ["eval_results.json", "progress.jsonl", "log", "exit.json", "started.json"])
def test_a_pipe_in_place_of_a_file_is_not_waited_for(eval_host: EvalHost, name: str) -> None:
    row = ended(eval_host, "import sys; sys.exit(3)")
    folder = eval_host.folder(row["id"])
    if (folder / name).exists():
        (folder / name).unlink()
    os.mkfifo(folder / name)
    args = {"workdir": str(eval_host.workdir), "id": row["id"]}
    asked = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from remote_payload.agent import ending, runs\n"
        f"runs.collect_answer({args!r}, None), runs.progress_of({str(folder)!r})\n"
        f"ending.last_line({str(folder / 'log')!r}), runs.list_runs({args['workdir']!r})\n"
    )
    root = str(Path(__file__).parents[3])
    subprocess.run([sys.executable, "-c", asked, root], check=True, timeout=20)


def test_a_large_result_reaches_the_laptop(eval_host: EvalHost) -> None:
    row = ended(eval_host, "import json, sys; json.dump({'x': 'y' * (20 << 20)}, open(sys.argv[1], 'w'))")
    answer = runs.collect_answer({"workdir": str(eval_host.workdir), "id": row["id"]}, None)
    assert row["state"] == "succeeded" and answer["left_out"] == []
    assert {"eval_results.json"} <= {file["name"] for file in answer["files"]}


@pytest.mark.parametrize("text", [DEEP, "{}", '{"id": 7, "step": 1}', '{"id": "../x", "step": 1}', "[]", "\0"])
def test_a_damaged_run_folder_hides_no_other(eval_host: EvalHost, text: str) -> None:
    row = eval_host.end(eval_host.launch(SUCCEED)["id"])
    (eval_host.workdir / "runs" / "damaged").mkdir()
    (eval_host.workdir / "runs" / "damaged" / "spec.json").write_text(text)
    assert [one["id"] for one in runs.list_runs(str(eval_host.workdir))] == [row["id"]]


@pytest.mark.parametrize("name", ["started.json", "exit.json", "progress.jsonl"])
@pytest.mark.parametrize("text", [DEEP + "\n", "{}\n", '{"incarnation": 1, "pid": "x"}\n', '{"state": "x"}\n'])
def test_damaged_files_of_a_run_that_was_killed_leave_it_lost(eval_host: EvalHost, name: str, text: str) -> None:
    row = eval_host.end(eval_host.launch(SUCCEED)["id"])
    folder = eval_host.folder(row["id"])
    (folder / "exit.json").unlink()
    (folder / name).write_text(text)
    (folder / "writer.json").unlink()  # it names this process, which lives
    for old in (folder, folder / "heartbeat"):
        os.utime(old, (1, 1))
    wait_until(lambda: eval_host.row(row["id"])["state"] == "lost")  # once the supervisor itself has ended
    runs.progress_of(str(folder))


@pytest.mark.parametrize("path", ["runs/{id}/spec.json", "checkpoints/abc/checkpoint.json"])
def test_a_file_of_a_newer_orch_is_a_clear_error(eval_host: EvalHost, path: str) -> None:
    row = eval_host.end(eval_host.launch(SUCCEED)["id"])
    file = eval_host.workdir / path.format(id=row["id"])
    text = file.read_text()
    file.write_text(json.dumps({**json.loads(text), "schema": 2}))
    with pytest.raises(AgentError, match=r"newer orch \(schema 2\)"):
        evalbox.facts({"workdir": str(eval_host.workdir), "python": sys.executable}, None)
    file.write_text(text)


ENTRY = {"path": "eval.py", "mode": 420, "sha256": "0" * 64, "size": 1}


@pytest.mark.parametrize(
    "files",
    [
        [{**ENTRY, "path": path}]
        for path in ("../../.ssh/id_rsa", "/etc/passwd", "a/../../b", ".orch/x", "", "a\0b", "a\nb", "\ud800", 7, None)
    ]
    + [[{}], [7], {"path": "x"}, [{**ENTRY, "sha256": "\xe9"}], [{**ENTRY, "mode": "x"}]],
)
def test_a_tampered_memory_of_the_last_sync_counts_as_none(eval_host: EvalHost, files: Any) -> None:
    """Then nobody knows who edited what, and a push asks; nothing outside the folder is looked at."""
    write_files(eval_host.remote, {".orch/synced.json": json.dumps({"schema": 1, "files": files})})
    found = harness.facts(str(eval_host.remote), manifest.build(str(eval_host.remote)))
    assert found["base"] is None and found["files"]


def test_a_memory_of_the_last_sync_by_a_newer_orch_is_a_clear_error(eval_host: EvalHost) -> None:
    write_files(eval_host.remote, {".orch/synced.json": json.dumps({"schema": 2, "files": []})})
    with pytest.raises(AgentError, match="newer orch"):
        harness.facts(str(eval_host.remote), [])


def test_a_json_file_with_a_deep_or_huge_value_beside_the_harness_is_listed(eval_host: EvalHost) -> None:
    write_files(eval_host.remote, {"deep.json": DEEP, "huge.json": '{"score": 1' + "0" * 400 + "}"})
    args = {"workdir": str(eval_host.workdir), "remote": str(eval_host.remote), "headline": "score"}
    listed = {row["path"]: row["headline"] for row in evalbox.facts(args, None)["remote_folder"]}
    assert listed["deep.json"] is None and listed["huge.json"] is None


def test_doubled_braces_are_no_placeholder() -> None:
    values = {"result": "/r", "python": "/p"}
    assert runfolder.fill('--x={result}:{{result}}:{"a": {"b": 1}}', values) == '--x=/r:{result}:{"a": {"b": 1}}'


def test_a_word_is_filled_once_wherever_a_placeholder_stands() -> None:
    values = {"python": "/bin/py thon", "checkpoint": "{result}", "data.cache": "/c"}
    words = ("{python}", "--x={data.cache}:{data.cache}", "{checkpoint}", "{{python}}", "{}")
    filled = ["/bin/py thon", "--x=/c:/c", "{result}", "{python}", "{}"]
    assert [runfolder.fill(word, values) for word in words] == filled


def test_a_staged_checkpoint_with_a_damaged_record_is_not_there(eval_host: EvalHost) -> None:
    record = Path(staging.folder_of(str(eval_host.workdir), "abc"), "checkpoint.json")
    for text in (DEEP, "{}", '{"identity": "abc", "files": [{}]}', '{"identity": "abc", "files": 7}'):
        record.write_text(text)
        assert staging.staged(str(eval_host.workdir)) == []
