"""What the drafter learns from: the target's own greedy text, with the hidden states that the drafter taps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers.models.qwen3 import Qwen3ForCausalLM

TEXTS_AT_ONCE = 64
"""Bounds the memory of a forward pass over whole texts."""


@dataclass(frozen=True)
class GreedyText:
    """N texts of S tokens that begin with prompts of `prompt_length` tokens and go on greedily."""

    ids_NS: torch.Tensor
    taps_NSK: torch.Tensor
    """Per token the residual streams after the tapped layers, side by side in the order of the layer ids."""
    prompt_length: int


@torch.no_grad()
def greedy_text(
    target: Qwen3ForCausalLM, prompts: Sequence[Sequence[int]], *, length: int, layer_ids: Sequence[int]
) -> GreedyText:
    """Continue `prompts` (all of one length) to `length` tokens and tap the decoder layers `layer_ids` (0-based)."""
    ids_NS = torch.tensor(prompts, device=target.device)
    prompt_length = ids_NS.shape[1]
    step = target(input_ids=ids_NS, use_cache=True, logits_to_keep=1)
    while True:
        next_N1 = step.logits[:, -1:].argmax(-1)
        ids_NS = torch.cat([ids_NS, next_N1], dim=1)
        if ids_NS.shape[1] == length:
            break
        step = target(input_ids=next_N1, past_key_values=step.past_key_values, use_cache=True)
    taps_NSK = torch.cat([taps(target, some_NS, layer_ids) for some_NS in ids_NS.split(TEXTS_AT_ONCE)])
    return GreedyText(ids_NS, taps_NSK, prompt_length)


def taps(target: Qwen3ForCausalLM, ids_NS: torch.Tensor, layer_ids: Sequence[int]) -> torch.Tensor:
    """taps_NSK of whole texts.

    hidden_states[0] is the embedding, hidden_states[i + 1] the residual stream after layer i, except that the last
    entry has the final norm applied: a drafter must not tap the last layer.
    """
    hidden_states = target.model(input_ids=ids_NS, use_cache=False, output_hidden_states=True).hidden_states
    return torch.cat([hidden_states[layer + 1] for layer in layer_ids], dim=-1)
