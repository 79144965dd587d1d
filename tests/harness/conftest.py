"""The harness runs as plain scripts from its own folder; so do these tests of it, on a tiny target made on the spot."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

HARNESS = Path(__file__).resolve().parents[2] / "remote_payload" / "harness"
sys.path.insert(0, str(HARNESS))

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
    from transformers import Qwen3Config, Qwen3ForCausalLM

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


def drafter_config(**changes):
    from drafter_config import FULL, DrafterConfig

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


@pytest.fixture(scope="session")
def bench(tmp_path_factory):
    from extract_hidden_states import main as extract

    root = tmp_path_factory.mktemp("bench")
    target = make_target(root / "target")
    generator = torch.Generator().manual_seed(3)
    prompts = root / "prompts.jsonl"
    with open(prompts, "w") as stream:
        for index in range(3):
            ids = torch.randint(0, VOCABULARY, (5 + index,), generator=generator).tolist()
            line = {"id": f"p{index}", "data_set": "even" if index % 2 == 0 else "odd", "token_ids": ids}
            stream.write(json.dumps(line) + "\n")
    config = drafter_config()
    drafter = save_drafter(root / "drafter", config, random_state(config))
    baseline = save_drafter(root / "baseline", config, random_state(config, seed=2))
    options = ["--target", target, "--drafter", drafter, "--prompts", prompts, "--max-new-tokens", 24]
    assert extract([*map(str, options), "--out", str(root / "cache")]) == 0
    return Bench(target, prompts, root / "cache", drafter, baseline)
