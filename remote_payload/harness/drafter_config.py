"""What a drafter is: its geometry and the conventions it was trained with, read from any layout in use.

Three layouts describe the same thing: the old Hugging Face one (`block_size` and `rope_theta` on top), the new one
(`dflash_config.block_size`, `rope_parameters`) and the speculators one (the backbone under `transformer_layer_config`,
layer ids counted one higher). Nothing is guessed: a value that changes the function and is absent is refused, because
a drafter with the right shapes and one wrong convention loads cleanly and then measures nonsense.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from refusal import Refused

FULL, SLIDING = "full_attention", "sliding_attention"
_ANCHOR_FIRST = ("sample_from_anchor", "query_zero_predicts_next")
_SEQUENTIAL = ("selector_rank", "selector_top_k", "conv_kernel_size", "conv_group_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterConfig:
    """Geometry and conventions of one DFlash drafter; consistent once built (else `Refused`).

    `target_layer_ids` are 0-based: tap i is the target's residual stream after decoder layer target_layer_ids[i].
    `is_causal` None is the reference's default: sliding layers causal inside the block, full layers bidirectional.
    `draft_vocab_size` is set only for a drafter with its own, smaller output vocabulary.
    """

    hidden_size: int
    num_layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int | None
    layer_types: tuple[str, ...]
    sliding_window: int | None = None
    is_causal: bool | None = None
    draft_vocab_size: int | None = None
    input_embedding_scale: float = 1.0
    output_multiplier: float = 1.0
    final_logit_softcapping: float | None = None

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise Refused(f"{self.heads} attention heads can't share {self.kv_heads} key-value heads evenly")
        if self.head_dim % 2:
            raise Refused(f"head_dim is {self.head_dim}; rotary positions need an even one")
        if self.block_size < 2:
            raise Refused(f"block_size is {self.block_size}; a block is the anchor and at least one drafted token")
        if not 0 <= self.mask_token_id < self.vocab_size:
            raise Refused(f"mask_token_id {self.mask_token_id} is beyond the vocabulary of {self.vocab_size} tokens")
        self._check_layers()

    def _check_layers(self) -> None:
        if len(self.layer_types) != self.num_layers:
            raise Refused(f"layer_types names {len(self.layer_types)} layers, num_hidden_layers is {self.num_layers}")
        unknown = sorted(set(self.layer_types) - {FULL, SLIDING})
        if unknown:
            raise Refused(f"layer_types holds {', '.join(unknown)}; only {FULL} and {SLIDING} are known")
        if SLIDING in self.layer_types and not self.sliding_window:
            raise Refused(f"layer_types holds {SLIDING}, but no sliding_window is in force (see use_sliding_window)")
        ids = self.target_layer_ids
        if not ids or min(ids) < 0 or len(set(ids)) != len(ids):
            raise Refused(f"target_layer_ids {list(ids)} must be distinct layers counted from 0")
        if self.num_target_layers is not None:
            check_taps(ids, self.num_target_layers)

    @property
    def taps_size(self) -> int:
        """Width of the concatenated taps, K * hidden_size."""
        return len(self.target_layer_ids) * self.hidden_size

    def causal(self, layer: int) -> bool:
        """Whether a block position of this layer sees only itself and earlier ones."""
        return self.layer_types[layer] == SLIDING if self.is_causal is None else self.is_causal

    def window(self, layer: int) -> int | None:
        """How many positions back this layer sees, itself included; None is everything."""
        return self.sliding_window if self.layer_types[layer] == SLIDING else None

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor of the drafter and its shape: the exact key set of a state dict."""
        hidden, inner = self.hidden_size, self.intermediate_size
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        layer: dict[str, tuple[int, ...]] = {
            "self_attn.q_proj": (queries, hidden),
            "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden),
            "self_attn.o_proj": (hidden, queries),
            "self_attn.q_norm": (self.head_dim,),
            "self_attn.k_norm": (self.head_dim,),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
        }
        shapes: dict[str, tuple[int, ...]] = {
            f"layers.{index}.{name}.weight": shape for index in range(self.num_layers) for name, shape in layer.items()
        }
        shapes["fc.weight"] = (hidden, self.taps_size)
        return shapes | {"hidden_norm.weight": (hidden,), "norm.weight": (hidden,)}

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> DrafterConfig:
        """Read a config.json of any layout. Raises `Refused`, naming what is missing or not a plain DFlash drafter."""
        _refuse_other_kinds(config)
        if "speculators_model_type" in config:
            return cls(**_from_speculators(config))
        return cls(**_from_plain(config))

    def to_hf(self) -> dict[str, Any]:
        """This drafter as a config.json in the new layout (block size also on top, where older readers look)."""
        dflash: dict[str, Any] = {
            "block_size": self.block_size,
            "mask_token_id": self.mask_token_id,
            "target_layer_ids": list(self.target_layer_ids),
            "input_embedding_scale": self.input_embedding_scale,
            "output_multiplier": self.output_multiplier,
        }
        if self.final_logit_softcapping is not None:
            dflash["final_logit_softcapping"] = self.final_logit_softcapping
        optional = {
            "num_target_layers": self.num_target_layers,
            "is_causal": self.is_causal,
            "draft_vocab_size": self.draft_vocab_size,
        }
        return {
            "architectures": ["DFlashDraftModel"],
            "model_type": "qwen3",
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.intermediate_size,
            "vocab_size": self.vocab_size,
            "hidden_act": "silu",
            "attention_bias": False,
            "rms_norm_eps": self.rms_norm_eps,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta},
            "layer_types": list(self.layer_types),
            "sliding_window": self.sliding_window,
            "use_sliding_window": self.sliding_window is not None,
            "tie_word_embeddings": False,
            "block_size": self.block_size,
            "dflash_config": dflash,
        } | {key: value for key, value in optional.items() if value is not None}


def check_taps(layer_ids: tuple[int, ...], num_target_layers: int) -> None:
    """Refuse taps that the target lacks, and the last layer: engines disagree on whether it is normed there."""
    if max(layer_ids) >= num_target_layers:
        raise Refused(f"target_layer_ids {list(layer_ids)} go beyond the target's {num_target_layers} layers")
    if max(layer_ids) == num_target_layers - 1:
        raise Refused(
            f"target_layer_ids {list(layer_ids)} include the last layer ({num_target_layers - 1}): some engines hand "
            "out its normed output, others the raw residual, so the taps can't be trusted"
        )


def _refuse_other_kinds(config: Mapping[str, Any]) -> None:
    """Drafters that look like DFlash and compute something else."""
    dflash = config.get("dflash_config") or {}
    for key in _ANCHOR_FIRST:
        if config.get(key) or dflash.get(key):
            raise Refused(f"{key} is set: an anchor-first drafter shifts every position by one and is not supported")
    for key in _SEQUENTIAL:
        if config.get(key) or dflash.get(key):
            raise Refused(f"{key} is set: a DFlash-2 drafter selects its tokens one after another and is not supported")
    names = config.get("architectures") or ["DFlashDraftModel"]
    if names != ["DFlashDraftModel"]:
        raise Refused(f"architectures is {names}, not DFlashDraftModel")
    if dflash.get("attention_sink_bias"):
        raise Refused("dflash_config.attention_sink_bias is set: attention sinks are not supported")


def _from_plain(config: Mapping[str, Any]) -> dict[str, Any]:
    dflash = config.get("dflash_config") or {}
    merged = {**config, **dflash}
    causal = config.get("is_causal")
    return _backbone(config) | {
        "block_size": _integer(merged, "block_size"),
        "mask_token_id": _integer(merged, "mask_token_id", least=0),
        "target_layer_ids": _layer_ids(merged, "target_layer_ids", shift=0),
        "num_target_layers": _integer(config, "num_target_layers") if config.get("num_target_layers") else None,
        "is_causal": causal if causal is not None else dflash.get("causal"),
        "draft_vocab_size": _reduced_vocabulary(config, config),
        "input_embedding_scale": float(merged.get("input_embedding_scale", 1.0)),
        "output_multiplier": float(merged.get("output_multiplier", 1.0)),
        "final_logit_softcapping": merged.get("final_logit_softcapping") or None,
    }


def _from_speculators(config: Mapping[str, Any]) -> dict[str, Any]:
    kind = config["speculators_model_type"]
    if kind != "dflash":
        raise Refused(f"speculators_model_type is {kind}, not dflash")
    backbone = config.get("transformer_layer_config")
    if not isinstance(backbone, Mapping):
        raise Refused("transformer_layer_config is missing from the speculators config")
    wide = config.get("target_hidden_size")
    if wide not in (None, backbone.get("hidden_size")):
        raise Refused(f"target_hidden_size is {wide}, the drafter's hidden_size {backbone.get('hidden_size')}")
    return _backbone(backbone) | {
        "block_size": _integer(config, "block_size"),
        "mask_token_id": _integer(config, "mask_token_id", least=0),
        "target_layer_ids": _layer_ids(config, "aux_hidden_state_layer_ids", shift=1),
        "num_target_layers": None,
        "is_causal": False if config.get("sliding_window_non_causal") else None,
        "draft_vocab_size": _reduced_vocabulary(config, backbone),
    }


def _backbone(config: Mapping[str, Any]) -> dict[str, Any]:
    """The Qwen3 part, the same in every layout."""
    if config.get("attention_bias"):
        raise Refused("attention_bias is set: a DFlash drafter has no biases")
    if config.get("hidden_act", "silu") != "silu":
        raise Refused(f"hidden_act is {config['hidden_act']}, not silu")
    layers = _integer(config, "num_hidden_layers")
    layer_types = tuple(config.get("layer_types") or [FULL] * layers)
    return {
        "hidden_size": _integer(config, "hidden_size"),
        "num_layers": layers,
        "heads": _integer(config, "num_attention_heads"),
        "kv_heads": _integer(config, "num_key_value_heads"),
        "head_dim": _integer(config, "head_dim"),
        "intermediate_size": _integer(config, "intermediate_size"),
        "vocab_size": _integer(config, "vocab_size"),
        "rms_norm_eps": _number(config, "rms_norm_eps"),
        "rope_theta": _rope_theta(config),
        "layer_types": layer_types,
        "sliding_window": _sliding_window(config, layer_types),
    }


def _sliding_window(config: Mapping[str, Any], layer_types: tuple[str, ...]) -> int | None:
    """The window in force. The reference drops it when use_sliding_window is false; that contradiction is refused."""
    dflash = config.get("dflash_config") or {}
    if SLIDING not in layer_types:
        if dflash.get("use_swa"):
            raise Refused("dflash_config.use_swa is set, but layer_types names no sliding_attention layer")
        return None
    if config.get("use_sliding_window") is False:
        raise Refused("layer_types holds sliding_attention, but use_sliding_window is false: which one holds?")
    window = _integer(config, "sliding_window")
    other = dflash.get("swa_window_size")
    if other not in (None, window):
        raise Refused(f"sliding_window is {window}, dflash_config.swa_window_size {other}")
    return window


def _rope_theta(config: Mapping[str, Any]) -> float:
    """Theta from rope_parameters, else from the top; scaled variants (YaRN and others) are refused."""
    parameters = config.get("rope_parameters") or {}
    scaling = config.get("rope_scaling") or {}
    for rope in (parameters, scaling):
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind != "default":
            raise Refused(f"rope_type is {kind}; only default rotary positions are supported")
        if rope.get("partial_rotary_factor", 1.0) != 1.0:
            raise Refused("partial_rotary_factor is not 1: partly rotated heads are not supported")
    return _number(parameters if "rope_theta" in parameters else config, "rope_theta")


def _reduced_vocabulary(config: Mapping[str, Any], backbone: Mapping[str, Any]) -> int | None:
    size = config.get("draft_vocab_size")
    return None if size in (None, backbone.get("vocab_size")) else _integer(config, "draft_vocab_size")


def _layer_ids(config: Mapping[str, Any], key: str, shift: int) -> tuple[int, ...]:
    ids = config.get(key)
    if not isinstance(ids, (list, tuple)) or not all(type(layer) is int for layer in ids):
        raise Refused(f"{key} is missing or no list of layers: the taps can't be guessed from the shapes")
    return tuple(layer - shift for layer in ids)


def _integer(config: Mapping[str, Any], key: str, least: int = 1) -> int:
    value = config.get(key)
    if type(value) is not int or value < least:
        raise Refused(f"{key} is {'missing' if value is None else repr(value)}; expected an integer from {least} up")
    return value


def _number(config: Mapping[str, Any], key: str) -> float:
    value = config.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
        raise Refused(f"{key} is {'missing' if value is None else repr(value)}; expected a number above 0")
    return float(value)
