"""Whether a drafter fits: its tensors its configuration, its configuration a cache. Names and shapes alone, no torch,
so that `check_tensors.py` asks the same of a checkpoint that is still on the training box.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from drafter_config import DrafterConfig, check_taps
from refusal import Refused

WRAPPERS = ("module.", "_orig_mod.", "_fsdp_wrapped_module.", "draft_model.", "model.", "draft.")
BORROWED = ("embed_tokens.weight", "lm_head.weight", "verifier_lm_head.weight")
"""the target's own tensors, of which a checkpoint may hold copies"""
TRAINING_ONLY = ("verifier_norm.weight",)
OWN_HEAD = ("lm_head.weight", "d2t")
"""what a drafter with a vocabulary of its own brings"""
_DFLASH_2 = re.compile(r"candidate_selector\.|\.(attention|mlp)_conv\.")
_CONFIG_KEYS = ("drafter", "drafter_config", "draft_config", "config", "args")
Value = TypeVar("Value")


def strip_wrappers(state: Mapping[str, Value]) -> dict[str, Value]:
    """Take the prefixes off that training wrappers put before names, in any order and number."""
    stripped: dict[str, Value] = {}
    for name, tensor in state.items():
        bare = name
        while prefix := next((wrapper for wrapper in WRAPPERS if bare.startswith(wrapper)), None):
            bare = bare.removeprefix(prefix)
        if bare in stripped:
            raise Refused(f"two tensors are both {bare} once wrappers are taken off: is more than one model in there?")
        stripped[bare] = tensor
    return stripped


def check_shapes(found: Mapping[str, tuple[int, ...]], config: DrafterConfig, file: str) -> None:
    """Refuse tensors that are not exactly those of a drafter of this configuration. `found` has no borrowed ones."""
    expected = config.state_shapes()
    _check_names(found, expected, file)
    for name, shape in expected.items():
        if found[name] != shape:
            hint = ""
            if name == "fc.weight":
                hint = f" (target_layer_ids names {len(config.target_layer_ids)} taps of {config.hidden_size})"
            raise Refused(f"{file}: {name} is {list(found[name])}, expected {list(shape)}{hint}")


def _check_names(found: Mapping[str, Any], expected: Mapping[str, Any], file: str) -> None:
    missing, unexpected = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
    if any(_DFLASH_2.search(name) for name in unexpected):
        raise Refused(
            f"{file}: holds {unexpected[0]}: a DFlash-2 drafter selects its tokens one after another and "
            "is not supported"
        )
    if missing or unexpected:
        parts = [
            f"{word} {_some(names)}" for word, names in (("missing", missing), ("unexpected", unexpected)) if names
        ]
        raise Refused(f"{file}: not the tensors of this drafter: {'; '.join(parts)}")


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:6])
    return shown if len(names) <= 6 else f"{shown} and {len(names) - 6} more"


def check_cached(config: DrafterConfig, manifest: Mapping[str, Any], folder: Path) -> None:
    """Refuse a drafter of another target than a cache's, or one whose taps are not cached."""
    layers = manifest["target"]["num_layers"]
    if config.num_target_layers not in (None, layers):
        raise Refused(f"the drafter's target has {config.num_target_layers} layers, the cache's {layers}")
    check_taps(config.target_layer_ids, layers)
    held = list(manifest["target_layer_ids"])
    absent = [layer for layer in config.target_layer_ids if layer not in held]
    if absent:
        raise Refused(
            f"{folder}: holds layers {held}, the drafter also reads {absent}. "
            "Extract again with --layers naming them all"
        )


def search_config(value: Any, depth: int = 3) -> Mapping[str, Any] | None:
    """The drafter's configuration in what a checkpoint carries: itself, or under a key that trainers use."""
    if isinstance(value, argparse.Namespace):
        value = vars(value)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError:
            return None
    if not isinstance(value, Mapping):
        return None
    if "speculators_model_type" in value or ("num_hidden_layers" in value and "hidden_size" in value):
        return value
    inner = (search_config(value[key], depth - 1) for key in _CONFIG_KEYS if depth and key in value)
    return next((found for found in inner if found), None)
