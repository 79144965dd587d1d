"""The readers of checkpoints under a coverage-guided fuzzer, for a bounded time: no crash, no hang, no growth."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

SECONDS = 20
MEMORY_MB = 512
"""of the whole process; the fuzzer itself takes about 100"""
SCRIPT = Path(__file__).with_name("read_checkpoints.py")
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(
        importlib.util.find_spec("atheris") is None, reason="atheris is not installed: no wheel of it for this Python"
    ),
]


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For each target some sound inputs to begin with."""
    folder = tmp_path_factory.mktemp("corpora")
    for target in ("archive", "pickle", "file", "packed"):
        (folder / target).mkdir()
    tied = torch.ones(2, 2)
    small = {"model": {"a": tied, "b": tied, "v": torch.arange(4)[1:3]}, "step": 3, "args": {"lr": 1e-3}}
    contents = {"small": small, "module": {"state_dict": {"module.w": torch.zeros(4, dtype=torch.bfloat16)}}}
    for name, content in contents.items():
        path = folder / "file" / name
        torch.save(content, path)
        torch.save(content, folder / "file" / f"{name}-legacy", _use_new_zipfile_serialization=False)
        shutil.copy(path, folder / "archive" / name)
        with zipfile.ZipFile(path) as archive:
            (pickled,) = (each for each in archive.namelist() if each.endswith("/data.pkl"))
            for target in ("pickle", "packed"):
                (folder / target / name).write_bytes(archive.read(pickled))
    return folder


@pytest.mark.parametrize("target", ["archive", "pickle", "file", "packed"])
def test_a_reader_survives_whatever_a_fuzzer_makes_up(corpora: Path, tmp_path: Path, target: str) -> None:
    limits = [
        f"-max_total_time={SECONDS}",
        f"-rss_limit_mb={MEMORY_MB}",
        "-timeout=10",
        "-max_len=8192",
        "-len_control=0",
    ]
    words = [target, str(corpora / target), *limits, "-print_final_stats=1", f"-artifact_prefix={tmp_path}/"]
    done = subprocess.run([sys.executable, str(SCRIPT), *words], capture_output=True, text=True, env=os.environ)
    said = done.stdout + done.stderr
    found = [path.read_bytes()[:4000] for path in tmp_path.iterdir()]
    assert done.returncode == 0 and not found, f"{said[-4000:]}\n{found}"
    runs = int(re.findall(r"number_of_executed_units: (\d+)", said)[0])
    covered = [int(count) for count in re.findall(r" cov: (\d+)", said)]
    assert runs > 1000 and covered[-1] > covered[0] > 0, said[-2000:]
