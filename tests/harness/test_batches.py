"""The same numbers whatever is computed together: batches, texts, threads, chunks of the vocabulary, budgets."""

import json
from pathlib import Path

import memory
import pytest
import torch
from acceptance import Text
from ddtree import build_tree, tree_round, tree_rounds
from drafter import Drafter
from drafter_config import FULL, SLIDING, DrafterConfig
from drafting import Drafting
from eval_drafter import main as evaluate
from harness_bench import drafter_config, ends_of, random_state
from hypothesis import given, settings
from hypothesis import strategies as st
from loading import LoadedDrafter
from machine import open_devices
from safetensors.torch import load_file
from target import Head, TargetEnds
from transformers import AutoModelForCausalLM

DATA = Path(__file__).resolve().parents[1] / "data" / "drafter"


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def trained():
    """The recorded texts and their trained drafter, every anchor, and whose taps were read."""
    config = DrafterConfig.from_hf(json.loads((DATA / "draft_hf" / "config.json").read_text()))
    model = Drafter(config)
    model.load_state_dict(load_file(DATA / "trained_draft.safetensors"))
    ends = ends_of(DATA / "target_hf")
    loaded = LoadedDrafter(config, model.eval(), Head.of_target(ends, config), DATA, "", None)
    target = AutoModelForCausalLM.from_pretrained(DATA / "target_hf", dtype=torch.float32)
    recorded = json.loads((DATA / "trained_expected.json").read_text())
    texts, taps, start = [], [], recorded["prompt_len"]
    for sequence in recorded["seqs"]:
        ids = sequence["greedy_ids"]
        with torch.no_grad():
            states = target(torch.tensor([ids]), output_hidden_states=True).hidden_states
        texts.append(Text(tuple(ids), start, tuple(ids[start:])))
        taps.append(torch.cat([states[layer + 1][0] for layer in config.target_layer_ids], dim=-1))
    places = [(index, anchor) for index, text in enumerate(texts) for anchor in text.anchors]
    read = []
    return Drafting(loaded, ends, texts, lambda index: read.append(index) or taps[index]), places, read


@pytest.mark.parametrize("layer_types", [(FULL, FULL), (SLIDING, FULL)])
@torch.inference_mode()
def test_logits_do_not_depend_on_company_or_threads(layer_types, threads):
    window = 40 if SLIDING in layer_types else None
    config = drafter_config(
        hidden_size=256,
        intermediate_size=512,
        head_dim=32,
        block_size=16,
        layer_types=layer_types,
        sliding_window=window,
    )
    model = Drafter(config)
    model.load_state_dict(random_state(config))
    generator = torch.Generator().manual_seed(0)
    contexts = [
        model.context_kv(model.context(torch.randn(rows, config.taps_size, generator=generator))) for rows in (90, 200)
    ]
    anchors = [[30, 31, 60, 90] * 3, [5, 120, 199, 200]]
    embeds = torch.randn(16, 16, 256, generator=generator)
    head = Head(torch.randn(999, 256, generator=generator) / 16)
    threads(2)
    together = model.blocks(contexts, [12, 4], embeds, torch.tensor(anchors[0] + anchors[1]))
    logits = head.logits(together.flatten(0, 1)).view(16, 16, -1)
    threads(1)
    places = [(index, anchor) for index, each in enumerate(anchors) for anchor in each]
    for row, (index, anchor) in enumerate(places):
        alone = model.blocks([contexts[index]], [1], embeds[row : row + 1], torch.tensor([anchor]))
        torch.testing.assert_close(head.logits(alone[0]), logits[row], atol=1e-5, rtol=0)


@pytest.mark.parametrize("options", [("--batch", 2, "--texts", 1), ("--batch", 64, "--texts", 3), ("--texts", 2)])
def test_an_evaluation_does_not_depend_on_what_advances_together(bench, options, tmp_path, threads):
    found = []
    for count, more in ((1, ()), (2, options)):
        threads(count)
        out = tmp_path / f"{count}.json"
        command = ["--drafter", bench.drafter, "--cache", bench.cache, "--out", out, "--no-checks", *more]
        assert evaluate([*map(str, command)]) == 0
        document = json.loads(out.read_text())
        found.append(
            {key: document[key] for key in ("prompts", "positions", "data_sets", "context_lengths", "near_ties")}
        )
    assert found[0] == found[1]


def test_walks_alone_give_the_same_rounds_and_draft_less(bench, tmp_path):
    documents = []
    for options in ((), ("--max-anchors", "0", "--budgets", "none")):
        command = ["--drafter", bench.drafter, "--cache", bench.cache, "--out", tmp_path / "r.json", *options]
        assert evaluate([*map(str, command)]) == 0
        documents.append(json.loads((tmp_path / "r.json").read_text()))
    full, walks = documents
    assert [each["rounds"] for each in walks["prompts"]] == [each["rounds"] for each in full["prompts"]]
    assert walks["near_ties"] == full["near_ties"]
    assert walks["acceptance_length"] == full["acceptance_length"] | {"all_anchor": None}
    assert (walks["anchors"], walks["positions"], walks["ddtree"]) == (0, [], {})


def test_a_run_found_row_by_row_is_that_of_the_whole_block(trained):
    """The trained drafter accepts from none to all of a block; the text ends within some blocks."""
    drafting, places, _ = trained
    with torch.inference_mode():
        whole, runs = drafting.outcomes(places, ()), drafting.runs(places)
    rounds = [
        [each.block_round(anchor) for each, (_, anchor) in zip(found, places, strict=True)] for found in (whole, runs)
    ]
    assert rounds[0] == rounds[1]
    assert [each.near_tie for each in whole] == [each.near_tie for each in runs]
    assert {each.length for each in rounds[0]} >= set(range(1, 9)) and any(each.censored for each in rounds[0])


def test_a_context_is_computed_once_however_many_blocks_read_it(trained):
    drafting, places, read = trained
    with torch.inference_mode():
        for first in range(0, len(places), 16):
            drafting.outcomes(places[first : first + 16], (4,))
    assert sorted(read) == [0, 1]


def test_context_lengths_and_data_sets_part_the_rounds(bench, tmp_path):
    command = ["--drafter", bench.drafter, "--cache", bench.cache, "--out", tmp_path / "r.json"]
    assert evaluate([*map(str, command)]) == 0
    document = json.loads((tmp_path / "r.json").read_text())
    decided = document["rounds"] - document["censored"]
    for parts in (document["data_sets"], document["context_lengths"]):
        assert sum(part["rounds"] for part in parts.values()) == decided
        assert all(set(part["ddtree"]) == {"16", "64", "256"} for part in parts.values())
    assert set(document["data_sets"]) == {"even", "odd"}
    assert list(document["context_lengths"]) == ["0-255"]


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.integers(2, 9), st.integers(0, 10_000), st.lists(st.integers(0, 8), max_size=5))
def test_the_tree_of_a_smaller_budget_is_the_beginning_of_a_larger_one(depth, width, seed, known):
    logits = torch.randn(depth, width, generator=torch.Generator().manual_seed(seed)) * 2
    best = Head(torch.eye(width)).best(logits, 40)
    rows = best.log_probs_RK.tolist(), best.ids_RK.tolist()
    budgets = (1, 2, 5, 13, 40)
    together = tree_rounds(7, build_tree(*rows, budgets[-1]), budgets, known)
    assert list(together) == [tree_round(7, build_tree(*rows, budget), known) for budget in budgets]


@settings(max_examples=15, deadline=None)
@given(st.sampled_from([70, 8192, 16384, 16390, 40000]), st.sampled_from([1, 2, 16, 64, 300]), st.integers(0, 10_000))
def test_the_best_of_a_long_vocabulary_are_those_of_all_logits(vocabulary, count, seed):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(vocabulary, 8, generator=generator).round(decimals=1)
    hidden = torch.randint(-2, 3, (6, 8), generator=generator).float()  # few values: many equal logits
    head = Head(weight, None, 0.5, 30.0)
    best, logits = head.best(hidden, count), head.logits(hidden)
    expected = logits.log_softmax(-1).topk(min(count, vocabulary))
    torch.testing.assert_close(best.log_probs_RK, expected.values, atol=1e-5, rtol=0)
    assert torch.equal(best.ids_RK[:, 0], logits.argmax(-1))
    torch.testing.assert_close(logits.gather(-1, best.ids_RK), head.best(hidden, count, normalised=False).log_probs_RK)


def test_a_head_widened_once_gives_the_same_logits():
    generator = torch.Generator().manual_seed(0)
    ends = TargetEnds(torch.randn(500, 16, generator=generator).bfloat16(), torch.randn(500, 16).bfloat16())
    hidden = torch.randn(3, 16, generator=generator)
    wide = ends.with_wide_head(4 * 500 * 16)
    assert wide.head_VH.dtype == torch.float32 and ends.with_wide_head(4 * 500 * 16 - 1) is ends
    assert torch.equal(Head(wide.head_VH).logits(hidden), Head(ends.head_VH).logits(hidden))


def test_an_open_device_is_found(tmp_path):
    device = tmp_path / "nvidia0"
    device.touch()
    folder = tmp_path / "fd"
    folder.mkdir()
    (folder / "3").symlink_to(device)
    (folder / "4").symlink_to("/dev/null")
    assert open_devices(folder, str(tmp_path / "nvidia")) == [str(device)]
    assert open_devices(tmp_path / "no such folder") == []


def test_memory_available_is_what_the_tightest_control_group_leaves(tmp_path, monkeypatch):
    files = tmp_path / "memory.max", tmp_path / "memory.current"
    monkeypatch.setattr(memory, "_groups", lambda: [files])
    unlimited = memory.available()
    for path, size in zip(files, (5 << 20, 2 << 20), strict=True):
        path.write_text(f"{size}\n")
    assert unlimited > memory.available() == 3 << 20
    files[0].write_text("max\n")
    assert memory.available() > 3 << 20
