"""Fixtures that several folders of tests share."""

import signal
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts what runs in its background without it
sys.path[:0] = [str(HERE), str(HERE / "story")]


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A trained target, cached hidden states and a baseline, made once (see story/world.py)."""
    from world import World

    return World.make(tmp_path_factory.mktemp("world"))
