"""Drafters from files, strictly: every weight is there, has its shape and is finite, or the file is refused.

Read are Hugging Face folders (old and new configuration), speculators folders (also with a reduced vocabulary), one
safetensors file whose metadata carries the configuration, plain torch files and SpecForge training states (these with
`weights_only=True`, so no code in them runs).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from checkpoint_files import Checkpoint, read_checkpoint
from drafter import Drafter
from drafter_config import DrafterConfig
from fitting import BORROWED, TRAINING_ONLY, check_shapes, strip_wrappers
from refusal import Refused
from target import Head, TargetEnds
from torch import Tensor


@dataclass(frozen=True, eq=False)
class LoadedDrafter:
    """A drafter ready to evaluate, with the head that turns its hidden states into tokens."""

    config: DrafterConfig
    model: Drafter
    head: Head
    file: Path
    sha256: str
    step: int | None


def load_drafter(path: Path, ends: TargetEnds, config: Path | None = None) -> LoadedDrafter:
    """Load the drafter at `path` to run with a target. `config` names a config.json for files that carry none.

    Raises `Refused` with the reason for anything that is not exactly a DFlash drafter of this target.
    """
    checkpoint = read_checkpoint(path, config)
    try:
        settings = DrafterConfig.from_hf(checkpoint.config)
    except Refused as error:
        raise Refused(f"{checkpoint.config_source}: {error}") from None
    _check_fits(settings, ends, checkpoint)
    state = strip_wrappers(checkpoint.state)
    head = _own_head(state, settings, ends, checkpoint)
    _drop_borrowed(state, ends, checkpoint)
    return LoadedDrafter(
        settings, _build(state, settings, checkpoint), head, checkpoint.file, checkpoint.sha256, checkpoint.step
    )


def _check_fits(config: DrafterConfig, ends: TargetEnds, checkpoint: Checkpoint) -> None:
    source = checkpoint.config_source
    if config.hidden_size != ends.hidden_size:
        raise Refused(f"{source}: hidden_size is {config.hidden_size}, the target's {ends.hidden_size}")
    if config.mask_token_id >= ends.vocab_size:
        raise Refused(f"{source}: mask_token_id {config.mask_token_id} is beyond the target's {ends.vocab_size} rows")
    if config.vocab_size != ends.vocab_size:
        raise Refused(f"{source}: vocab_size is {config.vocab_size}, the target's embedding has {ends.vocab_size} rows")


def _own_head(state: dict[str, Tensor], config: DrafterConfig, ends: TargetEnds, checkpoint: Checkpoint) -> Head:
    """The target's head; for a reduced vocabulary the drafter's own, with the token ids of its rows."""
    if config.draft_vocab_size is None:
        for name in ("t2d", "d2t"):
            state.pop(name, None)
        return Head.of_target(ends, config)
    rows = config.draft_vocab_size
    missing = [name for name in ("lm_head.weight", "d2t") if name not in state]
    if missing:
        raise Refused(f"{checkpoint.file}: draft_vocab_size is {rows}, but {', '.join(missing)} is missing")
    weight, offsets, members = state.pop("lm_head.weight"), state.pop("d2t"), state.pop("t2d", None)
    if tuple(weight.shape) != (rows, config.hidden_size) or tuple(offsets.shape) != (rows,):
        raise Refused(
            f"{checkpoint.file}: lm_head.weight is {list(weight.shape)} and d2t {list(offsets.shape)}; "
            f"expected [{rows}, {config.hidden_size}] and [{rows}]"
        )
    _check_finite("lm_head.weight", weight, checkpoint)
    token_ids = torch.arange(rows) + offsets.long()
    if not bool((token_ids.diff() > 0).all()) or int(token_ids[0]) < 0 or int(token_ids[-1]) >= ends.vocab_size:
        raise Refused(f"{checkpoint.file}: d2t does not map to rising token ids below {ends.vocab_size}")
    if members is not None and not torch.equal(members.bool().nonzero().flatten(), token_ids):
        raise Refused(f"{checkpoint.file}: t2d and d2t name different tokens")
    return Head(weight, token_ids, config.output_multiplier, config.final_logit_softcapping)


def _drop_borrowed(state: dict[str, Tensor], ends: TargetEnds, checkpoint: Checkpoint) -> None:
    """Drop copies of the target's own tensors, once they are seen to be the target's."""
    for name in TRAINING_ONLY:
        state.pop(name, None)
    for name in BORROWED:
        copy = state.pop(name, None)
        original = ends.embedding_VH if name.startswith("embed") else ends.head_VH
        if copy is not None and not torch.equal(copy, original.to(copy.dtype)):
            raise Refused(f"{checkpoint.file}: its {name} is not the target's: was it trained with another target?")


def _build(state: dict[str, Tensor], config: DrafterConfig, checkpoint: Checkpoint) -> Drafter:
    check_shapes({name: tuple(tensor.shape) for name, tensor in state.items()}, config, str(checkpoint.file))
    shapes = config.state_shapes()
    for name in shapes:
        _check_finite(name, state[name], checkpoint)
    with torch.device("meta"):
        model = Drafter(config)
    model.load_state_dict({name: state[name].float() for name in shapes}, strict=True, assign=True)
    return model.eval().requires_grad_(False)


def _check_finite(name: str, tensor: Tensor, checkpoint: Checkpoint) -> None:
    if not tensor.is_floating_point() or tensor.element_size() < 2:
        raise Refused(f"{checkpoint.file}: {name} is {tensor.dtype}; expected float32, bfloat16 or float16")
    if not bool(tensor.isfinite().all()):
        raise Refused(f"{checkpoint.file}: {name} holds numbers that are not finite: did training diverge?")


def projection_facts(loaded: LoadedDrafter, taps_SK: Tensor) -> dict[str, Any]:
    """Shape, mean and deviation of fc, of hidden_norm, and of what they make of real taps."""
    model = loaded.model
    with torch.no_grad():
        context_SH = model.context(taps_SK)
    if not bool(context_SH.isfinite().all()):
        raise Refused(f"{loaded.file}: fc and hidden_norm make numbers of the cached taps that are not finite")
    parts = {"fc": model.fc.weight, "hidden_norm": model.hidden_norm.weight, "taps": taps_SK, "context": context_SH}
    return {
        name: {"shape": list(part.shape), "mean": float(part.mean()), "std": float(part.std(unbiased=False))}
        for name, part in parts.items()
    }
