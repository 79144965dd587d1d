"""Imports point down only, the agent needs nothing but the standard library, and torch never reaches the controller."""

import ast
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
AGENT = ROOT / "remote_payload" / "agent"
# a layer may import itself (but see `actions`) and what stands below it
BELOW = [
    "measured errors clock keeping amounts",
    "records",
    "migrations",
    "model windows",
    "measures",
    "merging needs taken config answers plan receipts routes ssh",
    "actions",
]
LAYERS = [*BELOW, "workflows", "reports", "commands", "cli"]
ORDER = {name: height for height, names in enumerate(LAYERS) for name in names.split()}
BOTH_SIDES = ("wire", "manifest", "errors", "folder", "replace")
SHARED = {"remote_payload", "remote_payload.agent"} | {f"remote_payload.agent.{name}" for name in BOTH_SIDES}


def imports(path: Path) -> set[str]:
    """Full names of all modules and names that a file imports, wherever in the file."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return found


def layer_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def controller_files() -> list[Path]:
    return sorted((ROOT / "orchestrator").rglob("*.py"))


def test_imports_of_the_controller_point_down_only() -> None:
    wrong = []
    for path in controller_files():
        here = layer_of(
            "orchestrator." + path.relative_to(ROOT / "orchestrator").with_suffix("").as_posix().replace("/", ".")
        )
        for name in imports(path):
            there = layer_of(name) if name.startswith("orchestrator.") else ""
            if here in ORDER and there in ORDER and ORDER[there] > ORDER[here]:
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not wrong


def test_the_controller_imports_of_the_payload_only_what_both_sides_share() -> None:
    for path in controller_files():
        foreign = {name for name in imports(path) if name.startswith("remote_payload")}
        allowed = {
            name for name in foreign if name in SHARED or name.rsplit(".", 1)[0] in SHARED - {"remote_payload.agent"}
        }
        assert foreign <= allowed, path


def test_pydantic_stays_at_the_door_and_torch_never_reaches_the_controller() -> None:
    for path in controller_files():
        roots = {name.split(".")[0] for name in imports(path)}
        assert "torch" not in roots, path
        assert "pydantic" not in roots or "config" in path.relative_to(ROOT).parts[1], path


def test_nothing_below_the_cli_prints() -> None:
    for path in controller_files():
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        printing = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print"]
        assert not printing, path


@pytest.mark.parametrize("path", sorted(AGENT.rglob("*.py")), ids=lambda path: path.relative_to(AGENT).as_posix())
def test_the_agent_is_standard_library_and_python_3_8(path: Path) -> None:
    ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 8))
    for name in imports(path):
        root = name.split(".")[0]
        assert root in sys.stdlib_module_names or name.startswith("remote_payload"), f"{path}: {name}"
        assert not name.startswith("remote_payload") or name.startswith("remote_payload.agent"), f"{path}: {name}"


def test_the_payload_never_imports_the_controller() -> None:
    for path in (ROOT / "remote_payload").rglob("*.py"):
        assert not any(name.split(".")[0] == "orchestrator" for name in imports(path)), path


def test_help_imports_nothing_heavy() -> None:
    heavy = "torch paramiko fabric pydantic rich yaml"
    code = f"import sys, orchestrator.cli; print([name for name in {heavy.split()} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert loaded.stdout.strip() == "[]"


def test_help_comes_within_a_quarter_of_a_second() -> None:
    command = [sys.executable, "-c", "from orchestrator.cli import main; main()", "--help"]
    # with compiled modules, as an installed orch has them
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    seconds = []
    for _ in range(8):  # the least of several: the others tell how busy this machine is
        began = time.perf_counter()
        subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
        seconds.append(time.perf_counter() - began)
    assert min(seconds) < 0.25


def test_only_the_launcher_knows_how_a_run_is_started_watched_and_stopped() -> None:
    inner = {f"remote_payload.agent.{name}" for name in ("supervise", "belongings", "turn")}
    knowing = {path.name for path in AGENT.rglob("*.py") if imports(path) & inner}
    assert knowing == {"launcher.py", "supervise.py", "turn.py"}
