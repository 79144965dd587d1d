"""What becomes of checkpoints on the way and on the evaluation box, seen from the commands; on two local boxes."""

from __future__ import annotations

import json
import os
import shutil
import zipfile

import jsonschema
import pytest
from world import Stage

from orchestrator.reports.schema import document_schema


def flip_a_bit(stage: Stage, step: int) -> None:
    """Damage the middle of a record; size and times stay, so that only its CRC knows."""
    path = stage.train / "checkpoints" / f"step_{step}" / "checkpoint.pt"
    status = path.stat()
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_a_checkpoint_found_torn_while_shipping_is_remembered_and_the_next_older_one_is_evaluated(stage: Stage) -> None:
    flip_a_bit(stage, 120)
    assert stage.json("checkpoints")["latest"]["step"] == 120, "its structure is whole"
    report = stage.json("eval-latest", "--yes")
    assert report["run"]["state"] == "succeeded" and report["run"]["step"] == 80
    assert any("step 120 (step_120/checkpoint.pt) is torn: record" in warning for warning in report["warnings"])
    after = stage.json("checkpoints", code=0)
    row = next(row for row in after["candidates"] if row["step"] == 120)
    assert (row["state"], after["latest"]["step"]) == ("torn", 80) and "when it was shipped" in row["reason"]
    assert stage.json("status")["runs"][0]["latest"]["step"] == 80
    assert stage.json("eval-latest", "--step", "120", code=3)["error"]["code"] == 3
    remembered = json.loads((stage.folder / "state" / "torn.json").read_text())
    assert [entry["step"] for entry in remembered["checkpoints"]] == [120]


def test_a_torn_copy_does_not_condemn_the_original_and_a_restored_file_is_looked_at_afresh(stage: Stage) -> None:
    checkpoints = stage.train / "checkpoints"
    shutil.copytree(checkpoints / "step_120", checkpoints / "step_900")
    flip_a_bit(stage, 900)
    report = stage.json("eval-latest", "--yes", "--step", "900", code=3)
    assert any("looking for another one of that step" in warning for warning in report["warnings"])
    rows = {row["path"]: row["state"] for row in stage.json("checkpoints")["candidates"]}
    assert (rows["step_900/checkpoint.pt"], rows["step_120/checkpoint.pt"]) == ("torn", "complete")
    shutil.copy(checkpoints / "step_120" / "checkpoint.pt", checkpoints / "step_900" / "checkpoint.pt")
    assert stage.json("checkpoints")["latest"]["path"] == "step_900/checkpoint.pt"


@pytest.mark.full
def test_a_newest_checkpoint_that_orch_does_not_read_gives_way_to_the_next_older_one_and_it_is_said(
    stage: Stage,
) -> None:
    path = stage.train / "checkpoints" / "step_120" / "checkpoint.pt"
    with zipfile.ZipFile(path) as archive:
        records = [(info.filename, archive.read(info)) for info in archive.infolist()]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in records:
            archive.writestr(name, data)
    report = stage.json("eval-latest", "--yes")
    assert (report["run"]["state"], report["run"]["step"]) == ("succeeded", 80)
    assert any("step_120" in warning and "compressed" in warning for warning in report["warnings"])
    refused = stage.json("eval-latest", "--step", "120", code=3)["error"]
    assert "compressed" in refused["message"] and "`ship: whole`" in refused["message"]


@pytest.mark.full
def test_clean_keeps_the_newest_and_says_what_goes(stage: Stage) -> None:
    for step in ("40", "80", "120"):
        assert stage.orch("eval-latest", "--yes", "--step", step).returncode == 0
    staged = stage.json("checkpoints", "--staged")
    jsonschema.validate(staged, document_schema("staged"))
    assert [row["state"] for row in staged["staged"]] == ["complete"] * 3
    assert staged["staged"][0]["source"].startswith("train-box:")
    folders = stage.evaluate / "orch" / "checkpoints"
    dry = stage.json("clean", "--keep", "2", "--dry-run")
    jsonschema.validate(dry, document_schema("clean"))
    assert [(row["step"], row["removed"]) for row in dry["staged"]] == [(120, False), (80, False), (40, True)]
    assert len(list(folders.iterdir())) == 3
    assert [row["removed"] for row in stage.json("clean", "--keep", "2")["staged"]] == [False, False, True]
    assert len(list(folders.iterdir())) == 2
    again = stage.json("eval-latest")
    assert again["plan"]["actions"][0]["do"] == "nothing", "results outlive the checkpoint"
