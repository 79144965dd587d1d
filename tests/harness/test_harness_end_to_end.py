"""From a target to a table: extract, evaluate, and the same again from a copied folder without anything else."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest
import torch
from cache import file_facts, load_cache
from eval_drafter import main as evaluate
from extract_hidden_states import main as extract
from harness_bench import HARNESS, drafter_config, make_target, random_state, save_drafter
from safetensors.torch import load_file, save_file


def run_evaluation(bench, out, *more, drafter=None):
    options = ["--drafter", drafter or bench.drafter, "--cache", bench.cache, "--out", out, *more]
    return evaluate([*map(str, options)])


@pytest.fixture(scope="module")
def result(bench, tmp_path_factory):
    out = tmp_path_factory.mktemp("result") / "eval_results.json"
    assert run_evaluation(bench, out, "--baseline", bench.baseline) == 0
    return json.loads(out.read_text()), out


def test_the_result_has_every_key_of_the_contract(result):
    document, _ = result
    assert document["schema"] == 1 and document["step"] is None
    assert set(document["acceptance_length"]) == {"walk_macro", "pooled", "all_anchor"}
    assert [row["k"] for row in document["positions"]] == [1, 2, 3, 4, 5]
    assert {"k", "marginal", "survival", "conditional", "n"} <= set(document["positions"][0])
    assert set(document["ddtree"]) == {"16", "64", "256"}
    assert set(document["ddtree"]["16"]) == {"walk_macro", "pooled"}
    for prompt in document["prompts"]:
        assert {"id", "acceptance_length", "rounds", "rounds_ddtree", "censored"} <= set(prompt)
        assert prompt["acceptance_length"] == pytest.approx(sum(prompt["rounds"]) / len(prompt["rounds"]))
    assert isinstance(document["near_ties"], int)
    assert set(document) - {"schema", "provenance", "baseline", "comparison"} == set(document["baseline"])
    assert document["provenance"]["cache"]["taps"] == "post-layer residual, id+1"
    assert document["provenance"]["device"] == "cpu"


def test_rounds_of_a_prompt_cover_its_text(bench, result):
    document, _ = result
    for prompt, facts in zip(load_cache(bench.cache).prompts, document["prompts"], strict=True):
        covered = sum(facts["rounds"]) + sum(facts["censored_rounds"])
        assert covered in (len(prompt.text.argmax) - 1, len(prompt.text.argmax))


def test_progress_lines_count_to_the_end_beside_the_result(result):
    _, out = result
    lines = [json.loads(line) for line in out.with_name("progress.jsonl").read_text().splitlines()]
    done = [line["done"] for line in lines]
    assert done == sorted(done) and done[-1] == lines[-1]["total"] == 2 * 3 * 23
    assert lines[-1]["phase"] == "baseline"
    assert all(line["at"].endswith("+00:00") for line in lines)
    assert sorted(path.name for path in out.parent.iterdir()) == ["eval_results.json", "progress.jsonl"]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("--batch", 1), marks=pytest.mark.full),
        ("--batch", 5),
        pytest.param(("--max-anchors", 4), marks=pytest.mark.full),
    ],
)
def test_rounds_do_not_depend_on_batches_or_on_the_anchors_sampled(bench, result, tmp_path, options):
    document, _ = result
    out = tmp_path / "r.json"
    assert run_evaluation(bench, out, *options) == 0
    again = json.loads(out.read_text())
    assert [each["rounds"] for each in again["prompts"]] == [each["rounds"] for each in document["prompts"]]
    assert [each["rounds_ddtree"] for each in again["prompts"]] == [
        each["rounds_ddtree"] for each in document["prompts"]
    ]
    assert again["anchors"] == (12 if options[0] == "--max-anchors" else document["anchors"])


def test_a_drafter_that_is_always_right_gets_whole_blocks(bench, tmp_path, capsys):
    """With a head of zeros every token is a tie and argmax says 0, to drafter and target alike."""
    cache = tmp_path / "cache"
    shutil.copytree(bench.cache, cache)
    ends = load_file(cache / "target.safetensors")
    ends["lm_head.weight"] = torch.zeros_like(ends["lm_head.weight"])
    save_file(ends, cache / "target.safetensors")
    manifest = json.loads((cache / "manifest.json").read_text())
    for prompt in manifest["prompts"]:
        prompt["argmax"] = [0] * len(prompt["argmax"])
        prompt["token_ids"][prompt["prompt_length"] :] = prompt["argmax"]
    manifest["files"] = file_facts(cache, list(manifest["files"]))
    (cache / "manifest.json").write_text(json.dumps(manifest))
    out = tmp_path / "r.json"
    options = ["--drafter", bench.drafter, "--cache", cache, "--out", out, "--budgets", "8"]
    assert evaluate([*map(str, options)]) == 0
    document = json.loads(out.read_text())
    assert document["acceptance_length"] == {"walk_macro": 6.0, "pooled": 6.0, "all_anchor": 6.0}
    assert document["near_ties"] == document["rounds"]
    table = capsys.readouterr().out
    assert "6.000" in table
    assert re.search(rf"^near ties +{document['rounds']}$", table, re.MULTILINE)


def test_the_five_steps_are_printed_and_a_table_ends_it(bench, tmp_path, capsys):
    assert run_evaluation(bench, tmp_path, "--baseline", bench.baseline) == 0
    out = capsys.readouterr().out
    assert [f"[{step}/5]" in out for step in range(1, 6)] == [True] * 5
    assert "hidden_norm" in out and "walk, macro" in out and "DDTree 64" in out
    assert (tmp_path / "eval_results.json").exists()


def test_scripts_run_from_a_copied_folder_with_nothing_else(bench, result, tmp_path):
    shutil.copytree(HARNESS, tmp_path / "harness", ignore=shutil.ignore_patterns("__pycache__"))
    options = [
        "--drafter",
        bench.drafter,
        "--cache",
        bench.cache,
        "--baseline",
        bench.baseline,
        "--out",
        tmp_path / "r",
    ]
    environment = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"}
    completed = subprocess.run(
        [sys.executable, "-B", "eval_drafter.py", *map(str, options)],
        cwd=tmp_path / "harness",
        env=environment,
        capture_output=True,
        text=True,
    )
    assert completed.returncode == 0, completed.stderr
    document = json.loads((tmp_path / "r").read_text())
    assert document["provenance"]["threads"] == 1
    assert document["prompts"] == result[0]["prompts"]


def test_what_orch_ships_needs_no_other_file(bench, result, tmp_path):
    """One safetensors file with the configuration, here inside the run's arguments, and the step as metadata."""
    config = drafter_config()
    metadata = {"step": "4000", "config": json.dumps({"lr": 6e-4, "drafter": config.to_hf()})}
    save_file(random_state(config), tmp_path / "model.safetensors", metadata)
    for shipped in (tmp_path / "model.safetensors", tmp_path):
        assert run_evaluation(bench, tmp_path / "r.json", drafter=shipped) == 0
        document = json.loads((tmp_path / "r.json").read_text())
        assert document["step"] == 4000
        assert document["acceptance_length"] == result[0]["acceptance_length"]


def test_weights_in_several_files_load_as_one(bench, result, tmp_path):
    state = random_state(drafter_config())
    names = sorted(state)
    files = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for file, held in files.items():
        save_file({name: state[name] for name in held}, tmp_path / file)
    weight_map = {name: file for file, held in files.items() for name in held}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    shutil.copy(bench.drafter / "config.json", tmp_path)
    assert run_evaluation(bench, tmp_path / "r.json", drafter=tmp_path) == 0
    assert json.loads((tmp_path / "r.json").read_text())["prompts"] == result[0]["prompts"]


def test_bfloat16_weights_are_computed_in_float32(bench, tmp_path):
    config = drafter_config()
    rounded = {name: tensor.bfloat16() for name, tensor in random_state(config).items()}
    small = save_drafter(tmp_path / "small", config, rounded)
    wide = save_drafter(tmp_path / "wide", config, {name: tensor.float() for name, tensor in rounded.items()})
    facts = []
    for folder in (small, wide):
        assert run_evaluation(bench, tmp_path / "r.json", drafter=folder) == 0
        document = json.loads((tmp_path / "r.json").read_text())
        facts.append((document["acceptance_length"], document["prompts"], document["projection"]))
    assert facts[0] == facts[1]


def test_cached_taps_are_the_residual_after_each_layer(bench):
    from transformers import AutoModelForCausalLM

    cache = load_cache(bench.cache)
    prompt = cache.prompts[1]
    model = AutoModelForCausalLM.from_pretrained(bench.target, dtype=torch.float32)
    seen = {}
    for layer in (0, 2):
        model.model.layers[layer].register_forward_hook(
            lambda module, inputs, output, layer=layer: seen.update({layer: output})
        )
    with torch.no_grad():
        logits = model(torch.tensor([prompt.text.token_ids])).logits[0]
    torch.testing.assert_close(cache.taps(prompt, (2, 0)), torch.cat((seen[2][0], seen[0][0]), dim=-1))
    start = prompt.text.prompt_length
    assert tuple(logits.argmax(-1)[start - 1 : -1].tolist()) == prompt.text.argmax == prompt.text.token_ids[start:]


def test_a_tied_target_and_half_size_taps_work(bench, tmp_path):
    target = make_target(tmp_path / "tied", tied=True, seed=5)
    options = ["--target", target, "--layers", "2,0", "--prompts", bench.prompts, "--max-new-tokens", 6]
    assert extract([*map(str, options), "--dtype", "bfloat16", "--out", str(tmp_path / "cache")]) == 0
    cache = load_cache(tmp_path / "cache")
    assert cache.load_ends().tied
    assert cache.taps(cache.prompts[0], (0, 2)).dtype == torch.float32
    assert evaluate(["--drafter", str(bench.drafter), "--cache", str(tmp_path / "cache"), "--out", str(tmp_path)]) == 0
