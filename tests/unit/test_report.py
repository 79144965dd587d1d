"""The report without a browser: drawings of any numbers, the note in Markdown, the file, what is said and left out."""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import made_up
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_results import answer, orch

from orchestrator.actions.ledger import Ledger
from orchestrator.reports import plot
from orchestrator.reports.curve import sparkline
from orchestrator.reports.page import page
from orchestrator.workflows.report import report

numbers = st.floats(-1e12, 1e12)


@given(st.lists(numbers, max_size=20))
def test_a_domain_holds_its_values_and_its_ticks_are_round_and_few(values: list[float]) -> None:
    low, high = plot.padded(values)
    assert low < high and all(low <= value <= high for value in values)
    found = plot.ticks((low, high), 5)
    assert len(found) <= 9 and all(plot.tick_label(tick, plot._gap(found)) for tick in found)


def test_ticks_are_what_a_person_would_choose() -> None:
    assert plot.ticks((1.48, 3.7), 5) == [1.5, 2.0, 2.5, 3.0, 3.5]
    assert [plot.tick_label(tick, 20000) for tick in plot.ticks((0, 100_000), 6)] == [
        *("0", "20k", "40k", "60k", "80k", "100k")
    ]


@given(st.lists(numbers, min_size=1, max_size=200))
def test_a_sparkline_is_as_long_as_its_values_up_to_its_width(values: list[float]) -> None:
    assert len(sparkline(values, 60)) == min(60, len(values))


def test_a_sparkline_shows_the_largest_numbers_that_there_are() -> None:
    assert sparkline([-1.7e308, 1.7e308, 1.7e308]) == "▁██"
    assert sparkline([1.7e308] * 4, 2) == "▄▄" and sparkline([1.0, math.inf, 2.0]) == "▁█"


@pytest.mark.parametrize("values", [(1e308, -1e308), (5e-324, 0.0), (3.0, 3.0), (-1e300,), (1e11, 1e-11)])
@pytest.mark.parametrize("steps", [(0, 2**63 - 1), (7, 7)])
def test_any_numbers_of_a_result_can_be_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: tuple[float, ...], steps: tuple[int, int]
) -> None:
    with Ledger(tmp_path) as ledger:
        for index, (value, step) in enumerate(zip(values, steps, strict=False)):
            files = made_up.result_files(500, 3.0, made_up.SCRIPTS, prompts=3, seed=index)
            spec, result = json.loads(files["spec.json"]), json.loads(files[made_up.RULE.file])
            spec.update(step=step, id=f"{index}-x")
            result["acceptance_length"]["walk_macro"] = value
            result["prompts"][0]["acceptance_length"] = value
            result["positions"] = [{"k": 1, "survival": value}, {"k": 2**80, "survival": 1}, {"k": "1"}, 7, {"k": True}]
            result["ddtree"] = {"16": {"walk_macro": value}, "x": 1, "64": 3, "9" * 99: {"walk_macro": 1.0}}
            result["baseline"] = {"acceptance_length": {"walk_macro": -value}, "positions": 3, "ddtree": []}
            files.update({"spec.json": json.dumps(spec).encode(), made_up.RULE.file: json.dumps(result).encode()})
            made_up.add(ledger, files)
    monkeypatch.setenv("ORCH_HOME", str(tmp_path))
    text = page(report(None, None))
    for drawing in re.findall(r"<svg.*?</svg>", text):
        ElementTree.fromstring(drawing)
        assert not re.search(r"\b(nan|inf)\b", drawing)
    parsed: Any = json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])  # type: ignore[index]
    assert len(parsed["points"]) == len(values)
    assert all(math.isfinite(point["value"]) for point in parsed["points"])


@pytest.fixture
def home(tmp_path: Path) -> Path:
    made_up.fill_run(tmp_path / "state", 6, change_at=0.34)
    return tmp_path / "state"


def test_the_report_is_written_whole_under_the_run_s_name(home: Path) -> None:
    document = answer(home, "report")
    file = Path(document["file"])
    assert file == home.parent / "dflash-report.html" and file.stat().st_size == document["bytes"]
    assert document["results"] == 6
    assert [path.name for path in home.parent.iterdir() if path.name.startswith(".")] == []
    assert orch(home, "report", "dflash", "--out", "no/such/folder/x.html").returncode == 2


def test_the_note_says_the_same_in_markdown(home: Path) -> None:
    note = orch(home, "report", "--markdown").stdout
    assert note.startswith("# dflash: acceptance\\_length.walk\\_macro\n")
    latest = answer(home, "results")["results"][-1]
    assert f"Step 3000: **{latest['headline']['value']:.3f} [" in note
    assert note.count("(not comparable)") == 3 and "eval\\_drafter.py modified" in note
    assert answer(home, "report", "--markdown")["markdown"].startswith("# dflash")
    assert orch(home, "report", "--markdown", "--out", "note.md").stdout.startswith("note.md: 6 results")
    assert (home.parent / "note.md").read_text().startswith("# dflash")


def test_several_runs_must_be_told_apart_and_one_without_results_is_said(home: Path) -> None:
    made_up.fill_index(home, 4, 2)
    error = answer(home, "report", code=2)["error"]
    assert "run-0" in error["message"] and "orch report RUN" in error["hint"]
    assert "run-1" in answer(home, "report", "nothing", code=2)["error"]["hint"]
    lost = answer(home, "report", "run-1")
    assert lost["results"] == 2 and "has no result any more" in lost["warnings"][0]


def test_what_can_not_be_compared_is_said_to_be_left_out(tmp_path: Path) -> None:
    with Ledger(tmp_path / "state") as ledger:
        files = made_up.result_files(500, 3.0, made_up.SCRIPTS, prompts=3, seed=1)
        files[made_up.RULE.file] = b'{"acceptance_length": {"walk_macro": 3.0}}'
        made_up.add(ledger, files)
    note = orch(tmp_path / "state", "report", "--markdown").stdout
    assert "Intervals and paired differences" in note and "The baseline: the result files hold none" in note
