"""The memory of torn checkpoints: kept, and told clearly where its file is damaged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.actions import torn
from orchestrator.errors import OrchError
from orchestrator.model import Checkpoint, Host, TrainingRun

CHECKPOINT = Checkpoint(
    host="train", root="/c", path="step_7/checkpoint.pt", step=7, bytes=9, ship_bytes=5, identity="abc", stamp="1"
)
HOST = Host(name="train", ssh="train", roles=frozenset({"train"}))
RUN = TrainingRun(name="r", hosts=("train",), checkpoints="/c")


def test_a_torn_checkpoint_is_remembered_with_its_host_place_and_stamp(tmp_path: Path) -> None:
    assert torn.known(tmp_path) == ()
    torn.remember(tmp_path, CHECKPOINT, "torn")
    known = torn.known(tmp_path)
    assert torn.below(known, HOST, RUN) == [{"path": "step_7/checkpoint.pt", "identity": "abc", "stamp": "1"}]
    assert torn.below(known, replace(HOST, name="other"), RUN) == []
    assert torn.below(known, HOST, replace(RUN, checkpoints="/d")) == []


def test_of_a_place_only_the_last_damage_is_remembered(tmp_path: Path) -> None:
    for stamp in ("1", "2"):
        torn.remember(tmp_path, replace(CHECKPOINT, stamp=stamp), "torn")
    torn.remember(tmp_path, replace(CHECKPOINT, path="copy/checkpoint.pt"), "torn")
    assert [(one.path, one.stamp) for one in torn.known(tmp_path)] == [
        ("/c/step_7/checkpoint.pt", "2"),
        ("/c/copy/checkpoint.pt", "1"),
    ]


def test_a_memory_without_stamps_is_read_and_condemns_nothing(tmp_path: Path) -> None:
    old = {"abc": {"host": "train", "path": "/c/step_7/checkpoint.pt", "step": 7, "reason": "torn", "found_at": "t"}}
    (tmp_path / torn.FILE).write_text(json.dumps({"schema": 1, "checkpoints": old}))
    assert torn.known(tmp_path) == ()
    torn.remember(tmp_path, CHECKPOINT, "torn")
    assert len(torn.known(tmp_path)) == 1


@pytest.mark.parametrize(
    "content",
    ["", "[]", "null", "{}", '{"schema": "x"}', '{"schema": 1}', "[" * 99_999, '{"schema": 2, "checkpoints": [{}]}'],
)
def test_a_damaged_memory_is_said_with_what_to_do(tmp_path: Path, content: str) -> None:
    (tmp_path / torn.FILE).write_text(content)
    with pytest.raises(OrchError, match="can't be read") as caught:
        torn.known(tmp_path)
    assert "remove it" in caught.value.hint
