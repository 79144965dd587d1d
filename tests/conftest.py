"""Fixtures that several folders of tests share."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE / "story")]

from world import World


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A trained target, cached hidden states and a baseline, made once."""
    return World.make(tmp_path_factory.mktemp("world"))
