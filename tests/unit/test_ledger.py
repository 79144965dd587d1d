"""The laptop's memory of finished runs."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.actions.ledger import SCHEMA, Ledger
from orchestrator.errors import OrchError
from orchestrator.keeping import state_folder
from orchestrator.model import Digests, Estimate, Receipt, Result
from orchestrator.records import entry_of

RESULT = Result(
    id="7-abc",
    run="dflash",
    job="j",
    host="box",
    step=7,
    headline_name="tau",
    headline=Estimate(value=4.2, low=4.0, high=4.4),
    baseline=None,
    verdict=None,
    digests=Digests(checkpoint="c", harness="h", job="j", data="d"),
    receipt=Receipt(verdict="undisturbed", reasons=("r",), windows=({"doing": "ship"},), limits=("l",)),
    source={"commit": "1"},
    origin="train:/c",
    file="r.json",
    ended_at="2026-01-01T00:00:00Z",
    folder=Path("/x"),
)


def test_a_result_comes_back_as_it_went_in(tmp_path: Path) -> None:
    with Ledger(tmp_path) as ledger:
        ledger.add(RESULT)
    with Ledger(tmp_path) as ledger:
        assert ledger.open("box", "7-abc") == replace(RESULT, folder=ledger.folder_of("box", "7-abc"))
        assert ledger.entries("dflash") == [entry_of(RESULT)]
        assert ledger.entries("other") == [] and ledger.find("box", "8") is None


def test_results_come_by_step_and_the_same_run_only_once(tmp_path: Path) -> None:
    with Ledger(tmp_path) as ledger:
        for result in (replace(RESULT, id="9", step=9), RESULT, replace(RESULT, verdict="worse")):
            ledger.add(result)
        assert [(row.step, row.verdict) for row in ledger.entries()] == [(7, "worse"), (9, None)]


def test_the_newest_of_each_curve_can_be_asked_for_alone(tmp_path: Path) -> None:
    with Ledger(tmp_path) as ledger:
        for run in ("a", "b"):
            for step in range(5):
                ledger.add(replace(RESULT, run=run, id=f"{step}-{run}", step=step))
        assert [(row.run, row.step) for row in ledger.entries(last=2)] == [("a", 3), ("a", 4), ("b", 3), ("b", 4)]
        assert [step for step, _ in ledger.curves("a")[RESULT.run.replace("dflash", "a"), "train:/c", "j", "tau"]] == [
            *range(5)
        ]


def test_the_beginning_of_an_id_finds_its_run_and_the_whole_id_that_one_alone(tmp_path: Path) -> None:
    with Ledger(tmp_path) as ledger:
        for run_id in ("7-abc", "7-abc-2", "8%"):
            ledger.add(replace(RESULT, id=run_id))
        assert [row.id for row in ledger.with_prefix("7-a")] == ["7-abc", "7-abc-2"]
        assert [row.id for row in ledger.with_prefix("7-abc")] == ["7-abc"]
        assert ledger.with_prefix("%") == []


def test_a_state_folder_that_was_moved_is_read_where_it_is(tmp_path: Path) -> None:
    with Ledger(tmp_path / "old") as ledger:
        ledger.add(RESULT)
    (tmp_path / "old").rename(tmp_path / "new")
    with Ledger(tmp_path / "new") as ledger:
        assert ledger.open("box", "7-abc").folder == tmp_path / "new" / "runs" / "box" / "7-abc"


def test_small_files_are_kept_whole_beside_the_index(tmp_path: Path) -> None:
    with Ledger(tmp_path) as ledger:
        folder = ledger.keep_files("box", "7-abc", {"exit.json": b"{}", "log.tail": b"end"})
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {"exit.json": b"{}", "log.tail": b"end"}


def test_a_result_may_lie_in_a_folder(tmp_path: Path) -> None:
    with Ledger(tmp_path) as ledger:
        folder = ledger.keep_files("box", "7-abc", {"out/deep/r.json": b"{}"})
    assert (folder / "out" / "deep" / "r.json").read_bytes() == b"{}"


def test_a_state_folder_that_can_not_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OrchError, match="can't keep") as caught:
        Ledger(tmp_path / "file" / "state")
    assert "ORCH_HOME" in caught.value.hint


@pytest.mark.parametrize("name", ["../escape", "/a", "a//b", "a/../../b", "..", "", "nul\0"])
def test_a_name_from_a_host_never_leaves_the_runs_folder(tmp_path: Path, name: str) -> None:
    with Ledger(tmp_path) as ledger, pytest.raises(OrchError, match="not a file name"):
        ledger.keep_files("box", "7-abc", {name: b"x"})
    with Ledger(tmp_path) as ledger, pytest.raises(OrchError, match="not a file name"):
        ledger.keep_files("box", name, {"x": b"x"})


def test_a_ledger_of_a_newer_orch_is_a_clear_error(tmp_path: Path) -> None:
    with Ledger(tmp_path):
        pass
    with sqlite3.connect(tmp_path / "ledger.sqlite3") as index:
        index.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    index.close()
    with pytest.raises(OrchError, match="newer orch"):
        Ledger(tmp_path)


def test_what_is_no_database_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "ledger.sqlite3").write_bytes(b"not a database at all, " * 50)
    with pytest.raises(OrchError, match="can't be read"):
        Ledger(tmp_path)


def test_the_state_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("ORCH_HOME", raising=False)
    assert state_folder() == tmp_path / "orch"
    monkeypatch.setenv("ORCH_HOME", str(tmp_path / "own"))
    assert state_folder() == tmp_path / "own"


@pytest.mark.parametrize("damage", ["PRAGMA user_version = -1", "UPDATE results SET job = CAST(x'ff' AS TEXT)"])
def test_a_damaged_index_is_said_with_what_makes_it_anew(tmp_path: Path, damage: str) -> None:
    with Ledger(tmp_path) as ledger:
        ledger.add(RESULT)
    index = sqlite3.connect(tmp_path / "ledger.sqlite3")
    with index:
        index.execute(damage)
    index.close()
    with pytest.raises(OrchError, match="can't be read") as caught, Ledger(tmp_path) as ledger:
        ledger.entries()
    assert "ledger rebuild" in caught.value.hint
