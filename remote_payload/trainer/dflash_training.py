"""One optimizer step of DFlash: random blocks of the target's own text, filled in one pass, weighted by position.

Axes: N texts, S positions, K taps, A anchors of one text, B positions of a block, H hidden size, V vocabulary.
Source: "DFlash" (arXiv 2602.06036): random anchors drawn anew each time, cross-entropy on rows 1..B-1 of a block,
weight exp(-(k - 1) / gamma), embedding and head borrowed from the frozen target.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from drafter import FULL, Drafter, DrafterConfig
from torch.nn import functional
from transformers.models.qwen3 import Qwen3Config, Qwen3ForCausalLM

from remote_payload.trainer.greedy_text import GreedyText
from remote_payload.trainer.language import MASK_TOKEN

BLOCK_SIZE = 8
GAMMA = 4.0
"""How fast the weight falls along a block: 4 is the paper's choice for blocks of 8."""
TEXTS_PER_STEP = 4
ANCHORS_PER_TEXT = 16
WARM_UP_STEPS = 20


def drafter_config(target: Qwen3Config) -> DrafterConfig:
    """Two layers beside `target`, which it taps after its first layer, a middle one and the last but one."""
    last_but_one = target.num_hidden_layers - 2
    return DrafterConfig(
        hidden_size=target.hidden_size,
        num_layers=2,
        heads=4,
        kv_heads=2,
        head_dim=24,
        intermediate_size=192,
        vocab_size=target.vocab_size,
        rms_norm_eps=target.rms_norm_eps,
        rope_theta=float(target.rope_parameters["rope_theta"]),
        block_size=BLOCK_SIZE,
        mask_token_id=MASK_TOKEN,
        target_layer_ids=(0, last_but_one // 2, last_but_one),
        num_target_layers=target.num_hidden_layers,
        layer_types=(FULL, FULL),
    )


@dataclass
class DrafterTraining:
    """A drafter, its optimizer and the text it learns from; `step` changes the first two."""

    drafter: Drafter
    target: Qwen3ForCausalLM
    text: GreedyText
    learning_rate: float
    generator: torch.Generator
    """Draws the order of the texts and the anchors, on the CPU: the same numbers wherever the drafter runs."""
    optimizer: torch.optim.AdamW = field(init=False)
    warm_up: torch.optim.lr_scheduler.LRScheduler = field(init=False)
    order: Iterator[int] = field(init=False)

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.AdamW(self.drafter.parameters(), lr=self.learning_rate)
        self.warm_up = torch.optim.lr_scheduler.LinearLR(self.optimizer, 1 / WARM_UP_STEPS, total_iters=WARM_UP_STEPS)
        self.order = _shuffled_forever(self.text.ids_NS.shape[0], self.generator)

    @property
    def tokens_per_step(self) -> int:
        return TEXTS_PER_STEP * self.text.ids_NS.shape[1]

    @property
    def steps_per_epoch(self) -> float:
        return self.text.ids_NS.shape[0] / TEXTS_PER_STEP

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds of this: `model`, exactly the drafter's own tensors, and `optimizer`."""
        return {"model": self.drafter.state_dict(), "optimizer": self.optimizer.state_dict()}

    def step(self) -> float:
        """Learn from TEXTS_PER_STEP texts with ANCHORS_PER_TEXT blocks each. Returns the loss before the change."""
        self.optimizer.zero_grad()
        losses = []
        for _ in range(TEXTS_PER_STEP):
            loss = self.loss_on(next(self.order)) / TEXTS_PER_STEP
            loss.backward()
            losses.append(loss.detach())
        torch.nn.utils.clip_grad_norm_(self.drafter.parameters(), 1.0)
        self.optimizer.step()
        self.warm_up.step()
        return float(torch.stack(losses).sum())

    def loss_on(self, index: int) -> torch.Tensor:
        """Weighted cross-entropy over random whole blocks in the greedy part of text `index`."""
        ids_S = self.text.ids_NS[index]
        last_anchor = ids_S.shape[0] - BLOCK_SIZE
        anchors_A = torch.randint(
            self.text.prompt_length, last_anchor + 1, (ANCHORS_PER_TEXT,), generator=self.generator
        ).to(ids_S.device)
        truth_AB = ids_S[anchors_A[:, None] + torch.arange(BLOCK_SIZE, device=ids_S.device)]
        masked_AB = torch.full_like(truth_AB, MASK_TOKEN)
        masked_AB[:, 0] = truth_AB[:, 0]

        ctx_SH = self.drafter.context(self.text.taps_NSK[index])
        hidden_ABH = self.drafter(ctx_SH, self.target.get_input_embeddings()(masked_AB), anchors_A)
        logits_ABV = self.target.lm_head(hidden_ABH[:, 1:])
        loss_AB = functional.cross_entropy(logits_ABV.flatten(0, 1), truth_AB[:, 1:].flatten(), reduction="none")
        return (loss_AB.view(ANCHORS_PER_TEXT, -1) * position_weights(loss_AB.device)).mean(0).sum()


def position_weights(device: torch.device) -> torch.Tensor:
    """Weights of rows 1..B-1, falling as exp(-(k - 1) / GAMMA) and adding up to 1."""
    weights = torch.tensor([math.exp(-(k - 1) / GAMMA) for k in range(1, BLOCK_SIZE)], device=device)
    return weights / weights.sum()


def _shuffled_forever(count: int, generator: torch.Generator) -> Iterator[int]:
    while True:
        yield from torch.randperm(count, generator=generator).tolist()
