"""What stands in the way of an evaluation, told before anything is synced or shipped."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from orchestrator import config
from orchestrator.errors import ConfigError, Refused
from orchestrator.needs import needs_of, unknown_options
from orchestrator.reports.documents import preflight_body
from orchestrator.reports.envelope import document
from orchestrator.reports.schema import document_schema
from orchestrator.reports.tables import preflight_table
from orchestrator.ssh.choose import Connections
from orchestrator.workflows.preflight import PreflightReport, preflight_job, refuse_what_does_not_fit
from orchestrator.workflows.sync_harness import compared, sync

ROOT = Path(__file__).parent.parent.parent
DRAFTER = ROOT / "tests" / "data" / "drafter"
HARNESS = ROOT / "remote_payload" / "harness"
EVAL = """\
import argparse
import os
import helper
parser = argparse.ArgumentParser()
parser.add_argument("--drafter")
parser.add_argument("--out")
if __name__ == "__main__":
    parser.parse_args()
"""
CHECKER = """\
import json, sys
told = json.load(sys.stdin)
print(sorted(told["tensors"]), sys.argv[1:])
sys.exit(2 if "bad.weight" in told["tensors"] else 0)
"""
JOB = """\
harness: {{local: harness, remote: ~/eval}}
command: ["{{python}}", eval.py, --drafter, "{{checkpoint}}", {more} --out, "{{result}}"]
{rest}
"""


@dataclass
class Project:
    folder: Path
    connections: Connections

    @property
    def harness(self) -> Path:
        return self.folder / "harness"

    @property
    def host(self) -> Path:
        return self.folder / "host"

    @property
    def inventory(self) -> config.Inventory:
        return config.load_inventory(self.folder / "hosts.yaml")

    def job(self, more: str = "", rest: str = "") -> None:
        (self.folder / "jobs").mkdir(exist_ok=True)
        (self.folder / "jobs/job.yaml").write_text(JOB.format(more=more, rest=rest))

    def save(self, tensors: dict[str, list[int]]) -> None:
        """A checkpoint on the training box."""
        import torch

        folder = self.folder / "train" / "checkpoints" / "step_1"
        folder.mkdir(parents=True, exist_ok=True)
        model = {name: torch.zeros(shape) for name, shape in tensors.items()}
        torch.save({"model": model, "step": 1}, folder / "checkpoint.pt")

    def preflight(self) -> PreflightReport:
        report = preflight_job(self.inventory, None, None, None, self.connections)
        body = document("preflight", preflight_body(report))
        jsonschema.validate(json.loads(json.dumps(body)), document_schema("preflight"))
        assert preflight_table(report)
        assert not (self.host / "orch/preflight").exists(), "nothing is left of the trial"
        return report

    def check(self, name: str) -> tuple[str, str]:
        (found,) = [check for check in self.preflight().checks if check.name == name]
        return found.state, found.detail


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    box = f"transport: local, python: {sys.executable}"
    hosts = (
        f"eval: {{roles: [eval], root: {tmp_path}/host, {box}}}\n  train: {{roles: [train], root: {tmp_path}, {box}}}"
    )
    run = f"dflash: {{host: train, checkpoints: {tmp_path}/train/checkpoints, job: job}}"
    (tmp_path / "hosts.yaml").write_text(f"hosts:\n  {hosts}\nruns:\n  {run}\n")
    (tmp_path / "host").mkdir()
    (tmp_path / "harness").mkdir()
    (tmp_path / "harness/eval.py").write_text(EVAL)
    (tmp_path / "harness/helper.py").write_text("import click\n")
    with Connections(config.load_inventory(tmp_path / "hosts.yaml").timeouts) as connections:
        built = Project(folder=tmp_path, connections=connections)
        built.job()
        built.save({"good.weight": [2, 3]})
        yield built


def test_a_job_that_would_run_passes_and_nothing_is_left_on_the_host(project: Project) -> None:
    report = project.preflight()
    states = {check.name: check.state for check in report.checks}
    assert report.failed == () and states["checkpoint"] == states["options"] == states["disk"] == "ok"
    assert states["import click"] == "ok" and "import os" not in states and "import helper" not in states
    assert states["tensors"] == "skipped", "this harness has nobody to ask"
    assert not (project.host / "eval").exists()


def test_a_package_that_the_interpreter_lacks_is_named(project: Project) -> None:
    (project.harness / "helper.py").write_text("import no_such_package.part\n")
    state, detail = project.check("import no_such_package")
    assert state == "fail" and "No module named 'no_such_package'" in detail


def test_a_package_that_breaks_on_import_is_told_with_its_error(project: Project) -> None:
    (project.host / "broken").mkdir()
    (project.host / "broken/breaks.py").write_text("raise RuntimeError('wrong glibc')\n")
    (project.harness / "helper.py").write_text("import breaks\n")
    project.job(rest=f"env: {{PYTHONPATH: {project.host}/broken}}")
    assert project.check("import breaks") == ("fail", "RuntimeError: wrong glibc")


def test_an_option_that_the_program_does_not_know_is_named(project: Project) -> None:
    project.job(more="--budgets=16,")
    state, detail = project.check("options")
    assert state == "fail" and "does not know --budgets" in detail


def test_a_program_that_can_t_even_show_its_help_says_why(project: Project) -> None:
    (project.harness / "eval.py").write_text("import argparse\nraise SystemExit('no licence')\n")
    state, detail = project.check("options")
    assert state == "fail" and "no licence" in detail


def test_a_program_that_the_harness_lacks_is_named_with_the_one_that_is_meant(project: Project) -> None:
    (project.harness / "eval.py").rename(project.harness / "eval_.py")
    assert project.check("program") == ("fail", "eval.py is not in the harness; did you mean eval_.py?")


def test_a_program_without_options_is_not_started(project: Project) -> None:
    (project.harness / "eval.py").write_text(f"open({str(project.folder / 'ran')!r}, 'w')\n")
    assert project.check("options")[0] == "skipped" and not (project.folder / "ran").exists()


def test_the_harness_s_own_check_sees_the_tensors_before_they_are_shipped(project: Project) -> None:
    (project.harness / "check_tensors.py").write_text(CHECKER)
    state, detail = project.check("tensors")
    assert state == "ok" and "['good.weight']" in detail and "--drafter" in detail
    project.save({"bad.weight": [1]})
    assert project.check("tensors")[0] == "fail"
    assert not (project.host / "orch/checkpoints").exists()


def test_what_does_not_fit_is_refused_after_the_sync_and_before_the_shipment(project: Project) -> None:
    (project.harness / "check_tensors.py").write_text(CHECKER)
    project.save({"bad.weight": [1]})
    with compared(project.inventory, None, None, project.connections) as report:
        sync(report, lambda drift, diffs: True)  # type: ignore[arg-type]
    from orchestrator.workflows.scene import Options, observe

    scene = observe(project.inventory, Options(), project.connections)
    with pytest.raises(Refused, match=r"tensors: step 1: .*bad\.weight.*nothing was shipped"):
        refuse_what_does_not_fit(scene, project.connections)
    assert not list(project.host.rglob("__pycache__"))


@pytest.mark.parametrize(
    ("rest", "name", "said"),
    [
        ("data: {cache: /no/such}", "data.cache", "/no/such is not there"),
        ("server: http://127.0.0.1:9", "server", "refused"),
        ("limits: {memory: 900TiB}", "memory", "asked for"),
    ],
)
def test_what_the_host_lacks_is_named(project: Project, rest: str, name: str, said: str) -> None:
    project.job(rest=rest)
    state, detail = project.check(name)
    assert state == "fail" and said in detail


def test_an_edit_on_the_host_is_told_too(project: Project) -> None:
    (project.host / "eval").mkdir()
    (project.host / "eval/eval.py").write_text("edited")
    assert project.check("harness")[0] == "fail"


def test_no_checkpoint_is_a_failure_with_the_command_to_type(project: Project) -> None:
    (project.folder / "train/checkpoints/step_1/checkpoint.pt").unlink()
    failed = project.preflight().failed
    assert [check.name for check in failed] == ["checkpoint"] and "orch checkpoints" in failed[0].hint


# -- pure parts -------------------------------------------------------------------------------------------------


def test_needs_are_what_the_program_can_t_do_without(tmp_path: Path) -> None:
    sources = {
        "eval.py": b"import json, torch.nn\nfrom lib import util\ntry:\n    import flash\nexcept OSError:\n    pass\n",
        "lib/__init__.py": b"",
        "lib/util.py": b"from . import deep\nimport numpy as np\nimport argparse\n",
        "lib/deep.py": b"from __future__ import annotations\nimport sys\nfrom yaml import safe_load\n",
        "unused.py": b"import jax\n",
    }
    job = _job(["{python}", "eval.py", "--out", "{result}", "--n=3", "--", "-x"])
    found = needs_of(job, sources)
    assert found.packages == ("numpy", "torch", "yaml") and found.answers_help
    assert found.options == ("--out", "--n") and not found.changes_path
    assert needs_of(_job(["{python}", "./eval.py"]), sources).script == "eval.py"
    for elsewhere in (["bash", "run.sh"], ["{python}", "/opt/eval.py"], ["{python}", "-m", "eval"], ["{python}"]):
        found = needs_of(_job(elsewhere), sources)
        assert (found.script, found.missing) == ("", "")


def _job(command: list[str]) -> Any:
    from orchestrator.model import Job

    return Job(name="j", path=Path("j.yaml"), harness_local=Path(), harness_remote="", command=tuple(command))


def test_options_are_found_in_the_help_of_argparse_and_click() -> None:
    told = "usage: x [--out FILE] [--cache=DIR]\n  --no-checks, -n  leave out\n  --fast / --slow\n"
    assert unknown_options(("--out", "--cache", "--no-checks", "--slow", "--oout"), told) == ["--oout"]


# -- the DFlash harness -----------------------------------------------------------------------------------------


def _check_tensors(tensors: dict[str, Any], config_text: str | None, *words: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-B", str(HARNESS / "check_tensors.py"), *words],
        input=json.dumps({"tensors": tensors, "config": config_text}),
        capture_output=True,
        text=True,
    )
    assert done.stderr == "", done.stderr
    return done.returncode, done.stdout


def _listed(folder: str) -> tuple[dict[str, Any], str]:
    from remote_payload.agent.proofs import weights_proof
    from remote_payload.agent.tensorlist import listed
    from remote_payload.agent.tree import Tree

    found = listed(weights_proof(Tree(str(DRAFTER / folder)), ""), None)
    assert found["refused"] == ""
    return found["tensors"], found["config"]


@pytest.mark.parametrize("folder", ["draft_hf", "draft_hf_legacy", "draft_speculators"])
def test_every_drafter_that_the_harness_takes_passes_its_check(folder: str) -> None:
    tensors, settings = _listed(folder)
    assert _check_tensors(tensors, settings)[0] == 0
    assert _check_tensors({f"module.{name}": row for name, row in tensors.items()}, settings)[0] == 0


def test_a_drafter_that_the_harness_refuses_is_refused_with_the_same_words(tmp_path: Path) -> None:
    tensors, settings = _listed("draft_hf")
    shape = tensors["fc.weight"][1]
    wrong = {**tensors, "fc.weight": ["BF16", [shape[0], shape[1] + 1]]}
    status, said = _check_tensors(wrong, settings)
    assert status == 2 and "fc.weight is [" in said and "target_layer_ids names" in said
    status, said = _check_tensors({name: row for name, row in tensors.items() if name != "norm.weight"}, settings)
    assert status == 2 and "missing norm.weight" in said
    status, said = _check_tensors(tensors, None)
    assert status == 2 and "carries no drafter configuration" in said
    (tmp_path / "config.json").write_text(settings)
    assert _check_tensors(tensors, None, "--config", str(tmp_path), "--drafter", "x")[0] == 0
    layers = {"target": {"num_layers": 99, "hidden_size": shape[0]}, "target_layer_ids": []}
    (tmp_path / "manifest.json").write_text(json.dumps(layers))
    assert _check_tensors(tensors, settings, "--cache", str(tmp_path))[0] == 2


def test_a_work_folder_without_execution_is_told_where_the_job_runs_a_file_of_its_own(project: Project) -> None:
    work = project.host / "orch"
    work.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "noexec,size=1m", "tmpfs", str(work)]).returncode:
        pytest.skip("needs root to mount a disk")
    try:
        assert project.check("work folder")[0] == "ok", "python reads its files, and runs none of them"
        job = JOB.format(more="", rest="").replace('"{python}", eval.py', "./run.sh")
        (project.folder / "jobs/job.yaml").write_text(job)
        state, detail = project.check("work folder")
        assert state == "fail" and "noexec" in detail
    finally:
        subprocess.run(["umount", "-l", str(work)], check=True)


def test_a_dead_training_box_does_not_hide_what_the_evaluation_host_says(project: Project) -> None:
    hosts = project.folder / "hosts.yaml"
    hosts.write_text(hosts.read_text().replace(f"{sys.executable}}}\nruns", "/no/python}\nruns"))
    report = project.preflight()
    states = {check.name: check.state for check in report.checks}
    assert report.unreachable is not None and report.unreachable.code == 4
    assert states["checkpoint"] == "fail" and states["import click"] == "ok"


def test_a_run_in_the_place_of_the_job_is_told_what_to_type(project: Project) -> None:
    run = next(iter(project.inventory.runs))
    project.job()
    with pytest.raises(ConfigError, match=f"{run} is a run, and the job comes first") as caught:
        preflight_job(project.inventory, run, None, None, project.connections)
    assert caught.value.hint == f"orch preflight job {run}"
