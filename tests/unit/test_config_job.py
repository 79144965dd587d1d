"""jobs/*.yaml: the recipe, what is wrong with one, and which run, job and host a command means."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from orchestrator.config import (
    choose_eval_host,
    choose_job,
    choose_run,
    job_names,
    load_inventory,
    load_job,
)
from orchestrator.errors import ConfigError
from orchestrator.model import Inventory, Limits, ResultRule, ValueSource

REPOSITORY = Path(__file__).parents[2]
GOOD = """\
harness: {local: harness, remote: /root/eval}
command: ["{python}", run.py, "{checkpoint}"]
"""
HOSTS = "hosts: {t: {roles: train}, e: {roles: eval}}\nruns: {r: {host: t, checkpoints: /c}}\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "hosts.yaml").write_text(HOSTS)
    (tmp_path / "harness").mkdir()
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs/j.yaml").write_text(GOOD)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def inventory(project: Path, text: str = HOSTS) -> Inventory:
    (project / "hosts.yaml").write_text(text)
    return load_inventory(project / "hosts.yaml")


def test_the_example_evaluates_a_dflash_drafter():
    job = load_job(load_inventory(REPOSITORY / "hosts.yaml"), "eval-dflash")
    assert job.harness_local == REPOSITORY / "remote_payload/harness"
    assert job.harness_remote == "/root/eval"
    assert job.command[:4] == ("{python}", "eval_drafter.py", "--drafter", "{checkpoint}")
    assert job.data == {"cache": "/root/eval/cached_hidden_states", "baseline": "/root/eval/z-lab"}
    assert (job.ship, job.env) == ("model", {"HF_HUB_OFFLINE": "1"})
    assert job.result == ResultRule(
        headline="acceptance_length.walk_macro", items="prompts", item_id="id", item_value="acceptance_length"
    )
    assert job.limits == Limits(memory=60 * 2**30, wall=6 * 3600.0)


def test_a_job_needs_only_harness_and_command(project):
    job = load_job(inventory(project), "j")
    assert (job.name, job.path, job.harness_local) == ("j", project / "jobs/j.yaml", project / "harness")
    assert (job.ship, job.model_key, job.server, job.result.file) == ("model", None, None, "eval_results.json")


def test_environment_values_stay_text_and_sources_stay_names(project):
    (project / "jobs/j.yaml").write_text(
        GOOD + "env: {A: 1.0, B: yes, C: '', D: {from: env, name: HF_TOKEN}, E: {from: command, name: vault}}\n"
    )
    assert load_job(inventory(project), "j").env == {
        "A": "1.0",
        "B": "yes",
        "C": "",
        "D": ValueSource(kind="env", name="HF_TOKEN"),
        "E": ValueSource(kind="command", name="vault"),
    }


def test_a_payload_folder_that_is_not_beside_the_inventory_comes_from_the_installation(project):
    (project / "jobs/j.yaml").write_text(GOOD.replace("local: harness", "local: remote_payload/harness"))
    assert load_job(inventory(project), "j").harness_local == REPOSITORY / "remote_payload/harness"
    shutil.copytree(project / "harness", project / "remote_payload/harness")
    assert load_job(inventory(project), "j").harness_local == project / "remote_payload/harness"


def test_a_job_may_be_a_path(project, tmp_path_factory, monkeypatch):
    loaded = inventory(project)
    assert load_job(loaded, str(project / "jobs/j.yaml")).name == "j"
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert load_job(loaded, "jobs/j.yaml").name == "j"
    with pytest.raises(ConfigError, match=r"there is no job file 'k\.yaml'"):
        load_job(loaded, "k.yaml")


WRONG = {
    "no harness": (
        "command: [x, '{checkpoint}']\n",
        [
            "jobs/j.yaml:1: harness: missing: The evaluation scripts: where they are here, and where they belong on "
            "the evaluation host."
        ],
    ),
    "half a harness": (
        GOOD.replace("local: harness, ", ""),
        [
            "jobs/j.yaml:1: harness.local: missing: The folder with the evaluation scripts, relative to that of "
            "hosts.yaml."
        ],
    ),
    "a harness that isn't there": (
        GOOD.replace("local: harness", "local: harnes"),
        ["jobs/j.yaml:1: harness.local: expected a folder, found nothing there: '{project}/harnes'"],
    ),
    "a harness that is a file": (
        GOOD.replace("local: harness", "local: hosts.yaml"),
        ["jobs/j.yaml:1: harness.local: expected a folder, found a file: '{project}/hosts.yaml'"],
    ),
    "a payload that climbs out": (
        GOOD.replace("local: harness", "local: remote_payload/../tests"),
        ["jobs/j.yaml:1: harness.local: expected a folder, found nothing there: '{project}/remote_payload/../tests'"],
    ),
    "a harness that would fill the root": (
        GOOD.replace("/root/eval", "/"),
        ["jobs/j.yaml:1: harness.remote: expected a folder of its own, such as /root/eval or ~/orch, found '/'"],
    ),
    "no command": (
        "harness: {local: harness, remote: /root/eval}\n",
        [
            "jobs/j.yaml:1: command: missing: Program and arguments, with {python}, {checkpoint}, {result} and "
            "{data.NAME} filled in."
        ],
    ),
    "a command for a shell": (
        GOOD.replace('["{python}", run.py, "{checkpoint}"]', "python run.py"),
        [
            'jobs/j.yaml:2: command: expected a list such as ["{python}", eval.py, "{checkpoint}"], '
            "found 'python run.py'"
        ],
    ),
    "a misspelt placeholder": (
        GOOD.replace("{checkpoint}", "{chekpoint}"),
        ["jobs/j.yaml:2: command[2]: unknown placeholder {chekpoint}; did you mean 'checkpoint'?"],
    ),
    "data that isn't defined": (
        GOOD.replace("run.py", '"--c={data.cahce}"') + "data: {cache: /c}\n",
        ["jobs/j.yaml:2: command[1]: data has no 'cahce'; did you mean 'cache'?"],
    ),
    "a command without checkpoint": (
        GOOD.replace(', "{checkpoint}"', ""),
        ["jobs/j.yaml:2: command: expected {checkpoint} somewhere: this would evaluate no checkpoint"],
    ),
    "a GPU made visible": (
        GOOD + "env: {CUDA_VISIBLE_DEVICES: 0}\n",
        [
            "jobs/j.yaml:3: env.CUDA_VISIBLE_DEVICES: expected any variable but those that hide the GPUs, which orch "
            "sets itself, found 'CUDA_VISIBLE_DEVICES'"
        ],
    ),
    "a source that there isn't": (
        GOOD + "env: {A: {from: vault, name: x}}\n",
        ["jobs/j.yaml:3: env.A.from: expected env, file or command, found 'vault'"],
    ),
    "a result outside the run": (
        GOOD + "result: {file: ../x.json}\n",
        [
            "jobs/j.yaml:3: result.file: expected a file name in the run folder, such as eval_results.json, "
            "found '../x.json'"
        ],
    ),
    "items without value": (
        GOOD + "result: {items: prompts}\n",
        ["jobs/j.yaml:3: result.item_value: missing: items has no meaning without it"],
    ),
    "a zero limit": (
        GOOD + "limits: {wall: 0}\n",
        ["jobs/j.yaml:3: limits.wall: expected a duration above zero and below ten years, found '0'"],
    ),
    "a server with a password": (
        GOOD + "server: http://u:p@h\n",
        [
            "jobs/j.yaml:3: server: expected a URL like http://127.0.0.1:30000, without user and password, "
            "found 'http://u:p@h'"
        ],
    ),
    "a host in a job": (
        GOOD + "host: ct129\n",
        [
            "jobs/j.yaml:3: host: unknown key; known: harness, command, data, checkpoint, env, result, limits, retries,"
            " server",
        ],
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_job_is_refused_with_line_and_path(project, case):
    text, expected = WRONG[case]
    (project / "jobs/j.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_job(inventory(project), "j")
    assert caught.value.message.split("\n") == [line.replace("{project}", str(project)) for line in expected]


def test_a_job_that_is_not_there_is_named_with_those_that_are(project):
    with pytest.raises(ConfigError) as caught:
        load_job(inventory(project), "jj")
    assert caught.value.message == "no job 'jj': there is no jobs/jj.yaml; did you mean 'j'?"
    assert caught.value.hint == "Jobs beside hosts.yaml: j"
    with pytest.raises(ConfigError, match=r"'\.\./x' names no job: expected a name"):
        load_job(inventory(project), "../x")


def test_a_run_whose_job_is_not_there_is_told_as_such(project):
    loaded = inventory(project, HOSTS.replace("checkpoints: /c", "checkpoints: /c, job: evl"))
    with pytest.raises(ConfigError) as caught:
        choose_job(loaded, loaded.runs["r"], None)
    assert caught.value.message.startswith("hosts.yaml: runs.r.job: no job 'evl': there is no jobs/evl.yaml")


def test_the_job_is_the_flag_then_the_runs_then_the_only_one(project):
    (project / "jobs/k.yaml").write_text(GOOD)
    loaded = inventory(project, HOSTS.replace("checkpoints: /c", "checkpoints: /c, job: k"))
    assert job_names(loaded) == ("j", "k")
    assert choose_job(loaded, loaded.runs["r"], "j").name == "j"
    assert choose_job(loaded, loaded.runs["r"], None).name == "k"
    plain = inventory(project)
    with pytest.raises(ConfigError, match=r"expected one job in jobs/ in hosts.yaml, found 2: j, k"):
        choose_job(plain, plain.runs["r"], None)
    (project / "jobs/k.yaml").unlink()
    assert choose_job(plain, plain.runs["r"], None).name == "j"


def test_a_wrong_job_of_a_run_keeps_its_own_message(project):
    (project / "jobs/j.yaml").write_text("")
    loaded = inventory(project, HOSTS.replace("checkpoints: /c", "checkpoints: /c, job: j"))
    with pytest.raises(ConfigError, match=r"^jobs/j.yaml: the file is empty$"):
        choose_job(loaded, loaded.runs["r"], None)


def test_the_run_is_the_named_or_the_only_one(project):
    loaded = inventory(project)
    assert choose_run(loaded, None).name == choose_run(loaded, "r").name == "r"
    with pytest.raises(ConfigError, match=r"no run 's' in hosts.yaml; known: r") as caught:
        choose_run(loaded, "s")
    assert caught.value.hint == "name one of these: r; or add it below runs:"
    several = inventory(
        project, "hosts: {t: {roles: train}}\nruns: {r: {host: t, checkpoints: /c}, s: {host: t, checkpoints: /d}}\n"
    )
    with pytest.raises(ConfigError, match=r"expected one run in hosts.yaml, found 2: r, s") as caught:
        choose_run(several, None)
    assert caught.value.hint == "Name one: orch COMMAND RUN"
    with pytest.raises(ConfigError, match=r"expected one run in hosts.yaml, found none"):
        choose_run(inventory(project, "hosts: {t: {roles: train}}\n"), None)


def test_the_eval_host_is_the_flag_then_the_runs_then_the_only_one(project):
    hosts = "hosts: {t: {roles: train}, e: {roles: eval}, f: {roles: eval}}\n"
    run = "runs: {r: {host: t, checkpoints: /c, eval_host: f}}\n"
    loaded = inventory(project, hosts + run)
    assert choose_eval_host(loaded, loaded.runs["r"], "e").name == "e"
    assert choose_eval_host(loaded, loaded.runs["r"], None).name == "f"
    single = inventory(project)
    assert choose_eval_host(single, single.runs["r"], None).name == "e"
    open_run = inventory(project, hosts + run.replace(", eval_host: f", ""))
    with pytest.raises(
        ConfigError, match=r"expected one host with the role eval in hosts.yaml, found 2: e, f"
    ) as caught:
        choose_eval_host(open_run, open_run.runs["r"], None)
    assert caught.value.hint == "Choose one with --host, or set runs.r.eval_host"
    with pytest.raises(ConfigError, match="host 't' doesn't have the role eval"):
        choose_eval_host(single, single.runs["r"], "t")
    with pytest.raises(ConfigError, match=r"no host 'x' in hosts.yaml") as caught:
        choose_eval_host(single, single.runs["r"], "x")
    assert caught.value.hint.startswith("name one of these: ") and caught.value.hint.endswith("add it below hosts:")
