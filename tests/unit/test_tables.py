"""What people read: the list of commands, what cleaning did, and long lists of steps."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

import click
import pytest
from rich.console import Console

from orchestrator.cli import commands
from orchestrator.model import Digests, Run, Staged
from orchestrator.reports import tables


def printed(thing: Any) -> str:
    console = Console(width=200)
    with console.capture() as captured:
        console.print(thing)
    return captured.get()


def staged(step: int, why: str) -> Staged:
    kept: dict[str, Any] = {"removed": not why, "why": why}
    where: dict[str, Any] = {"host": "eval", "path": "p", "source": "train:/c", "staged_at": None, "whole": True}
    return Staged(identity=f"{step}", step=step, bytes=1, used_by=(), **where, **kept)


def evaluation_lines(unevaluated: Iterable[int], **more: Any) -> dict[str, str]:
    known: dict[str, Any] = {"harness": "in_sync", "harness_why": "", "evaluations": (), "results": {}, "unproven": 0}
    known["unread"] = frozenset()
    row = SimpleNamespace(**{**known, **more}, unevaluated=tuple(unevaluated), remote_folder=())
    return dict(tables._evaluation_lines(cast(Any, row)))


def test_no_command_is_cut_in_the_list_of_commands() -> None:
    context = click.Context(commands)
    for name in commands.list_commands(context):
        command = commands.get_command(context, name)
        assert command is not None
        assert not command.get_short_help_str(limit=80 - 6 - len("sync-harness")).endswith("..."), name


@pytest.mark.parametrize("word", ["removed", "would go"])
def test_cleaning_says_what_went_and_why_the_rest_stays(word: str) -> None:
    told = printed(tables.staged_table([staged(2, "one of the newest"), staged(1, "")], cleaned=word)).splitlines()
    assert told[0].split()[-1] == "outcome"
    assert told[1].strip().endswith("kept: one of the newest") and told[2].strip().endswith(word)


def test_of_many_steps_to_evaluate_the_newest_are_shown() -> None:
    assert evaluation_lines([100, 200])["to evaluate"] == "step 100, 200"
    told = evaluation_lines(range(1, 151))["to evaluate"]
    assert told.startswith("step 131, 132") and told.endswith("149, 150 and 130 older")


def test_steps_that_were_not_looked_into_do_not_vanish() -> None:
    assert evaluation_lines([100], unproven=7)["to evaluate"] == "step 100 and 7 older not looked into"
    assert evaluation_lines([], unproven=7)["to evaluate"] == "7 older not looked into"
    assert evaluation_lines(range(1, 22), unproven=7)["to evaluate"].endswith(
        "21 and 1 older and 7 older not looked into"
    )
    assert "to evaluate" not in evaluation_lines([])


def test_evaluations_that_are_left_out_are_counted() -> None:
    digests = Digests(checkpoint="c", harness="h", job="j", data="d")
    known: dict[str, Any] = {"host": "box", "run": "r", "job": "j", "state": "succeeded", "digests": digests}
    runs = [Run(id=f"{step}-x", step=step, **known) for step in range(7)]
    assert evaluation_lines([], evaluations=runs)[""] == "and 2 earlier: orch runs"
    assert "" not in evaluation_lines([], evaluations=runs[:5])


def test_an_unknown_harness_comes_with_its_reason() -> None:
    told = evaluation_lines([], harness="unknown", harness_why="not looked at: box did not answer")
    assert told["harness"] == "unknown: not looked at: box did not answer"
