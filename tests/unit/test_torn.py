"""The memory of torn checkpoints: kept, and told clearly where its file is damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.actions import torn
from orchestrator.errors import OrchError
from orchestrator.model import Checkpoint

CHECKPOINT = Checkpoint(
    host="train", root="/c", path="step_7/checkpoint.pt", step=7, bytes=9, ship_bytes=5, identity="abc"
)


def test_a_torn_checkpoint_is_remembered(tmp_path: Path) -> None:
    assert torn.known(tmp_path) == ()
    torn.remember(tmp_path, CHECKPOINT, "torn")
    assert torn.known(tmp_path) == ("abc",)


@pytest.mark.parametrize("content", ["", "[]", "null", "{}", '{"schema": "x"}', '{"schema": 1}', "[" * 99_999])
def test_a_damaged_memory_is_said_with_what_to_do(tmp_path: Path, content: str) -> None:
    (tmp_path / torn.FILE).write_text(content)
    with pytest.raises(OrchError, match="can't be read") as caught:
        torn.known(tmp_path)
    assert "remove it" in caught.value.hint
