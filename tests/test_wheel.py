"""Installed from a wheel, orch works without the checkout: the payload travels inside."""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment with the wheel, on top of this interpreter's packages."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    ignored = shutil.ignore_patterns(".git", ".venv", ".*_cache", "__pycache__", "build", "*.egg-info")
    shutil.copytree(ROOT, source, ignore=ignored)
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(source)]
    subprocess.run(build, check=True, timeout=150)
    environment = folder / "venv"
    venv.create(environment, symlinks=True)
    site = next(environment.glob("lib/python*/site-packages"))
    wheel = next(folder.glob("orch-*.whl"))
    target = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        "--target",
        str(site),
        str(wheel),
    ]
    subprocess.run(target, check=True, timeout=150)
    paths = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (site / "beside.pth").write_text("\n".join(paths))
    return environment / "bin"


def test_the_payload_travels_inside_the_wheel(installed: Path) -> None:
    code = (
        "import remote_payload, pathlib; from orchestrator.ssh import bundle; "
        "root = pathlib.Path(remote_payload.__file__).parent; "
        "print(root); print((root / 'harness/eval_drafter.py').exists()); "
        "print((root / 'harness/prompts/demo.jsonl').exists()); print(len(bundle.preamble()))"
    )
    run = subprocess.run([installed / "python", "-c", code], cwd="/", capture_output=True, text=True, check=True)
    root, harness, prompts, size = run.stdout.split()
    assert root.startswith(str(installed.parent)) and (harness, prompts) == ("True", "True") and int(size) > 10_000


def test_a_wheel_asks_a_host(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    inventory = (
        f"hosts:\n  here: {{roles: [train], transport: local, root: {tmp_path}, python: {sys.executable}}}\n"
        f"runs:\n  r: {{host: here, checkpoints: {tmp_path}/checkpoints}}\n"
    )
    (tmp_path / "hosts.yaml").write_text(inventory)
    code = "from orchestrator.cli import main; main()"
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    run = subprocess.run(
        [installed / "python", "-c", code, "status"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    assert "none complete" in run.stdout


def test_a_wheel_draws_a_report(installed: Path) -> None:
    code = (
        "from importlib import resources; from orchestrator.reports.page import FILES; "
        "print([len(resources.files('orchestrator.reports').joinpath(name).read_text()) > 1000 for name in FILES])"
    )
    run = subprocess.run([installed / "python", "-c", code], cwd="/", capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[True, True]"
