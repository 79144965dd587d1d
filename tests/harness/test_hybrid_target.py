"""A target of linear and full attention, under either layout of names, from its folder to an acceptance length."""

import json

import pytest
from cache import load_cache
from eval_drafter import main as evaluate
from extract_hidden_states import main as extract
from harness_bench import drafter_config, random_state, save_drafter
from test_layer_stream import save_hybrid


@pytest.mark.parametrize(
    "multimodal", [pytest.param(False, id="text"), pytest.param(True, id="multimodal", marks=pytest.mark.full)]
)
def test_a_hybrid_goes_through_both_programs(bench, tmp_path, multimodal):
    target = save_hybrid(tmp_path / "target", multimodal)
    config = drafter_config(num_target_layers=6, target_layer_ids=(1, 4))
    drafter = save_drafter(tmp_path / "drafter", config, random_state(config))
    options = ["--target", target, "--drafter", drafter, "--prompts", bench.prompts, "--max-new-tokens", 12]
    assert extract([*map(str, options), "--out", str(tmp_path / "cache")]) == 0
    manifest = load_cache(tmp_path / "cache").manifest
    assert manifest["engine"]["batching"] == "padded" and manifest["target"]["num_layers"] == 6
    assert manifest["greedy_check"]["tokens"] == 36 and manifest["greedy_check"]["tokens_not_greedy"] == 0
    out = tmp_path / "r.json"
    assert evaluate(["--drafter", str(drafter), "--cache", str(tmp_path / "cache"), "--out", str(out)]) == 0
    assert json.loads(out.read_text())["acceptance_length"]["walk_macro"] >= 1
