"""What a killed extraction left counts; what a power cut may have torn counts only if it was put on the disk."""

import json

import pytest
import torch
from residuals import Residuals


def begun(folder, durable):
    """Three rows after two layers."""
    residuals = Residuals(folder, 3, 2, "texts")
    for layer in range(3):  # the embeddings come first
        residuals.next.fill_(layer)
        residuals.advance(durable)
    return residuals


def after_a_power_cut(folder):
    state = folder / "state.json"
    state.write_text(json.dumps({**json.loads(state.read_text()), "boot": "another"}))


@pytest.mark.parametrize("durable", [False, True])
def test_a_killed_run_goes_on_behind_its_last_whole_layer(tmp_path, durable):
    begun(tmp_path, durable).next.fill_(99)  # half of a layer that was cut short
    again = Residuals(tmp_path, 3, 2, "texts")
    assert again.done == 2 and torch.equal(again.current, torch.full((3, 2), 2.0))


@pytest.mark.parametrize("durable, done", [(False, -1), (True, 2)])
def test_after_a_power_cut_only_what_the_disk_has_counts(tmp_path, durable, done):
    begun(tmp_path, durable)
    after_a_power_cut(tmp_path)
    assert Residuals(tmp_path, 3, 2, "texts").done == done


def test_rows_of_other_texts_or_torn_files_are_begun_anew(tmp_path):
    begun(tmp_path, True)
    assert Residuals(tmp_path, 3, 2, "other texts").done == -1
    begun(tmp_path, True)
    (tmp_path / "residuals0.f32").write_bytes(b"")
    assert Residuals(tmp_path, 3, 2, "texts").done == -1
