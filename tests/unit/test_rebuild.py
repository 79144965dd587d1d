"""`orch ledger rebuild`: from what was brought home, from hosts, and from what every earlier version wrote."""

from __future__ import annotations

import json
import math
import shutil
import sqlite3
import sys
from pathlib import Path

import made_up
import pytest
from test_results import answer, orch

from orchestrator import migrations, records
from orchestrator.actions.ledger import Ledger

OLDER = Path(__file__).parents[1] / "data" / "run_folders"
"""schema-N/HOST/ID: a run folder as the version with that schema left it on the laptop"""


def table(home: Path) -> str:
    """What `orch results` shows."""
    done = orch(home, "results")
    assert done.returncode == 0, done.stderr
    return done.stdout


def project(folder: Path, hosts: str) -> None:
    (folder / "hosts.yaml").write_text(f"hosts:\n{hosts}runs: {{}}\n")


def host(name: str, home: Path, python: str = sys.executable) -> str:
    return f"  {name}: {{roles: [eval], transport: local, root: {home}, python: {python}, workdir: ~/orch}}\n"


def on_host(home: Path, step: int, seed: int) -> str:
    """A finished run in a host's work folder; its id."""
    files = made_up.result_files(step, 3.0, made_up.SCRIPTS, prompts=6, seed=seed)
    run_id = str(json.loads(files["spec.json"])["id"])
    folder = home / "orch" / "runs" / run_id
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return run_id


@pytest.mark.parametrize("damage", ["deleted", "garbage", "empty"])
def test_a_lost_ledger_is_rebuilt_to_the_same_table(tmp_path: Path, damage: str) -> None:
    home = tmp_path / "state"
    made_up.fill_run(home, 5)
    before = table(home)
    file = home / "ledger.sqlite3"
    if damage == "deleted":
        file.unlink()
    elif damage == "garbage":
        file.write_bytes(b"no database at all, " * 100)
        assert orch(home, "results").returncode == 1
    else:
        with sqlite3.connect(file) as index:
            index.execute("DELETE FROM results")
        index.close()
    done = orch(home, "ledger", "rebuild", "--local", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["results"] == 5
    assert table(home) == before
    if damage == "garbage":
        assert (home / "ledger.sqlite3.unreadable").exists()


def test_finished_runs_on_hosts_come_home_and_a_dead_host_is_a_warning(tmp_path: Path) -> None:
    box = tmp_path / "box"
    done, other = on_host(box, 500, 1), on_host(box, 1000, 2)
    (box / "orch" / "runs" / other / "exit.json").write_text('{"schema": 1, "state": "failed", "exit_code": 3}')
    project(tmp_path, host("ct129", box) + host("gone", tmp_path / "nowhere", python="no-such-python"))
    home = tmp_path / "state"
    typed = orch(home, "ledger", "rebuild", "--json")
    assert typed.returncode == 0, typed.stderr
    report = json.loads(typed.stdout)
    assert report["results"] == 1 and {row["id"] for row in report["collected"]} == {done, other}
    assert [row["host"] for row in report["unreachable"]] == ["gone"] and "gone" in report["warnings"][0]
    (row,) = answer(home, "results")["results"]
    assert (row["id"], row["run"], row["receipt"]) == (done, "dflash", "not_observed")
    shutil.rmtree(box)
    box.mkdir()
    again = json.loads(orch(home, "ledger", "rebuild", "--json").stdout)
    assert again["results"] == 1 and again["collected"] == [], "it is here now"


def test_a_result_that_can_not_be_read_is_a_warning_and_hides_no_other(tmp_path: Path) -> None:
    home = tmp_path / "state"
    made_up.fill_run(home, 2)
    folder = next((home / "runs" / "ct129").iterdir())
    (folder / "orch-result.json").unlink()
    (folder / made_up.RULE.file).write_text("[1, 2")
    done = orch(home, "ledger", "rebuild", "--local", "--json")
    report = json.loads(done.stdout)
    assert done.returncode == 0 and report["results"] == 1
    assert any("is not JSON" in warning for warning in report["warnings"])


@pytest.mark.parametrize("file", ["orch-result.json", "spec.json"])
def test_a_run_folder_of_a_newer_orch_is_a_clear_error_and_nothing_is_changed(tmp_path: Path, file: str) -> None:
    home = tmp_path / "state"
    made_up.fill_run(home, 2)
    before = table(home)
    folder = next((home / "runs" / "ct129").iterdir())
    place = folder / file
    place.write_text(json.dumps({**json.loads(place.read_text()), "schema": 99}))
    if file == "spec.json":
        (folder / "orch-result.json").unlink()
    done = orch(home, "ledger", "rebuild", "--local")
    assert done.returncode == 6
    assert "newer orch (schema 99" in done.stderr and "update orch" in done.stderr and folder.name in done.stderr
    assert table(home) == before


@pytest.mark.parametrize("schema", sorted(path.name for path in OLDER.iterdir()))
def test_run_folders_of_every_earlier_schema_stay_readable(tmp_path: Path, schema: str) -> None:
    home = tmp_path / "state"
    shutil.copytree(OLDER / schema, home / "runs")
    done = orch(home, "ledger", "rebuild", "--local", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["warnings"] == [], done.stdout
    (row,) = answer(home, "results")["results"]
    assert row["headline"]["low"] < row["headline"]["value"] < row["headline"]["high"]
    found = answer(home, "compare", "latest")
    assert found["verdict"] == row["verdict"] and found["items"] > 1, "its items are found too"


def test_today_s_schema_is_among_those_that_are_kept() -> None:
    kept = {path.name for path in OLDER.iterdir()}
    assert kept >= {f"schema-{number}" for number in range(1, records.SCHEMA + 1)}


def test_a_run_folder_without_a_rule_is_read_by_the_job_of_its_name(tmp_path: Path) -> None:
    home = tmp_path / "state"
    shutil.copytree(OLDER / "schema-1", home / "runs")
    for file in home.glob("runs/*/*/orch-result.json"):
        file.unlink()
    done = json.loads(orch(home, "ledger", "rebuild", "--local", "--json").stdout)
    assert done["results"] == 0 and "does not say where its headline is" in done["warnings"][0]
    project(tmp_path, host("eval-box", tmp_path))
    (tmp_path / "jobs").mkdir()
    (tmp_path / "harness").mkdir()
    (tmp_path / "jobs" / "eval-dflash.yaml").write_text(
        "harness: {local: harness, remote: ~/eval}\ncommand: [x, '{checkpoint}']\nresult: {file: eval_results.json, "
        "headline: acceptance_length.walk_macro, items: prompts, item_value: acceptance_length}\n"
    )
    done = json.loads(orch(home, "ledger", "rebuild", "--json").stdout)
    assert done["results"] == 1, done
    assert answer(home, "compare", "latest")["items"] > 1


def test_an_index_of_every_earlier_version_is_brought_up_to_date(tmp_path: Path) -> None:
    home = tmp_path / "state"
    shutil.copytree(OLDER / "schema-1", home / "runs")
    (file,) = home.glob("runs/*/*/orch-result.json")
    document = json.loads(file.read_text())
    index = sqlite3.connect(home / "ledger.sqlite3")
    with index:
        migrations.MIGRATIONS[0](index)
        index.execute("PRAGMA user_version = 1")
        row = [document[name] for name in ("id", "run", "host", "step", "ended_at", "folder")]
        index.execute("INSERT INTO results VALUES (?,?,?,?,?,?,?)", (*row, json.dumps(document)))
        row[0], damaged = "damaged", "[" * 10**5
        index.execute("INSERT INTO results VALUES (?,?,?,?,?,?,?)", (*row, damaged))
    index.close()
    with Ledger(home) as ledger:
        (entry,) = ledger.entries()
        assert (entry.id, entry.better, entry.headline_name) == (
            document["id"],
            "higher",
            "acceptance_length.walk_macro",
        )
    rebuilt = table(home)
    (home / "ledger.sqlite3").unlink()
    assert orch(home, "ledger", "rebuild", "--local").returncode == 0
    assert table(home) == rebuilt


def test_an_index_of_the_version_before_keeps_its_lines(tmp_path: Path) -> None:
    made_up.fill_run(tmp_path, 2)
    with Ledger(tmp_path) as ledger:
        lines = ledger.entries()
    (tmp_path / "ledger.sqlite3").unlink()
    index = sqlite3.connect(tmp_path / "ledger.sqlite3")
    with index:
        for migration in migrations.MIGRATIONS[:2]:
            migration(index)
        index.execute("PRAGMA user_version = 2")
        index.executemany(migrations.INSERT, map(migrations.row_of, lines))
    index.close()
    with Ledger(tmp_path) as ledger:
        assert ledger.entries() == lines and len(lines) == 2


def test_a_run_of_which_only_half_came_home_is_brought_again(tmp_path: Path) -> None:
    box, home = tmp_path / "box", tmp_path / "state"
    run_id = on_host(box, 500, 1)
    project(tmp_path, host("ct129", box))
    half = home / "runs" / "ct129" / run_id  # killed while it wrote the files
    half.mkdir(parents=True)
    shutil.copy(box / "orch" / "runs" / run_id / "spec.json", half)
    report = json.loads(orch(home, "ledger", "rebuild", "--json").stdout)
    assert report["results"] == 1 and report["collected"] == [{"host": "ct129", "id": run_id}]


@pytest.mark.parametrize("changed", [{"run": "half \ud800"}, {"id": "../elsewhere"}, {"id": "OTHER"}])
def test_one_damaged_spec_takes_no_other_result_with_it(tmp_path: Path, changed: dict[str, str]) -> None:
    home = tmp_path / "state"
    made_up.fill_run(home, 2)
    before = {row["id"]: row for row in answer(home, "results")["results"]}
    good, bad = sorted((home / "runs" / "ct129").iterdir())
    spec = json.loads((bad / "spec.json").read_text())
    spec.update({name: good.name if value == "OTHER" else value for name, value in changed.items()})
    (bad / "spec.json").write_text(json.dumps(spec))
    (bad / "orch-result.json").unlink()
    done = orch(home, "ledger", "rebuild", "--local", "--json")
    assert done.returncode == 0, done.stderr
    after = {row["id"]: row for row in answer(home, "results")["results"]}
    assert after[good.name] == before[good.name]
    assert bad.name in after if "run" in changed else bad.name in json.loads(done.stdout)["warnings"][0]


@pytest.mark.parametrize(
    "changed",
    [
        {"step": "many"},
        {"step": 2**63},
        {"headline": {"value": math.inf}},
        {"headline": {"value": 10**400}},
        {"headline": {"value": "much"}},
        {"run": None},
        {"digests": {"checkpoint": [], "harness": "h", "job": "j", "data": "d"}},
        {"receipt": {"verdict": "changed", "reasons": [1], "windows": [], "limits": []}},
        {"receipt": {"verdict": "changed", "reasons": [], "windows": [1], "limits": []}},
    ],
)
def test_one_damaged_result_takes_no_other_with_it(tmp_path: Path, changed: dict[str, object]) -> None:
    home = tmp_path / "state"
    made_up.fill_run(home, 2)
    good, bad = sorted((home / "runs" / "ct129").iterdir())
    damaged = json.loads((bad / records.FILE).read_text())
    (bad / records.FILE).write_text(json.dumps({**damaged, **changed}))
    done = orch(home, "ledger", "rebuild", "--local", "--json")
    assert done.returncode == 0, done.stderr
    (warning,) = json.loads(done.stdout)["warnings"]
    assert bad.name in warning and "not a result" in warning
    assert [row["id"] for row in answer(home, "results")["results"]] == [good.name]


def test_a_host_does_not_write_this_computers_own_files(tmp_path: Path) -> None:
    box, home = tmp_path / "box", tmp_path / "state"
    run_id = on_host(box, 500, 1)
    project(tmp_path, host("ct129", box))
    folder = box / "orch" / "runs" / run_id
    spec = json.loads((folder / "spec.json").read_text())
    (folder / "spec.json").write_text(json.dumps({**spec, "result": "orch-result.json"}))
    forged = {"schema": 1, "id": "other", "host": "elsewhere", "step": 1}
    (folder / "orch-result.json").write_text(json.dumps(forged))
    orch(home, "ledger", "rebuild", "--json")
    assert not (home / "runs" / "ct129" / run_id / "orch-result.json").exists()


def test_an_index_damaged_in_the_middle_is_made_anew(tmp_path: Path) -> None:
    home = tmp_path / "state"
    made_up.fill_run(home, 5)
    before, file = table(home), home / "ledger.sqlite3"
    content = file.read_bytes()
    file.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))
    said = orch(home, "results")
    assert said.returncode == 1 and "orch ledger rebuild" in said.stderr and "unexpected" not in said.stderr
    done = orch(home, "ledger", "rebuild", "--local", "--json")
    assert done.returncode == 0 and "ledger.sqlite3.unreadable" in json.loads(done.stdout)["warnings"][0]
    assert table(home) == before


def test_an_index_that_can_not_be_written_is_no_bug_and_stays(tmp_path: Path) -> None:
    home = tmp_path / "state"
    made_up.fill_run(home, 2)
    before = table(home)
    holder = sqlite3.connect(home / "ledger.sqlite3", isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    done = orch(home, "ledger", "rebuild", "--local")
    holder.close()
    assert done.returncode == 6 and "database is locked" in done.stderr and "unexpected" not in done.stderr
    assert table(home) == before and not (home / "ledger.sqlite3.unreadable").exists()
