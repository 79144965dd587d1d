"""Settings that were read before: the same nouns without pydantic, and never where something has changed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.config import load_inventory, load_job, remembered
from orchestrator.errors import ConfigError

HOSTS = """\
hosts:
  ct200: {roles: [train], ssh: root@ct200:2222}
  ct129: {roles: eval, limits: {threads: 4, memory: 60GiB, wall: 6h}, one_use_keys: no}
runs:
  dflash:
    host: ct200
    checkpoints: /root/checkpoints
    eval_host: ct129
    gpus: {target: 0-4, drafter: ["5", 6-7]}
    process: {match: train.py}
timeouts: {connect: 1.5s}
"""
JOB = """\
harness: {local: harness, remote: ~/eval}
command: ["{python}", e.py, "{checkpoint}", "{data.cache}"]
data: {cache: /root/cache}
env: {A: 1.0, TOKEN: {from: env, name: HF_TOKEN}}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "hosts.yaml").write_text(HOSTS)
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs/j.yaml").write_text(JOB)
    (tmp_path / "harness").mkdir()
    return tmp_path


def loaded_in_a_fresh_interpreter(project: Path) -> tuple[str, bool]:
    """The nouns as text, and whether pydantic was needed."""
    code = (
        "import sys; from pathlib import Path; from orchestrator.config import load_inventory, load_job;"
        f"i = load_inventory(Path({str(project / 'hosts.yaml')!r})); j = load_job(i, 'j');"
        "print(i, j); print('pydantic' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    text, pydantic = done.stdout.splitlines()
    return text.replace("frozenset({'train'})", ""), pydantic == "True"


def test_the_second_reading_gives_the_same_nouns_and_needs_no_pydantic(project):
    first, second = loaded_in_a_fresh_interpreter(project), loaded_in_a_fresh_interpreter(project)
    assert second[0] == first[0] and "TrainingRun(name='dflash'" in first[0] and "ValueSource" in first[0]
    assert (first[1], second[1]) == (True, False)


def test_a_file_that_was_made_wrong_is_refused_with_its_line(project):
    load_inventory(project / "hosts.yaml")
    (project / "hosts.yaml").write_text(HOSTS.replace("roles: [train]", "rolls: [train]"))
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"hosts\.yaml:2: hosts\.ct200\.rolls: unknown key"):
            load_inventory(project / "hosts.yaml")
    (project / "hosts.yaml").write_text(HOSTS)
    assert load_inventory(project / "hosts.yaml").hosts["ct200"].ssh == "root@ct200:2222"


def test_a_harness_folder_that_went_away_is_refused_with_its_line(project):
    inventory = load_inventory(project / "hosts.yaml")
    assert load_job(inventory, "j") == load_job(inventory, "j")
    (project / "harness").rmdir()
    with pytest.raises(ConfigError, match=r"jobs/j\.yaml:1: harness\.local: expected a folder, found nothing there"):
        load_job(inventory, "j")


@pytest.mark.parametrize("left", [b"", b"{", b"[]", b'{"mark": 1}', b'{"holds": {}}', b"\xff", b"[" * 100_000])
def test_a_damaged_memory_costs_a_reading_alone(project, own_cache, left):
    inventory = load_inventory(project / "hosts.yaml")
    (kept,) = (own_cache / "orch/settings").iterdir()
    kept.write_bytes(left)
    assert load_inventory(project / "hosts.yaml") == inventory
    assert json.loads(kept.read_bytes())["holds"]["hosts"]["ct200"]["ssh"] == "root@ct200:2222"


def test_a_memory_that_others_may_write_to_is_not_believed(project, own_cache):
    load_inventory(project / "hosts.yaml")
    (kept,) = (own_cache / "orch/settings").iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600
    kept.chmod(0o666)
    before = kept.stat().st_ino
    load_inventory(project / "hosts.yaml")
    assert kept.stat().st_ino != before and kept.stat().st_mode & 0o777 == 0o600, "read anew, and kept anew"


@pytest.mark.parametrize("edit", ["elsewhere", "empty", "word"])
def test_a_memory_that_was_edited_is_not_believed(project, own_cache, edit):
    inventory = load_inventory(project / "hosts.yaml")
    (kept,) = (own_cache / "orch/settings").iterdir()
    text = kept.read_text()
    changed = {"empty": {}, "word": "x"}
    edited = text.replace("root@ct200:2222", "root@elsewhere")
    kept.write_text(edited if edit == "elsewhere" else json.dumps({**json.loads(text), "holds": changed[edit]}))
    assert load_inventory(project / "hosts.yaml") == inventory


def test_without_a_place_for_it_all_works(project, monkeypatch):
    (project / "full").write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(project / "full"))
    assert load_inventory(project / "hosts.yaml") == load_inventory(project / "hosts.yaml")


def test_only_the_newest_are_kept(project, own_cache, monkeypatch):
    monkeypatch.setattr(remembered, "KEPT", 3)
    for index in range(6):
        other = project / f"{index}.yaml"
        other.write_text(HOSTS)
        load_inventory(other)
    assert len(list((own_cache / "orch/settings").iterdir())) == 3
