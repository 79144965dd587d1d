"""Fixtures of the story tests; `world` says what they are."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from small import Small, local
from world import Stage, World, end, local_stage


@pytest.fixture
def stage(world: World, tmp_path: Path) -> Iterator[Stage]:
    """Two local boxes; no training lives yet."""
    started: list[subprocess.Popen[bytes]] = []
    yield local_stage(world, tmp_path, started)
    end(started)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Small]:
    """A project whose evaluation is a few lines, with two local boxes; not furnished yet."""
    made = local(tmp_path)
    yield made
    made.close()
