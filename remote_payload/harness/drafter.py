"""The DFlash drafter in plain torch: one forward pass fills a whole block of masked tokens.

The drafter reads the target's hidden states ("taps") of the tokens before an anchor, and a block of embeddings: the
anchor token and block_size - 1 masks. Row k of its output predicts the token at position anchor + k. Many blocks of one
sequence are computed together; the keys and values of the taps are shared by all of them.

Axes: S context positions, N blocks, B positions in a block, H hidden size, K taps, G key-value heads, R query heads per
key-value head, D head size. Source: "DFlash" (arXiv 2602.06036), and the `dflash` package for sliding-window layers.
"""

from __future__ import annotations

import torch
from drafter_config import FULL, SLIDING, DrafterConfig
from refusal import Refused
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["FULL", "SLIDING", "Drafter", "DrafterConfig", "Refused"]

ContextKV = list[tuple[Tensor, Tensor]]


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last axis."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps))


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

    def keys_values(self, rows: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Rotated keys and values [..., G, D] of rows [..., H] at absolute positions [...]."""
        shape = (*rows.shape[:-1], self.config.kv_heads, self.config.head_dim)
        keys = self.k_norm(self.k_proj(rows).view(shape))
        return rotate(keys, positions, self.config.rope_theta), self.v_proj(rows).view(shape)

    def forward(self, rows_NBH: Tensor, context: tuple[Tensor, Tensor], anchors_N: Tensor) -> Tensor:
        """Attention of N blocks. Two score parts, one softmax: the context is never copied per block."""
        blocks, width, _ = rows_NBH.shape
        groups, size = self.config.kv_heads, self.config.head_dim
        positions_NB = anchors_N[:, None] + torch.arange(width, device=anchors_N.device)
        queries = self.q_norm(self.q_proj(rows_NBH).view(blocks, width, -1, size))
        queries = rotate(queries, positions_NB, self.config.rope_theta) * size**-0.5
        queries_NBGRD = queries.view(blocks, width, groups, -1, size)
        own_keys_NBGD, own_values_NBGD = self.keys_values(rows_NBH, positions_NB)
        keys_SGD, values_SGD = context

        context_scores = torch.einsum("nbgrd,sgd->ngrbs", queries_NBGRD, keys_SGD)
        own_scores = torch.einsum("nbgrd,ncgd->ngrbc", queries_NBGRD, own_keys_NBGD)
        context_mask, own_mask = self.visible(positions_NB, anchors_N, keys_SGD.shape[0])
        scores = torch.cat(
            (
                context_scores.masked_fill(~context_mask[:, None, None], float("-inf")),
                own_scores.masked_fill(~own_mask, float("-inf")),
            ),
            dim=-1,
        )
        weights = scores.softmax(dim=-1)
        from_context, from_own = weights.split((keys_SGD.shape[0], width), dim=-1)
        mixed = torch.einsum("ngrbs,sgd->nbgrd", from_context, values_SGD)
        mixed = mixed + torch.einsum("ngrbc,ncgd->nbgrd", from_own, own_values_NBGD)
        return self.o_proj(mixed.reshape(blocks, width, -1))

    def visible(self, positions_NB: Tensor, anchors_N: Tensor, context_length: int) -> tuple[Tensor, Tensor]:
        """Which context rows [N, B, S] and own rows [B, B] each block position sees.

        The window counts per query: a key is seen while query - key < window, and when the block is not causal also
        while key - query < window (the `dflash` package's `_attention_mask`).
        """
        width = positions_NB.shape[1]
        slots = torch.arange(width, device=positions_NB.device)
        rows_S = torch.arange(context_length, device=positions_NB.device)
        context_NBS = (rows_S < anchors_N[:, None])[:, None, :].expand(-1, width, -1)
        own_BB = torch.ones(width, width, dtype=torch.bool, device=positions_NB.device)
        back_BB = slots[:, None] - slots
        if self.causal:
            own_BB = own_BB & (back_BB >= 0)
        if self.window is not None:
            context_NBS = context_NBS & (positions_NB[..., None] - rows_S < self.window)
            own_BB = own_BB & (back_BB.abs() < self.window)
        return context_NBS, own_BB


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

    def forward(self, rows_NBH: Tensor, context: tuple[Tensor, Tensor], anchors_N: Tensor) -> Tensor:
        rows_NBH = rows_NBH + self.self_attn(self.input_layernorm(rows_NBH), context, anchors_N)
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

    def context_kv(self, ctx_SH: Tensor) -> ContextKV:
        """Every layer's keys and values of the context, each [S, G, D]: computed once for all blocks of a sequence."""
        positions_S = torch.arange(ctx_SH.shape[0], device=ctx_SH.device)
        return [layer.self_attn.keys_values(ctx_SH, positions_S) for layer in self.layers]

    def blocks(self, context: ContextKV, embeds_NBH: Tensor, anchors_N: Tensor) -> Tensor:
        """hidden_NBH of blocks at absolute anchor positions, given `context_kv`. Block n sees rows < anchors_N[n]."""
        rows_NBH = embeds_NBH
        for layer, layer_context in zip(self.layers, context, strict=True):
            rows_NBH = layer(rows_NBH, layer_context, anchors_N)
        return self.norm(rows_NBH)

    def forward(self, ctx_SH: Tensor, embeds_NBH: Tensor, anchors_N: Tensor) -> Tensor:
        """Final-normed hidden_NBH of N blocks of one sequence; row k predicts the token at anchor + k, row 0 nothing.

        ctx_SH is `context(taps)` of positions 0..S-1; block n at absolute position anchors_N[n] sees the context rows
        below its anchor and its own block. Differentiable; the result does not depend on how blocks are batched.
        """
        return self.blocks(self.context_kv(ctx_SH), embeds_NBH, anchors_N)


def rotate(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Rotary positions on heads x [..., heads, D] at absolute positions [...]: pairs are (i, i + D/2)."""
    half = x.shape[-1] // 2
    exponents = torch.arange(0, x.shape[-1], 2, dtype=torch.float32, device=x.device) / x.shape[-1]
    angles = positions[..., None].float() * (1.0 / theta**exponents)
    cos, sin = angles.cos().unsqueeze(-2), angles.sin().unsqueeze(-2)
    first, second = x[..., :half], x[..., half:]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
