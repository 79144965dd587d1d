"""The target's own choice after each position, and by how much: the two best logits, the head read once in blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from decoder import Decoder
from torch import Tensor

_BLOCK = 8192  # rows of the vocabulary widened at a time
_LOGITS = 4 << 20  # logits held at a time
NEAR_TIE = 1e-3  # a margin that another engine's or batch's rounding may turn round


@dataclass(frozen=True, eq=False)
class Choices:
    """Greedy tokens [N] and their margins [N] over the second best, in logits before any soft cap."""

    ids: Tensor
    margins: Tensor


@torch.inference_mode()
def choose(decoder: Decoder, normed_NH: Tensor, room: Tensor, done: Callable[[int, int], None]) -> Choices:
    """Greedy choices after rows [N, H] of the last layer's normed residuals. Of equal logits the lowest id wins.

    `room` is memory to widen blocks of the head in; `done(block, blocks)` is called after each.
    """
    head_VH = decoder.files.view(decoder.head_name)
    count, hidden = normed_NH.shape
    block = max(1, min(_BLOCK, room.numel() // hidden))
    best_N, second_N = normed_NH.new_full((2, count), float("-inf"))
    ids_N = torch.zeros(count, dtype=torch.long)
    starts = range(0, head_VH.shape[0], block)
    for number, start in enumerate(starts, start=1):
        part_CH = head_VH[start : start + block]
        weight_CH = room[: part_CH.numel()].view(part_CH.shape)
        weight_CH.copy_(part_CH)
        for rows in torch.arange(count).split(max(1, _LOGITS // len(part_CH))):
            part = slice(int(rows[0]), int(rows[-1]) + 1)
            logits_RC = normed_NH[part] @ weight_CH.T
            _keep_best(logits_RC, start, best_N[part], second_N[part], ids_N[part])
        decoder.files.release(decoder.head_name)
        done(number, len(starts))
    return Choices(ids_N, best_N - second_N)


def _keep_best(logits_RC: Tensor, start: int, best_R: Tensor, second_R: Tensor, ids_R: Tensor) -> None:
    """Merge a block's two best into the running ones."""
    places_R1 = logits_RC.argmax(-1, keepdim=True)
    top_R = logits_RC.gather(-1, places_R1)[:, 0]
    runner_up_R = logits_RC.scatter_(-1, places_R1, float("-inf")).amax(-1)
    better_R = top_R > best_R
    second_R.copy_(torch.maximum(torch.minimum(top_R, best_R), torch.maximum(second_R, runner_up_R)))
    ids_R.copy_(torch.where(better_R, places_R1[:, 0] + start, ids_R))
    best_R.copy_(torch.maximum(top_R, best_R))


def greedy_tokens(produced: Sequence[int], chosen: Sequence[int]) -> int:
    """How many tokens of a completion are the target's choice, before the first that is not."""
    for place, (token, choice) in enumerate(zip(produced, chosen, strict=True)):
        if token != choice:
            return place
    return len(produced)


def greedy_facts(entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How far the texts are the target's own, and how close its choices were."""
    margins = [margin for entry in entries for margin in entry["margins"]]
    cut = [entry for entry in entries if entry["greedy_tokens"] < len(entry["argmax"])]
    return {
        "tokens": len(margins),
        "texts_not_greedy": len(cut),
        "tokens_not_greedy": sum(map(not_greedy, entries)),
        "margins_at_first_mismatch": [entry["margins"][entry["greedy_tokens"]] for entry in cut],
        "near_ties": sum(margin < NEAR_TIE for margin in margins),
        "smallest_margin": min(margins, default=None),
        "median_margin": float(f"{median(margins):.4g}") if margins else None,
    }


def not_greedy(entry: dict[str, Any]) -> int:
    """How many tokens of a completion are not the target's choice in the pass that read the hidden states."""
    produced = entry["token_ids"][entry["prompt_length"] :]
    return sum(token != choice for token, choice in zip(produced, entry["argmax"], strict=True))
