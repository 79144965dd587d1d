"""A tiny target and drafters for it, made on the spot."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from drafter_config import FULL, DrafterConfig
from safetensors.torch import load_file, save_file
from target import TargetEnds
from transformers import Qwen3Config, Qwen3ForCausalLM

HARNESS = Path(__file__).resolve().parents[2] / "remote_payload" / "harness"
VOCABULARY, HIDDEN, LAYERS = 96, 32, 4


@dataclass(frozen=True)
class Bench:
    """A target, its cache and two drafters on disk; every test that damages something copies it first."""

    target: Path
    prompts: Path
    cache: Path
    drafter: Path
    baseline: Path


def make_target(folder, *, tied=False, seed=0):
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=48,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        tie_word_embeddings=tied,
        eos_token_id=None,
        bos_token_id=None,
        initializer_range=0.3,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


def ends_of(target):
    """Embedding and head of a target folder that doesn't tie them."""
    tensors = load_file(target / "model.safetensors")
    return TargetEnds(tensors["model.embed_tokens.weight"], tensors["lm_head.weight"])


def drafter_config(**changes):
    values = {
        "hidden_size": HIDDEN,
        "num_layers": 2,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 8,
        "intermediate_size": 40,
        "vocab_size": VOCABULARY,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e4,
        "block_size": 6,
        "mask_token_id": VOCABULARY - 1,
        "target_layer_ids": (0, 2),
        "num_target_layers": LAYERS,
        "layer_types": (FULL, FULL),
    }
    return DrafterConfig(**{**values, **changes})


def random_state(config, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.ones(shape) if len(shape) == 1 else torch.randn(shape, generator=generator) / shape[-1] ** 0.5
        for name, shape in config.state_shapes().items()
    }


def save_drafter(folder, config, state):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config.to_hf()))
    save_file(state, folder / "model.safetensors")
    return folder
