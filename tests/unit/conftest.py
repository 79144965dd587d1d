"""Unit tests keep what orch remembers in a folder of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from syncing import Project, synced_project


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where settings are remembered, in place of the user's."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    """A project whose harness was synced once to a folder that stands for a host."""
    with synced_project(tmp_path) as built:
        yield built
