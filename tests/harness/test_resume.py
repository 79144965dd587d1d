"""A killed evaluation goes on with --resume to the very result of one that was not."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
from eval_drafter import main as evaluate
from harness_bench import HARNESS
from journal import Journal
from refusal import Refused

OWN = ("started_at", "ended_at")


def command(bench, out, *more):
    options = ["--drafter", bench.drafter, "--cache", bench.cache, "--baseline", bench.baseline, "--out", out]
    return [*map(str, [*options, "--batch", 3, "--texts", 2, "--no-checks", *more])]


def numbers(out):
    document = json.loads(out.read_text())
    return {**document, "provenance": {key: each for key, each in document["provenance"].items() if key not in OWN}}


@pytest.fixture(scope="module")
def whole(bench, tmp_path_factory):
    """An uninterrupted result, and the journal that it would have left at its end."""
    out = tmp_path_factory.mktemp("whole") / "eval_results.json"
    kept = []
    remove = Journal.remove
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "remove", lambda self: (kept.append(self.file.read_bytes()), remove(self)))
        assert evaluate(command(bench, out)) == 0
    return numbers(out), kept[0]


@pytest.mark.parametrize("share", [0.0, 0.13, 0.5, 0.77, 1.0])
def test_any_beginning_of_the_journal_leads_to_the_same_result(share, bench, whole, tmp_path):
    """Cut anywhere, also in the middle of a line; what it holds is not drafted again."""
    result, journal = whole
    (tmp_path / "eval_results.journal.jsonl").write_bytes(journal[: round(share * len(journal))])
    assert evaluate(command(bench, tmp_path / "eval_results.json", "--resume")) == 0
    assert numbers(tmp_path / "eval_results.json") == result
    assert sorted(path.name for path in tmp_path.iterdir()) == ["eval_results.json", "progress.jsonl"]


@pytest.mark.parametrize(
    "how",
    [
        pytest.param(signal.SIGKILL, id="killed"),
        pytest.param(signal.SIGINT, id="interrupted", marks=pytest.mark.full),
    ],
)
def test_a_killed_process_is_taken_up(how, bench, whole, tmp_path):
    out, journal = tmp_path / "eval_results.json", tmp_path / "eval_results.journal.jsonl"
    process = subprocess.Popen(
        [sys.executable, "-B", str(HARNESS / "eval_drafter.py"), *command(bench, out)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        if journal.exists() and journal.read_bytes().count(b"\n") > 3:
            break
        time.sleep(0.002)
    process.send_signal(how)
    said = process.communicate()[1].decode()
    if how == signal.SIGINT:
        assert process.returncode == 130
        assert said.splitlines()[-1] == "eval_drafter: interrupted; --resume goes on from here"
    assert not out.exists() and journal.exists()
    assert evaluate(command(bench, out, "--resume")) == 0
    assert numbers(out) == whole[0]


def test_what_is_done_is_not_done_again(bench, whole, tmp_path, capsys):
    out = tmp_path / "eval_results.json"
    assert evaluate(command(bench, out, "--resume")) == 0
    before = out.stat().st_mtime_ns
    assert evaluate(command(bench, out, "--resume")) == 0
    assert out.stat().st_mtime_ns == before and "already there" in capsys.readouterr().out


def test_the_journal_of_another_evaluation_is_refused(bench, whole, tmp_path, capsys):
    (tmp_path / "eval_results.journal.jsonl").write_bytes(whole[1])
    assert evaluate(command(bench, tmp_path / "eval_results.json", "--resume", "--max-anchors", 2)) == 2
    assert "belongs to an evaluation of other files or settings" in capsys.readouterr().err
    with pytest.raises(Refused):
        Journal(tmp_path / "eval_results.journal.jsonl", "another", resume=True)
    shutil.copy(tmp_path / "eval_results.journal.jsonl", tmp_path / "again.jsonl")
    Journal(tmp_path / "again.jsonl", "another", resume=False)
    assert (tmp_path / "again.jsonl").read_text() == '{"key": "another"}\n'
