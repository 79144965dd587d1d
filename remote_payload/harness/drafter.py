"""The DFlash drafter in plain torch: one forward pass fills a whole block of masked tokens.

The drafter reads the target's hidden states ("taps") of the tokens before an anchor, and a block of embeddings: the
anchor token and block_size - 1 masks. Row k of its output predicts the token at position anchor + k. Blocks of many
sequences are computed together; the keys and values of a sequence's taps are computed once and shared by its blocks.

Axes: S context positions, N blocks, B positions in a block, C = S + B, H hidden size, K taps, G key-value heads,
R query heads per key-value head, D head size. Source: "DFlash" (arXiv 2602.06036), and the `dflash` package for
sliding-window layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from drafter_config import FULL, SLIDING, DrafterConfig
from refusal import Refused
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["FULL", "SLIDING", "Drafter", "DrafterConfig", "Refused"]

STRETCH = 8  # blocks of one sequence whose attention is computed together: its scores then stay in the CPU's cache

Rotary = tuple[Tensor, Tensor]
ContextKV = list[tuple[Tensor, Tensor]]
"""Of one sequence, for each layer: rotated keys and values of the context, each [G, S, D]."""


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last axis."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps))


@dataclass(frozen=True, slots=True)
class Visible:
    """Which context rows blocks of a sequence read: first..stop; None for the mask [N, B, rows + B]: all of them."""

    first: int
    stop: int
    mask_NBC: Tensor | None


@dataclass(frozen=True, slots=True)
class Stretch:
    """A few blocks of one sequence in a batch, and where their anchors lie."""

    sequence: int
    rows: slice
    lowest: int
    highest: int


class Places:
    """Where the blocks of one forward pass stand: positions, and what each may see. The same for all its layers."""

    def __init__(self, config: DrafterConfig, anchors_N: Tensor, counts: Sequence[int], width: int) -> None:
        self.positions_NB = anchors_N[:, None] + torch.arange(width, device=anchors_N.device)
        self.rotary = rotary_of(self.positions_NB, config)
        self.stretches: list[Stretch] = []
        anchors, first = anchors_N.tolist(), 0
        for sequence, count in enumerate(counts):
            for start in range(first, first + count, STRETCH):
                own = anchors[start : min(start + STRETCH, first + count)]
                self.stretches.append(Stretch(sequence, slice(start, start + len(own)), min(own), max(own)))
            first += count
        self._visible: dict[tuple[int, bool, int | None], Visible] = {}

    def visible(self, stretch: Stretch, causal: bool, window: int | None) -> Visible:
        """What the blocks of a stretch see on a layer of this kind.

        The window counts per query: a key is seen while query - key < window, and when the block is not causal also
        while key - query < window (the `dflash` package's `_attention_mask`).
        """
        key = (stretch.rows.start, causal, window)
        if key not in self._visible:
            self._visible[key] = self._see(stretch, causal, window)
        return self._visible[key]

    def _see(self, stretch: Stretch, causal: bool, window: int | None) -> Visible:
        first = 0 if window is None else max(0, stretch.lowest - window + 1)
        if stretch.lowest == stretch.highest and window is None and not causal:
            return Visible(first, stretch.highest, None)
        positions_NB = self.positions_NB[stretch.rows]
        width = positions_NB.shape[1]
        slots = torch.arange(width, device=positions_NB.device)
        rows_S = torch.arange(first, max(first, stretch.highest), device=positions_NB.device)
        context_NBS = (rows_S < positions_NB[:, :1])[:, None, :].expand(-1, width, -1)
        own_BB = torch.ones(width, width, dtype=torch.bool, device=positions_NB.device)
        back_BB = slots[:, None] - slots
        if causal:
            own_BB = own_BB & (back_BB >= 0)
        if window is not None:
            context_NBS = context_NBS & (positions_NB[..., None] - rows_S < window)
            own_BB = own_BB & (back_BB.abs() < window)
        mask_NBC = torch.cat((context_NBS, own_BB.expand(len(context_NBS), -1, -1)), dim=-1)
        return Visible(first, stretch.highest, mask_NBC)


class Attention(nn.Module):
    """Block positions attend to the context before their anchor and to their own block."""

    def __init__(self, config: DrafterConfig, layer: int) -> None:
        super().__init__()
        self.config = config
        self.causal = config.causal(layer)
        self.window = config.window(layer)
        queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, queries, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, keys, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, keys, bias=False)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=False)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps)

    def keys_values(self, rows: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor]:
        """Rotated keys and values [..., G, D] of rows [..., H]."""
        shape = (*rows.shape[:-1], self.config.kv_heads, self.config.head_dim)
        return rotate(self.k_norm(self.k_proj(rows).view(shape)), rotary), self.v_proj(rows).view(shape)

    def forward(self, rows_NBH: Tensor, contexts: Sequence[tuple[Tensor, Tensor]], places: Places) -> Tensor:
        """Attention of N blocks of several sequences. Projections are shared; each sequence has its own context."""
        blocks, width, _ = rows_NBH.shape
        groups, size = self.config.kv_heads, self.config.head_dim
        queries = self.q_norm(self.q_proj(rows_NBH).view(blocks, width, -1, size))
        queries = rotate(queries, places.rotary) * size**-0.5
        queries_NBGRD = queries.view(blocks, width, groups, -1, size)
        own = self.keys_values(rows_NBH, places.rotary)
        mixed = []
        for stretch in places.stretches:
            visible = places.visible(stretch, self.causal, self.window)
            own_keys, own_values = (part[stretch.rows] for part in own)
            context = contexts[stretch.sequence]
            mixed.append(attend(queries_NBGRD[stretch.rows], context, own_keys, own_values, visible))
        return self.o_proj(torch.cat(mixed) if len(mixed) > 1 else mixed[0])


def attend(
    queries_NBGRD: Tensor,
    context: tuple[Tensor, Tensor],
    own_keys_NBGD: Tensor,
    own_values_NBGD: Tensor,
    visible: Visible,
) -> Tensor:
    """Attention [N, B, G*R*D] of blocks of one sequence: two score parts, one softmax, no copy of the context."""
    blocks, width, groups, _, size = queries_NBGRD.shape
    keys_GSD, values_GSD = (part[:, visible.first : visible.stop] for part in context)
    seen = keys_GSD.shape[1]
    queries_GQD = queries_NBGRD.permute(2, 0, 3, 1, 4).reshape(groups, -1, size)  # Q = N * R * B
    own_queries = queries_GQD.view(groups, blocks, -1, size)
    own_scores = own_queries @ own_keys_NBGD.permute(2, 0, 3, 1)
    context_scores = (queries_GQD @ keys_GSD.transpose(1, 2)).view(groups, blocks, -1, seen)
    scores = torch.cat((context_scores, own_scores), dim=-1)
    if visible.mask_NBC is not None:
        by_row = scores.view(groups, blocks, -1, width, seen + width)
        scores = by_row.masked_fill_(~visible.mask_NBC[:, None], float("-inf")).view_as(scores)
    weights = scores.softmax(dim=-1)
    from_context = weights[..., :seen].reshape(groups, -1, seen) @ values_GSD
    from_own = weights[..., seen:] @ own_values_NBGD.permute(2, 0, 1, 3)
    mixed = (from_context.view_as(from_own) + from_own).view(groups, blocks, -1, width, size)
    return mixed.permute(1, 3, 0, 2, 4).reshape(blocks, width, -1)


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """Attention and MLP over the block rows. The context enters as keys and values only, un-normed, never updated."""

    def __init__(self, config: DrafterConfig, layer: int) -> None:
        super().__init__()
        self.self_attn = Attention(config, layer)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, rows_NBH: Tensor, contexts: Sequence[tuple[Tensor, Tensor]], places: Places) -> Tensor:
        rows_NBH = rows_NBH + self.self_attn(self.input_layernorm(rows_NBH), contexts, places)
        return rows_NBH + self.mlp(self.post_attention_layernorm(rows_NBH))


class Drafter(nn.Module):
    """A DFlash drafter; its state dict has exactly the keys of `DrafterConfig.state_shapes`.

    Embedding and head belong to the target: callers embed the block (`[anchor, MASK, ...]`, times
    `config.input_embedding_scale`) and apply the head to rows 1.. of what `forward` returns.
    """

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(config.taps_size, config.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.layers = nn.ModuleList(Layer(config, index) for index in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def context(self, taps_SK: Tensor) -> Tensor:
        """Context rows ctx_SH of concatenated taps [S, K*H] at absolute positions 0..S-1."""
        return self.hidden_norm(self.fc(taps_SK))

    def context_kv(self, ctx_SH: Tensor, first: int = 0) -> ContextKV:
        """Every layer's keys and values of a sequence's context, each [G, S, D]: computed once for all its blocks.

        `first` is the position of row 0, for a sequence whose beginning is not there.
        """
        positions_S = torch.arange(first, first + ctx_SH.shape[0], device=ctx_SH.device)
        rotary = rotary_of(positions_S, self.config)
        pairs = (layer.self_attn.keys_values(ctx_SH, rotary) for layer in self.layers)
        return [(keys.transpose(0, 1).contiguous(), values.transpose(0, 1).contiguous()) for keys, values in pairs]

    def blocks(
        self, contexts: Sequence[ContextKV], counts: Sequence[int], embeds_NBH: Tensor, anchors_N: Tensor
    ) -> Tensor:
        """hidden_NBH of blocks of several sequences: the first counts[0] belong to contexts[0], and so on.

        Block n is at absolute position anchors_N[n] and sees the rows of its own sequence below that.
        """
        places = Places(self.config, anchors_N, counts, embeds_NBH.shape[1])
        rows_NBH = embeds_NBH
        for index, layer in enumerate(self.layers):
            rows_NBH = layer(rows_NBH, [context[index] for context in contexts], places)
        return self.norm(rows_NBH)

    def forward(self, ctx_SH: Tensor, embeds_NBH: Tensor, anchors_N: Tensor) -> Tensor:
        """Final-normed hidden_NBH of N blocks of one sequence; row k predicts the token at anchor + k, row 0 nothing.

        ctx_SH is `context(taps)` of positions 0..S-1; block n at absolute position anchors_N[n] sees the context rows
        below its anchor and its own block. Differentiable; the result does not depend on how blocks are batched.
        """
        return self.blocks([self.context_kv(ctx_SH)], [len(anchors_N)], embeds_NBH, anchors_N)


def rotary_of(positions: Tensor, config: DrafterConfig) -> Rotary:
    """Cosines and sines [..., 1, D/2] of absolute positions [...]."""
    size = config.head_dim
    exponents = torch.arange(0, size, 2, dtype=torch.float32, device=positions.device) / size
    angles = positions[..., None].float() * (1.0 / config.rope_theta**exponents)
    return angles.cos().unsqueeze(-2), angles.sin().unsqueeze(-2)


def rotate(x: Tensor, rotary: Rotary) -> Tensor:
    """Rotary positions on heads x [..., heads, D]: pairs are (i, i + D/2)."""
    half = x.shape[-1] // 2
    cos, sin = rotary
    first, second = x[..., :half], x[..., half:]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
