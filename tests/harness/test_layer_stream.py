"""Layer by layer gives what transformers gives with everything in memory; what could go silently wrong is caught."""

import json
import shutil
import threading
from contextlib import closing

import pytest
import torch
from batching import chunks_of
from decoder import Decoder, packed_attention
from extract_hidden_states import main as extract
from greedy import choose
from harness_bench import LAYERS, VOCABULARY, make_target
from hidden_states import LayerRun, Reading
from hypothesis import given
from hypothesis import strategies as st
from layer_stream import LayerBuffer
from refusal import Refused
from safetensors.torch import load_file, save_file
from safetensors_reader import TensorFiles
from transformers import (
    AutoModelForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
LENGTHS = (9, 3, 17, 9, 30)


def texts_of(lengths=LENGTHS, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return tuple(tuple(torch.randint(0, VOCABULARY, (n,), generator=generator).tolist()) for n in lengths)


def decoder_of(folder, **options):
    return Decoder(folder, TensorFiles(folder), **options)


def streamed(folder, work, texts, layer_ids, chunk_tokens=2048, arithmetic="float32"):
    """Taps of each text by layer, and its greedy choices."""
    decoder = decoder_of(folder)
    reading = Reading(texts, layer_ids, chunk_tokens, decoder.packed, arithmetic)
    run = LayerRun(decoder, reading, work, lambda *step: None)
    taps = {}
    run.run(decoder.num_layers - 1, lambda text, place, rows, durable: taps.update({(text, place): rows.clone()}))
    chosen = run.choose([range(len(text)) for text in texts])
    return [[taps[text, place] for place in range(len(layer_ids))] for text in range(len(texts))], chosen


def in_memory(folder, texts, layer_ids, dtype=torch.float32):
    """The same by transformers, each text alone: raw outputs of the layers, and logits."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa").eval()
    layers = model.base_model.layers if hasattr(model.base_model, "layers") else model.model.language_model.layers
    seen = {}
    for layer in layer_ids:
        layers[layer].register_forward_hook(lambda module, inputs, out, layer=layer: seen.update({layer: out[0]}))
    taps, logits = [], []
    for text in texts:
        with torch.no_grad():
            logits.append(model(torch.tensor([text]), use_cache=False).logits[0])
        taps.append([seen[layer] if seen[layer].dim() == 2 else seen[layer][0] for layer in layer_ids])
    return taps, logits


def check_equal(folder, work, layer_ids=(0, 2, 3), **options):
    texts = texts_of()
    ours, chosen = streamed(folder, work, texts, layer_ids, **options)
    theirs, logits = in_memory(folder, texts, layer_ids)
    for mine, reference in zip(ours, theirs, strict=True):
        for tap, wanted in zip(mine, reference, strict=True):
            torch.testing.assert_close(tap, wanted, rtol=1e-5, atol=1e-5 * float(wanted.abs().max()))
    for choices, scores in zip(chosen, logits, strict=True):
        best = scores.topk(2)
        decided = best.values[:, 0] - best.values[:, 1] > 1e-3
        assert torch.equal(choices.ids[decided], best.indices[decided, 0])
        torch.testing.assert_close(choices.margins, best.values[:, 0] - best.values[:, 1], rtol=1e-3, atol=1e-4)


def rope(theta=1e4):
    return {"rope_type": "default", "rope_theta": theta}


def save_hybrid(folder, multimodal):
    """A Qwen3.5 of six layers, three of linear attention before each of full, in either layout of names."""
    torch.manual_seed(1)
    text = {
        **SIZES,
        "num_hidden_layers": 6,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"] * 2,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "rope_parameters": {**rope(), "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 0]},
    }
    vision = {"depth": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 16, "out_hidden_size": 32}
    if not multimodal:
        model = AutoModelForCausalLM.from_config(Qwen3_5TextConfig(**text))
    else:
        model = Qwen3_5ForConditionalGeneration(Qwen3_5Config(text_config=text, vision_config=vision))
    for name, weight in model.named_parameters():
        if "norm" in name:
            weight.data.add_(torch.randn_like(weight) * 0.2)
    model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if "layers.0." in name or name.endswith("lm_head.weight")]:
        tensors["mtp." + name.split(".", 1)[1]] = tensors[name] + 1  # an extra prediction layer, which is not a layer
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.mark.parametrize("chunk_tokens", [2048, 32, 1])
def test_qwen3_equals_transformers_however_it_is_cut(tmp_path, chunk_tokens):
    check_equal(make_target(tmp_path / "t"), tmp_path / "w", chunk_tokens=chunk_tokens)


def test_a_text_alone_is_equal_bit_for_bit(tmp_path):
    target, texts = make_target(tmp_path / "t"), texts_of((23,))
    ours, _ = streamed(target, tmp_path / "w", texts, (0, 1, 2, 3))
    theirs, _ = in_memory(target, texts, (0, 1, 2, 3))
    assert all(torch.equal(mine, reference) for mine, reference in zip(ours[0], theirs[0], strict=True))


@pytest.mark.parametrize("multimodal", [False, True], ids=["text", "multimodal"])
@pytest.mark.parametrize("chunk_tokens", [2048, pytest.param(40, marks=pytest.mark.full)])
def test_the_hybrid_equals_transformers_in_both_layouts_of_names(tmp_path, multimodal, chunk_tokens):
    folder = save_hybrid(tmp_path / "t", multimodal)
    names = TensorFiles(folder).places
    assert any(name.startswith("model.language_model.layers.") for name in names) == multimodal
    assert any(name.startswith("mtp.") for name in names)
    assert not decoder_of(folder).packed
    check_equal(folder, tmp_path / "w", layer_ids=(0, 1, 4), chunk_tokens=chunk_tokens)


def without(*names):
    return {name: value for name, value in SIZES.items() if name not in names}


FAMILIES = {
    "qwen3 with a sliding window": lambda: Qwen3ForCausalLM(
        Qwen3Config(
            **SIZES,
            use_sliding_window=True,
            sliding_window=5,
            layer_types=["sliding_attention", "full_attention"] * 2,
            rope_parameters=rope(),
        )
    ),
    "llama, tied": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=True, rope_parameters=rope())),
    "qwen2, with biases": lambda: Qwen2ForCausalLM(Qwen2Config(**without("head_dim"), rope_parameters=rope())),
    "phi3, fused": lambda: Phi3ForCausalLM(Phi3Config(**without("head_dim"), rope_parameters=rope())),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_other_decoders_equal_transformers(tmp_path, family):
    torch.manual_seed(2)
    FAMILIES[family]().save_pretrained(tmp_path / "t")
    check_equal(tmp_path / "t", tmp_path / "w")


def test_decoders_that_do_more_than_their_layers_say_are_refused(tmp_path):
    Gemma3ForCausalLM(Gemma3TextConfig(**SIZES)).save_pretrained(tmp_path / "scaled")
    with pytest.raises(Refused, match=r"embed_tokens\.embed_scale is a table that no file holds"):
        decoder_of(tmp_path / "scaled")
    GraniteForCausalLM(GraniteConfig(**without("head_dim"), embedding_multiplier=2.0)).save_pretrained(tmp_path / "g")
    with pytest.raises(Refused, match="changes hidden states between its layers"):
        decoder_of(tmp_path / "g")
    states = torch.zeros(1, 2, 3, 4)
    with pytest.raises(Refused, match="not supported \\(softcap\\)"):
        packed_attention(None, states, states, states, None, text_lengths=[3], softcap=50.0)


def see_everything(module, query, key, value, attention_mask, scaling=None, **options):
    """Attention that forgets to be causal, as eager attention without a mask does."""
    out = torch.nn.functional.scaled_dot_product_attention(query, key, value, scale=scaling, enable_gqa=True)
    return out.transpose(1, 2).contiguous(), None


def test_attention_that_is_not_causal_is_caught_before_it_is_used(tmp_path):
    ALL_ATTENTION_FUNCTIONS.register("see_everything", see_everything)
    decoder = decoder_of(make_target(tmp_path / "t"), attention="see_everything")
    weights = LayerBuffer(decoder).read(0)
    with pytest.raises(Refused, match="lets a token see a later one"), decoder.loaded(0, weights):
        pass


def test_eager_attention_is_masked_by_the_model_itself(tmp_path):
    """Without the model's own forward pass it would get no mask, and silently see the future."""
    decoder = decoder_of(make_target(tmp_path / "t"), attention="eager")
    with decoder.loaded(0, LayerBuffer(decoder).read(0)):
        pass


def test_texts_that_leak_into_each_other_are_caught(tmp_path):
    """Packing linear attention is such a case: its state runs on from one text into the next."""
    decoder = decoder_of(save_hybrid(tmp_path / "t", multimodal=False))
    decoder.packed = True
    with pytest.raises(Refused, match="or another text"), decoder.loaded(0, LayerBuffer(decoder).read(0)):
        pass


def test_rotary_positions_are_real_numbers(tmp_path):
    decoder = decoder_of(make_target(tmp_path / "t"))
    tables = [table for name, table in decoder._model.named_buffers() if "inv_freq" in name]
    assert tables and all(not table.is_meta and bool((table > 0).all()) for table in tables)


def changed_tensors(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize(
    "change, sentence",
    [
        (lambda tensors: tensors.pop("model.layers.3.mlp.up_proj.weight"), "would be random numbers"),
        (lambda tensors: tensors.pop("model.norm.weight"), "would be random numbers"),
        (lambda tensors: tensors.pop("lm_head.weight"), "expected one lm_head.weight, found none"),
        (
            lambda tensors: tensors.update({"model.layers.1.input_layernorm.weight": torch.ones(31)}),
            r"is \[31\], expected \[32\]",
        ),
    ],
)
def test_a_missing_or_misshapen_tensor_is_named_before_anything_is_computed(tmp_path, change, sentence):
    folder = make_target(tmp_path / "t")
    changed_tensors(folder, change)
    with pytest.raises(Refused, match=sentence):
        decoder_of(folder).check_complete()


def test_numbers_that_are_not_finite_are_refused(tmp_path):
    folder = make_target(tmp_path / "t")
    changed_tensors(folder, lambda tensors: tensors["model.layers.1.mlp.down_proj.weight"].fill_(float("inf")))
    with pytest.raises(Refused, match="layer 1 gives numbers that are not finite"):
        streamed(folder, tmp_path / "w", texts_of(), (0,))


def readers():
    return [thread for thread in threading.enumerate() if thread.name.startswith("ThreadPoolExecutor")]


def test_an_error_while_reading_reaches_the_caller_and_ends_the_prefetching_thread(tmp_path):
    folder = make_target(tmp_path / "t")
    changed_tensors(
        folder, lambda tensors: tensors.update({"model.layers.2.mlp.up_proj.weight": torch.ones(48, 32).long()})
    )
    decoder = decoder_of(folder)
    seen = []
    with (
        pytest.raises(Refused, match=r"up_proj\.weight is I64"),
        closing(LayerBuffer(decoder).stream(range(LAYERS))) as layers,
    ):
        for index, _ in layers:
            seen.append(index)
    assert seen == [0, 1] and not readers()


def test_stopping_early_ends_the_prefetching_thread(tmp_path):
    decoder = decoder_of(make_target(tmp_path / "t"))
    with closing(LayerBuffer(decoder).stream(range(LAYERS))) as layers:
        next(layers)
        assert readers()
    assert not readers()


def test_tensors_at_odd_places_are_read(tmp_path):
    """Their place in a file is a multiple of nothing."""
    text = json.dumps({"a": {"dtype": "F32", "shape": [3], "data_offsets": [1, 13]}}).encode()
    data = torch.tensor([1.0, -2.0, 3.0])
    content = len(text).to_bytes(8, "little") + text + b"x" + data.numpy().tobytes()
    (tmp_path / "model.safetensors").write_bytes(content)
    files = TensorFiles(tmp_path)
    out = torch.empty(3)
    files.read_into("a", out)
    assert torch.equal(out, data)


@pytest.mark.parametrize("cut", [4, 40, -5])
def test_a_torn_weight_file_is_refused(tmp_path, cut):
    folder = make_target(tmp_path / "t")
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:cut])
    with pytest.raises(Refused, match="not a whole safetensors file"):
        TensorFiles(folder)


def test_of_equal_logits_the_lowest_id_wins_in_whatever_blocks_the_head_is_read(tmp_path):
    folder = make_target(tmp_path / "t")
    changed_tensors(folder, lambda tensors: tensors["lm_head.weight"].zero_())
    decoder = decoder_of(folder)
    rows = torch.randn(5, 32, generator=torch.Generator().manual_seed(0))
    for room in (torch.empty(32 * 7), torch.empty(32 * 200)):
        chosen = choose(decoder, rows, room, lambda block, of: None)
        assert chosen.ids.tolist() == [0] * 5 and chosen.margins.tolist() == [0.0] * 5


@given(st.lists(st.integers(1, 60), min_size=1, max_size=12).map(sorted), st.integers(1, 100), st.booleans(), st.data())
def test_chunks_hold_every_row_once_and_padding_comes_off_again(lengths, limit, packed, data):
    chunks = chunks_of(lengths, limit, packed)
    assert [length for chunk in chunks for length in chunk.lengths] == lengths
    assert [chunk.first for chunk in chunks] == [sum(lengths[:i]) for i in places(chunks)]
    for chunk in chunks:
        size = sum(chunk.lengths) if packed else len(chunk.lengths) * max(chunk.lengths)
        assert size <= limit or len(chunk.lengths) == 1
        rows = torch.arange(sum(chunk.lengths) * 2.0).view(-1, 2)
        out = torch.empty_like(rows)
        chunk.from_batch(chunk.to_batch(rows), out)
        assert torch.equal(rows, out)
        assert chunk.position_ids.shape == chunk.to_batch(rows).shape[:2]


def places(chunks):
    counts = [len(chunk.lengths) for chunk in chunks]
    return [sum(counts[:i]) for i in range(len(counts))]


def test_without_the_greedy_check_nothing_above_the_last_tap_is_run(bench, tmp_path, capsys):
    options = ["--target", bench.target, "--layers", "0,1", "--prompts", bench.prompts, "--max-new-tokens", 24]
    command = [*map(str, options), "--no-greedy-check", "--out", str(tmp_path / "cache")]
    assert extract(command) == 0
    err = capsys.readouterr().err
    assert "layer 1," in err and "layer 2," not in err and "head" not in err
    manifest = json.loads((tmp_path / "cache" / "manifest.json").read_text())
    reference = json.loads((bench.cache / "manifest.json").read_text())
    assert manifest["greedy_check"] is None and reference["greedy_check"]["tokens_not_greedy"] == 0
    assert [each["token_ids"] for each in manifest["prompts"]] == [each["token_ids"] for each in reference["prompts"]]
    ours, theirs = (load_file(each / "shards/00001.safetensors")["taps"] for each in (tmp_path / "cache", bench.cache))
    assert torch.equal(ours[:, :32], theirs[:, :32])
    command.remove("--no-greedy-check")
    assert extract(command) == 2
    assert "made with another greedy_check" in capsys.readouterr().err


def test_weights_in_several_files_are_one_target(tmp_path):
    folder = make_target(tmp_path / "t")
    shutil.copytree(folder, tmp_path / "split")
    tensors = load_file(folder / "model.safetensors")
    (tmp_path / "split" / "model.safetensors").unlink()
    names = sorted(tensors)
    parts = {f"model-{part}.safetensors": names[part::3] for part in range(3)}
    for file, held in parts.items():
        save_file({name: tensors[name] for name in held}, tmp_path / "split" / file)
    index = {"weight_map": {name: file for file, held in parts.items() for name in held}}
    (tmp_path / "split" / "model.safetensors.index.json").write_text(json.dumps(index))
    ours, _ = streamed(folder, tmp_path / "w", texts_of(), (2,))
    split, _ = streamed(tmp_path / "split", tmp_path / "v", texts_of(), (2,))
    assert all(torch.equal(a[0], b[0]) for a, b in zip(ours, split, strict=True))
