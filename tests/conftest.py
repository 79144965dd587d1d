"""Fixtures that several folders of tests share."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE / "story"), str(HERE / "unit" / "checkpoints")]
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it, and so would children

os.environ.pop("COLUMNS", None)  # pytest-xdist's, 80: commands that tests type would fold their tables


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A trained target, cached hidden states and a baseline, made once (see story/world.py)."""
    from world import World

    return World.make(tmp_path_factory.mktemp("world"))
