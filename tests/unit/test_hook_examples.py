"""The examples of docs/hooks.md, as they stand there: run on a new result as orch runs them, and read back."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import made_up
import pytest
import yaml

from orchestrator.actions.ledger import Ledger
from orchestrator.commands.passing_on import pass_on
from orchestrator.model import Result, Run

TEXT = (Path(__file__).parents[2] / "docs" / "hooks.md").read_text(encoding="utf-8")
SHELL = re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL)
PYTHON = {"wandb": 0, "mlflow": 1}
INSTALLED = {"wandb": "wandb", "mlflow": "mlflow-skinny"}
needs_curl = pytest.mark.skipif(not (shutil.which("curl") and shutil.which("jq")), reason="needs curl and jq")


def python_example(package: str) -> str:
    """The example that uses this package."""
    return str(re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)[PYTHON[package]])


class Desk:
    """A home with a config.yaml, a new result in its ledger, and an HTTP server that keeps what it is told."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.heard: list[tuple[str, Any]] = []
        self.status = 200
        self.result = self._measured()
        desk = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                desk.heard.append((str(self.headers["Content-Type"]), json.loads(body)))
                self.send_response(desk.status)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                """Not to stderr."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}/hook"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def _measured(self) -> Result:
        with Ledger(self.home / "state") as ledger:
            files = made_up.result_files(4000, 3.2, made_up.SCRIPTS, prompts=6, seed=1)
            return made_up.add(ledger, files)

    def passed_on(self, *hook: str) -> tuple[str, ...]:
        """Tell the hook of the result as `orch eval-latest` does; what went wrong."""
        own = self.home / ".config" / "orch" / "config.yaml"
        own.parent.mkdir(parents=True, exist_ok=True)
        own.write_text(json.dumps({"hooks": {"result": list(hook), "timeout": "120s"}}))
        own.chmod(0o600)
        return pass_on(self.run, self.result)

    @property
    def run(self) -> Run:
        one = self.result
        return Run(
            **{"id": one.id, "job": one.job, "host": one.host, "run": one.run, "step": one.step},
            state="succeeded",
            exit_code=0,
            digests=one.digests,
        )

    def program(self, text: str, python: str = "") -> str:
        """A file of the user's; `python` is what their `python3` is."""
        file = self.home / "result-hook"
        file.write_text(text.replace("#!/usr/bin/env python3", f"#!{python}", 1) if python else text)
        file.chmod(0o700)
        return str(file)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / ".config"))
    monkeypatch.setenv("ORCH_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    made = Desk(tmp_path)
    yield made
    made.server.shutdown()
    made.server.server_close()


@needs_curl
def test_the_webhook_gets_the_document(desk: Desk) -> None:
    (written,) = (block for block in re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL) if "curl" in block)
    hook = yaml.safe_load(written.replace("https://example.org/orch", desk.address))["hooks"]["result"]
    assert desk.passed_on(*hook) == ()
    ((kind, document),) = desk.heard
    assert kind == "application/json" and document["command"] == "result" and document["step"] == 4000
    assert document["result"]["headline"]["value"] == desk.result.headline.value  # type: ignore[union-attr]
    assert Path(document["result"]["file"]).is_file()
    desk.status = 500
    (problem,) = desk.passed_on(*hook)
    assert "exit 22" in problem and "500" in problem


@needs_curl
def test_slack_gets_a_line_and_without_its_address_the_warning_says_so(desk: Desk) -> None:
    hook = desk.program(SHELL[0])
    (problem,) = desk.passed_on(hook)
    assert "slack-webhook: No such file" in problem and not desk.heard
    (desk.home / ".config" / "orch" / "slack-webhook").write_text(desk.address + "\n")
    assert desk.passed_on(hook) == ()
    ((_, told),) = desk.heard
    assert re.fullmatch(
        r"step 4000 of dflash: acceptance_length.walk_macro 3\.\d+ \(\w+\), training undisturbed", told["text"]
    )


@pytest.mark.parametrize("package", PYTHON)
def test_without_its_package_an_example_says_which(desk: Desk, package: str) -> None:
    hook = desk.program(python_example(package), f"{sys.executable} -I")
    code = f"import sys; sys.modules[{package!r}] = None; exec(open({hook!r}).read())"
    (problem,) = desk.passed_on(sys.executable, "-c", code)
    assert f"import of {package} halted" in problem or f"No module named '{package}'" in problem


def installed(package: str, folder: Path) -> str:
    """The python of a throw-away environment that has the package; skips where pip can't get it."""
    python = folder / "bin" / "python"
    for command in ([sys.executable, "-m", "venv", str(folder)], [str(python), "-m", "pip", "install", "-q", package]):
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if done.returncode:
            pytest.skip(f"{shlex.join(command)}: {(done.stderr or done.stdout).strip()[-300:]}")
    return str(python)


@pytest.mark.full
def test_weights_and_biases_keeps_each_result_of_a_job_in_one_run(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    hook = desk.program(python_example("wandb"), installed(INSTALLED["wandb"], desk.home / "venv"))
    assert desk.passed_on(hook) == ()
    (kept,) = (desk.home / "wandb").glob("offline-run-*-orch-dflash-eval-dflash/*.wandb")
    content = kept.read_bytes()
    headline = desk.result.headline
    assert headline is not None
    for name, value in (("eval/value", headline.value), ("eval/low", headline.low), ("checkpoint_step", 4000)):
        assert name.encode() in content and json.dumps(value).encode() in content, name


@pytest.mark.full
def test_mlflow_holds_a_result_once(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (desk.home / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    python = installed(INSTALLED["mlflow"], desk.home / "venv")
    hook = desk.program(python_example("mlflow"), python)
    assert desk.passed_on(hook) == () and desk.passed_on(hook) == ()
    code = """
import json, mlflow
client = mlflow.MlflowClient()
places = [one.experiment_id for one in client.search_experiments() if one.name == "orch-dflash-eval-dflash"]
rows = [(run.info.run_name, run.data.metrics, run.data.params) for run in client.search_runs(places)]
print(json.dumps(rows))
"""
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    ((name, metrics, params),) = json.loads(done.stdout.splitlines()[-1])
    headline = desk.result.headline
    assert headline is not None and name == "step 4000"
    assert metrics == {"value": headline.value, "low": headline.low, "high": headline.high}
    assert params["step"] == "4000" and params["checkpoint"] == desk.result.digests.checkpoint
