"""What this computer remembers of the runs that it started."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.actions import launched
from orchestrator.model import Digests, Run

RUN = Run(
    id="7-ab",
    job="j",
    host="box",
    run="r",
    step=7,
    state="running",
    digests=Digests(checkpoint="c", harness="h", job="j", data="d"),
    folder="/root/orch/runs/7-ab",
)


def test_a_run_that_its_host_no_longer_has_is_lost(tmp_path: Path) -> None:
    launched.remember(tmp_path, RUN)
    (known,) = launched.remembered(tmp_path, "box")
    assert (known.id, known.state, known.folder, known.digests) == ("7-ab", "lost", "", RUN.digests)
    assert "box" in known.reason
    assert launched.ids(tmp_path, "box") == {"7-ab"} and launched.when(tmp_path, RUN) > 0
    assert launched.remembered(tmp_path, "other") == () and launched.ids(tmp_path, "other") == frozenset()


def test_what_was_collected_of_it_stays_true(tmp_path: Path) -> None:
    launched.remember(tmp_path, RUN)
    ended = {
        "state": "failed",
        "exit_code": 3,
        "signal": None,
        "reason": "exit code 3",
        "ended_at": "2026-11-30T12:00:00Z",
    }
    (tmp_path / "runs" / "box" / "7-ab" / "exit.json").write_text(json.dumps(ended))
    (known,) = launched.remembered(tmp_path, "box")
    assert (known.state, known.exit_code, known.reason) == ("failed", 3, "exit code 3")


@pytest.mark.parametrize("run_id", ["", ".", "..", "../../x", "a/b", "a\0b"])
def test_an_id_from_a_host_leads_nowhere_else(tmp_path: Path, run_id: str) -> None:
    hostile = replace(RUN, id=run_id)
    launched.remember(tmp_path / "state", hostile)
    assert launched.when(tmp_path / "state", hostile) == 0 and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 1}', '{"schema": 9, "id": "x"}', "\xff"])
def test_a_file_that_is_none_of_ours_is_passed_over(tmp_path: Path, text: str) -> None:
    launched.remember(tmp_path, RUN)
    (tmp_path / "runs" / "box" / "x").mkdir()
    (tmp_path / "runs" / "box" / "x" / "launched.json").write_text(text, encoding="latin-1")
    assert [run.id for run in launched.remembered(tmp_path, "box")] == ["7-ab"]


def test_a_state_folder_that_can_not_be_written_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    launched.remember(tmp_path, RUN)
    assert launched.remembered(tmp_path, "box") == ()
