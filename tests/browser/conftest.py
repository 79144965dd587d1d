"""A browser for the tests of the report: one for all of them. Without one they skip and say so."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import chromium
import pytest

WIDE, PHONE = (1280, 900), (390, 844)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Chromium]:
    """A headless Chromium that this session started."""
    if chromium.where() is None:
        pytest.skip("no Chromium here (Debian and Ubuntu: apt install chromium; scripts/test does it as root)")
    try:
        started = chromium.Chromium(tmp_path_factory.mktemp("browser") / "profile")
    except AssertionError as error:
        pytest.skip(f"{chromium.where()} does not run here: {error}")
    yield started
    started.close()


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Where screenshots go: ORCH_PICTURES keeps them for looking at."""
    folder = Path(os.environ.get("ORCH_PICTURES") or tmp_path / "pictures")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
