"""The drafter and the walk equal the `dflash` package 0.1.0 on random drafters: geometry, windows, layouts."""

from dataclasses import replace

import pytest
import torch
from acceptance import Text, leading_run
from drafter import Drafter
from drafter_config import FULL, SLIDING, DrafterConfig
from drafting import Drafting
from harness_bench import random_state
from hypothesis import given, settings
from hypothesis import strategies as st
from loading import LoadedDrafter
from target import Head, TargetEnds
from transformers import Qwen3Config, Qwen3ForCausalLM

oracle = pytest.importorskip(
    "dflash.model", reason="needs the dflash package: pip install --no-deps dflash==0.1.0 (scripts/test does)"
)

VOCABULARY, TARGET_LAYERS = 64, 5


@st.composite
def configs(draw):
    layers = draw(st.integers(1, 3))
    window = draw(st.none() | st.integers(1, 20))
    kinds = st.sampled_from([FULL, SLIDING]) if window else st.just(FULL)
    layer_types = tuple(draw(st.lists(kinds, min_size=layers, max_size=layers)))
    kv_heads = draw(st.sampled_from([1, 2]))
    return DrafterConfig(
        hidden_size=draw(st.sampled_from([16, 24])),
        num_layers=layers,
        heads=kv_heads * draw(st.sampled_from([1, 3])),
        kv_heads=kv_heads,
        head_dim=draw(st.sampled_from([4, 8])),
        intermediate_size=20,
        vocab_size=VOCABULARY,
        rms_norm_eps=1e-6,
        rope_theta=draw(st.sampled_from([1e4, 1e6, 1e7])),
        block_size=draw(st.integers(2, 9)),
        mask_token_id=draw(st.integers(0, VOCABULARY - 1)),
        target_layer_ids=tuple(draw(st.permutations(range(TARGET_LAYERS - 1)))[: draw(st.integers(1, 3))]),
        num_target_layers=TARGET_LAYERS,
        layer_types=layer_types,
        sliding_window=window if SLIDING in layer_types else None,
        is_causal=draw(st.none() | st.booleans()),
        input_embedding_scale=draw(st.sampled_from([1.0, 4.0])),
        output_multiplier=draw(st.sampled_from([1.0, 0.5])),
        final_logit_softcapping=draw(st.none() | st.just(2.0)),
    )


def old_layout(document):
    """The same configuration as the first published drafters wrote it."""
    document = {**document, "rope_theta": document["rope_parameters"]["rope_theta"], "rope_scaling": None}
    document["dflash_config"] = {key: each for key, each in document["dflash_config"].items() if key != "block_size"}
    return {key: each for key, each in document.items() if key != "rope_parameters"}


def speculators_layout(document):
    """The same as speculators write it: the backbone nested, layer ids counted one higher."""
    nested = ("dflash_config", "architectures", "block_size", "is_causal", "num_target_layers")
    dflash = document["dflash_config"]
    return {
        "speculators_model_type": "dflash",
        "transformer_layer_config": {key: each for key, each in document.items() if key not in nested},
        "aux_hidden_state_layer_ids": [layer + 1 for layer in dflash["target_layer_ids"]],
        "block_size": document["block_size"],
        "mask_token_id": dflash["mask_token_id"],
        "draft_vocab_size": document["vocab_size"],
        "sliding_window_non_causal": document.get("is_causal") is False,
    }


LAYOUTS = {"new": lambda document: document, "old": old_layout, "speculators": speculators_layout}


def in_words_of(layout, config):
    """The configuration without what its layout can't say."""
    if layout != "speculators":
        return config
    plain = {"input_embedding_scale": 1.0, "output_multiplier": 1.0, "final_logit_softcapping": None}
    return replace(config, is_causal=None if config.is_causal else config.is_causal, **plain)


def both(config, seed, layout="new"):
    """Our drafter and the package's, with the same random weights, each from the configuration file.

    The package doesn't know the layout of speculators: it gets the new one.
    """
    document = LAYOUTS[layout](config.to_hf())
    state = random_state(config, seed)
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in state.items():
        if tensor.dim() == 1:
            state[name] = 1 + 0.2 * torch.randn(tensor.shape, generator=generator)
    ours = Drafter(DrafterConfig.from_hf(document)).eval()
    ours.load_state_dict(state)
    known = config.to_hf() if layout == "speculators" else document
    settings_ = {key: each for key, each in known.items() if key not in ("architectures", "model_type")}
    theirs = oracle.DFlashDraftModel(Qwen3Config(**settings_, attn_implementation="sdpa")).eval()
    theirs.load_state_dict(state)
    return ours, theirs


@settings(max_examples=25, deadline=None)
@given(configs(), st.integers(0, 10_000), st.sampled_from(sorted(LAYOUTS)))
@torch.inference_mode()
def test_hidden_states_and_logits_equal_the_packages_at_every_anchor(config, seed, layout):
    config = in_words_of(layout, config)
    ours, theirs = both(config, seed, layout)
    generator = torch.Generator().manual_seed(seed)
    taps = [torch.randn(length, config.taps_size, generator=generator) for length in (23, 40)]
    anchors = [[1, 9, 10, 23], [3, 22, 40]]
    embeds = torch.randn(7, config.block_size, config.hidden_size, generator=generator)
    head = torch.randn(VOCABULARY, config.hidden_size, generator=generator)
    contexts = [ours.context_kv(ours.context(each)) for each in taps]
    hidden = ours.blocks(contexts, [4, 3], embeds, torch.tensor([anchor for each in anchors for anchor in each]))
    logits = Head(head, None, config.output_multiplier, config.final_logit_softcapping).logits(
        hidden[:, 1:].flatten(0, 1)
    )
    places = [(index, anchor) for index, each in enumerate(anchors) for anchor in each]
    for row, (index, anchor) in enumerate(places):
        expected = theirs(
            position_ids=torch.arange(anchor + config.block_size)[None],
            noise_embedding=embeds[row : row + 1],
            target_hidden=taps[index][None, :anchor],
        )
        torch.testing.assert_close(hidden[row], expected[0], atol=2e-5, rtol=1e-5)
        scores = theirs.compute_logits(expected[0, 1:], lambda rows: rows @ head.T)
        torch.testing.assert_close(logits.view(7, -1, VOCABULARY)[row], scores, atol=5e-5, rtol=1e-5)


@settings(max_examples=8, deadline=None)
@given(configs(), st.integers(0, 10_000))
def test_walks_equal_the_packages_own_loop(config, seed):
    """Accepted lengths of its online loop with a target, up to where it cuts its last blocks short (told apart).

    Few drafts of random weights are right, so the target's head prefers some tokens: then runs are long, and end.
    """
    torch.manual_seed(seed)
    target = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=VOCABULARY,
            hidden_size=config.hidden_size,
            intermediate_size=20,
            num_hidden_layers=TARGET_LAYERS,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=8,
            tie_word_embeddings=False,
        )
    ).eval()
    with torch.no_grad():
        shared = torch.randn(config.hidden_size)
        target.model.embed_tokens.weight.add_(shared)
        target.lm_head.weight[:4].add_(0.3 * shared)
    ours, theirs = both(config, seed)
    prompt, new = torch.randint(0, VOCABULARY, (1, 6)), 20
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(oracle, "_cuda_time", lambda: 0.0)  # the package measures its own time with CUDA
        stats = oracle.dflash_generate(theirs, target, prompt, new, None, return_stats=True)
    ids = stats.output_ids[0].tolist()
    with torch.inference_mode():
        states = target(torch.tensor([ids]), output_hidden_states=True).hidden_states
        taps = torch.cat([states[layer + 1][0] for layer in config.target_layer_ids], dim=-1)
        ends = TargetEnds(target.model.embed_tokens.weight, target.lm_head.weight)
        loaded = LoadedDrafter(config, ours, Head.of_target(ends, config), None, "", None)
        drafting = Drafting(loaded, ends, [Text(tuple(ids), 6, tuple(ids[6:]))], lambda index: taps)
        anchor = 6
        for length in stats.acceptance_lengths:
            room = len(ids) - 1 - anchor  # the package counts no token past the limit
            if room >= config.block_size - 1:
                outcome = drafting.outcomes([(0, anchor)], ())[0]
                assert outcome.near_tie or min(outcome.block_round(anchor).length, room) == length
            else:
                draft = short_block(ours, ends, ids, anchor, taps)
                assert min(leading_run(draft, ids[anchor + 1 :]) + 1, room) == length
            anchor += length


def short_block(model, ends, ids, anchor, taps):
    """The package's last block: only as many masks as there is room."""
    config = model.config
    block = torch.full((1, len(ids) - anchor), config.mask_token_id)
    block[0, 0] = ids[anchor]
    embeds = ends.embed(block, config.input_embedding_scale)
    hidden = model(model.context(taps), embeds, torch.tensor([anchor]))
    return Head.of_target(ends, config).logits(hidden[0, 1:]).argmax(-1).tolist()
