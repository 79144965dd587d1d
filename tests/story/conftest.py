"""Fixtures of the story tests; `world` says what they are."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from world import Stage, World, end, local_stage


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Trained and extracted once."""
    return World.make(tmp_path_factory.mktemp("world"))


@pytest.fixture
def stage(world: World, tmp_path: Path) -> Iterator[Stage]:
    """Two local boxes; no training lives yet."""
    started: list[subprocess.Popen[bytes]] = []
    yield local_stage(world, tmp_path, started)
    end(started)
