"""The drafter that is measured, of random weights, and the same one in the `dflash` package."""

from __future__ import annotations

from typing import Any

import torch
from drafter import Drafter, DrafterConfig
from drafter_config import FULL

LAYERS, HIDDEN, VOCABULARY, TAPPED = 28, 1024, 32768, (1, 7, 13, 19, 25)
CONFIG = DrafterConfig(
    hidden_size=HIDDEN,
    num_layers=5,
    heads=16,
    kv_heads=8,
    head_dim=128,
    intermediate_size=3072,
    vocab_size=VOCABULARY,
    rms_norm_eps=1e-6,
    rope_theta=1e6,
    block_size=16,
    mask_token_id=VOCABULARY - 1,
    target_layer_ids=TAPPED,
    num_target_layers=LAYERS,
    layer_types=(FULL,) * 5,
)


def random_drafter(generator: torch.Generator) -> Drafter:
    with torch.device("meta"):
        model = Drafter(CONFIG)
    model.load_state_dict(random_weights(CONFIG.state_shapes(), generator), assign=True)
    return model.eval().requires_grad_(False)


def random_weights(shapes: dict[str, Any], generator: torch.Generator) -> dict[str, torch.Tensor]:
    return {
        name: torch.ones(shape) if len(shape) == 1 else torch.randn(shape, generator=generator) / shape[-1] ** 0.5
        for name, shape in shapes.items()
    }


def dflash() -> Any:
    """The package's module; None where it isn't installed."""
    try:
        import dflash.model
    except ImportError:
        print("  the dflash package is not installed: no rival (pip install --no-deps dflash==0.1.0)")
        return None
    return dflash.model


def package_drafter(oracle: Any, model: Drafter) -> Any:
    from transformers import Qwen3Config

    document = {key: each for key, each in CONFIG.to_hf().items() if key not in ("architectures", "model_type")}
    with torch.device("meta"):
        rival = oracle.DFlashDraftModel(Qwen3Config(**document, attn_implementation="sdpa"))
    rival.load_state_dict(model.state_dict(), assign=True)
    rival.rotary_emb = type(rival.rotary_emb)(rival.config)  # its buffers are computed, not stored
    return rival.eval()
