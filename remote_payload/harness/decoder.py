"""A target's decoder without its weights: transformers' own model, whose layers hold weights one at a time.

The model is built on torch's meta device, where tensors have shapes and no memory. Its own forward pass is what runs a
layer: every other layer is replaced by one that hands its input on, so rotary positions, masks and the way in which a
layer is called are the library's. What the library might do silently wrong is tried on each kind of layer before use.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from batching import Chunk
from refusal import Refused
from safetensors_reader import TensorFiles
from torch import Tensor, nn

PACKED = "orch_packed"
_PACKABLE = {"full_attention", "sliding_attention"}
_GPU_KERNELS = ("fla", "causal_conv1d")
_TOLERANCE = 1e-4


class _HandOn(nn.Module):
    """Stands where a layer isn't loaded."""

    def forward(self, hidden_states: Tensor, *arguments: Any, **options: Any) -> Tensor:
        return hidden_states


class Decoder:
    """The decoder of a target's folder. Raises `Refused` where it can't be built or isn't what this code expects."""

    def __init__(self, folder: Path, files: TensorFiles, attention: str | None = None) -> None:
        self.folder, self.files = folder, files
        config = _config(folder)
        text = config.get_text_config()
        self.tied = bool(getattr(config, "tie_word_embeddings", False) or getattr(text, "tie_word_embeddings", False))
        kinds = getattr(text, "layer_types", None) or []
        _check_kernels(folder, kinds)
        self.packed = attention is None and set(kinds) <= _PACKABLE
        self._model = _meta_model(folder, text, attention or (PACKED if self.packed else "sdpa"))
        _restore_small_parts(self._model, text, folder)
        self._layers = list(self._model.layers)
        self._model.layers = nn.ModuleList(_HandOn() for _ in self._layers)
        self._norm, self._model.norm = self._model.norm, nn.Identity()
        self._prefix = self._find_prefix()
        self._tried: set[tuple[str, ...]] = set()
        self._dtype = torch.float32
        self._check_hands_on()

    @property
    def num_layers(self) -> int:
        return len(self._layers)

    @property
    def hidden_size(self) -> int:
        return int(self._model.config.hidden_size)

    @property
    def vocab_size(self) -> int:
        return self.files.shape(self.embedding_name)[0]

    @property
    def embedding_name(self) -> str:
        return f"{self._prefix}embed_tokens.weight"

    @property
    def head_name(self) -> str:
        """The tensor that makes logits; the embedding where they are tied."""
        return self.embedding_name if self.tied else self.files.ending("lm_head.weight")

    @property
    def largest_layer(self) -> int:
        """Numbers in the largest layer."""
        return max(
            sum(shape.numel() for shape in self.layer_shapes(index).values()) for index in range(self.num_layers)
        )

    @property
    def bytes_per_token(self) -> int:
        """What a layer holds for each token of a chunk, at most: twice the outputs of its matrices, in float32."""
        widths = [
            sum(part.out_features for part in layer.modules() if isinstance(part, nn.Linear)) for layer in self._layers
        ]
        return 8 * (max(widths) + self.hidden_size)

    def layer_shapes(self, index: int) -> dict[str, torch.Size]:
        """Tensor name in the files -> shape, of everything that a layer needs."""
        where = f"{self._prefix}layers.{index}."
        return {where + name: tensor.shape for name, tensor in self._layers[index].state_dict().items()}

    def check_complete(self) -> None:
        """Refuse a target that lacks a tensor, or holds one of another shape, before anything is computed."""
        wanted = {f"{self._prefix}norm.weight": self._norm.weight.shape, self.head_name: None}
        for index in range(self.num_layers):
            wanted |= self.layer_shapes(index)
        missing = sorted(name for name in wanted if name not in self.files.places)
        if missing:
            more = f" and {len(missing) - 1} more are" if len(missing) > 1 else " is"
            raise Refused(f"{self.folder}: {missing[0]}{more} missing: they would be random numbers")
        for name, shape in wanted.items():
            if shape is not None and self.files.shape(name) != tuple(shape):
                raise Refused(f"{self.folder}: {name} is {list(self.files.shape(name))}, expected {list(shape)}")

    @torch.inference_mode()
    def embed(self, token_ids: Tensor) -> Tensor:
        """Embeddings [N, H] in float32 as the model makes them; only the rows in use are read."""
        used, places = token_ids.unique(return_inverse=True)
        embedding = self._model.embed_tokens
        embedding.weight = nn.Parameter(self.files.view(self.embedding_name)[used].float(), requires_grad=False)
        self.files.release(self.embedding_name)
        embedding.padding_idx = None
        return embedding(places)  # type: ignore[no-any-return]

    @contextmanager
    def loaded(self, index: int, weights: Mapping[str, Tensor]) -> Any:
        """While open, `run` goes through this layer with these weights (named as in the files), in their dtype."""
        layer, where = self._layers[index], f"{self._prefix}layers.{index}."
        empty = {name: tensor for name, tensor in layer.state_dict(keep_vars=True).items()}
        _put(layer, {name: nn.Parameter(weights[where + name], requires_grad=False) for name in empty})
        self._model.layers[index] = layer
        self._dtype = next(iter(weights.values())).dtype
        try:
            self._try(index)
            yield
        finally:
            self._model.layers[index] = _HandOn()
            _put(layer, empty)

    @torch.inference_mode()
    def run(self, chunk: Chunk, rows_NH: Tensor) -> Tensor:
        """A chunk through the loaded layer: [1, N, H] packed or [B, T, H] padded, as `chunk.from_batch` takes it."""
        lengths = {"text_lengths": list(chunk.lengths)} if self.packed else {}
        batch_BTH = chunk.to_batch(rows_NH).to(self._dtype)
        out = self._model(
            inputs_embeds=batch_BTH,
            position_ids=chunk.position_ids if self.packed else None,
            attention_mask=None,
            past_key_values=None,
            use_cache=False,
            **lengths,
        )
        return out[0]  # type: ignore[no-any-return]

    @torch.inference_mode()
    def final_norm(self, rows_NH: Tensor) -> Tensor:
        """The norm between the last layer and the head."""
        if self._norm.weight.is_meta:
            weight = self.files.view(f"{self._prefix}norm.weight").float()
            self._norm.weight = nn.Parameter(weight, requires_grad=False)
        return self._norm(rows_NH)  # type: ignore[no-any-return]

    def _find_prefix(self) -> str:
        """What stands before `layers.0.` in the files: `model.`, `model.language_model.` or less."""
        name = f"layers.0.{next(iter(self._layers[0].state_dict()))}"
        return self.files.ending(name).removesuffix(name)

    def _check_hands_on(self) -> None:
        chunk = Chunk(0, (3,), self.packed)
        rows_NH = torch.randn(3, self.hidden_size, generator=torch.Generator().manual_seed(0))
        if not torch.equal(chunk.to_batch(rows_NH), self.run(chunk, rows_NH)):
            raise Refused(f"{self.folder}: this model changes hidden states between its layers, which is not supported")

    def _try(self, index: int) -> None:
        """Two texts, the last token of the first changed: nothing before it and nothing of the second may move."""
        kind = (str(self._model.config.to_dict().get("layer_types", [])[index:][:1]), *self._layers[index].state_dict())
        if kind in self._tried:
            return
        chunk = Chunk(0, (6, 6), self.packed)
        rows_NH = torch.randn(12, self.hidden_size, generator=torch.Generator().manual_seed(0))
        other_NH = rows_NH.clone()
        other_NH[5] += 1
        ours, others = (self.run(chunk, rows).reshape(12, -1) for rows in (rows_NH, other_NH))
        moved_N = (ours - others).abs().amax(-1) / ours.abs().amax()
        moved_N[5] = 0
        if not bool((moved_N < _TOLERANCE).all()):
            raise Refused(
                f"{self.folder}: layer {index} lets a token see a later one or another text "
                f"({float(moved_N.max()):.2g} of the largest value). Its attention is not what it should be"
            )
        self._tried.add(kind)


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    text_lengths: list[int] | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Causal attention within each text of a packed row; [1, heads, N, D] in, [1, N, heads, D] out.

    Neighbouring texts of one length are a batch; a single batch needs no copy.
    """
    unknown = [name for name in ("softcap", "s_aux", "position_bias") if options.get(name) is not None]
    if unknown or text_lengths is None or attention_mask is not None:
        raise Refused(f"attention of this model is not supported ({', '.join(unknown) or 'with a mask'})")
    grouped = query.shape[1] != key.shape[1]
    batches, first = [], 0
    for length, texts in groupby(text_lengths):
        count = len(list(texts))
        q, k, v = (
            states[0, :, first : first + count * length].unflatten(1, (count, length)).transpose(0, 1)
            for states in (query, key, value)
        )
        mask = _window(length, sliding_window)
        out_BHTD = nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=scaling, enable_gqa=grouped
        )
        batches.append(out_BHTD.transpose(1, 2).flatten(0, 1))
        first += count * length
    return (batches[0] if len(batches) == 1 else torch.cat(batches)).unsqueeze(0), None


def _window(length: int, window: int | None) -> Tensor | None:
    """A mask [T, T] where a sliding window cuts something off; a position counts itself."""
    if window is None or window >= length:
        return None
    distance_TT = torch.arange(length)[:, None] - torch.arange(length)
    return (distance_TT >= 0) & (distance_TT < window)


def _config(folder: Path) -> Any:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise Refused(f"{folder}: transformers can't read its config.json ({first})") from None


def _check_kernels(folder: Path, kinds: list[str]) -> None:
    """Linear-attention layers take GPU kernels wherever these packages can be imported, on the CPU too."""
    found = [name for name in _GPU_KERNELS if importlib.util.find_spec(name) is not None]
    if found and not set(kinds) <= _PACKABLE:
        raise Refused(f"{folder}: has linear-attention layers, and {found[0]} is installed: its kernels need a GPU. "
                      "Use a Python environment without it")  # fmt: skip


def _meta_model(folder: Path, config: Any, attention: str) -> Any:
    from transformers import AutoModel
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(PACKED, packed_attention)
    try:
        with torch.device("meta"):
            model = AutoModel.from_config(
                config, attn_implementation=attention, dtype=torch.float32, trust_remote_code=False
            )
    except (ValueError, KeyError, ImportError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise Refused(f"{folder}: transformers can't build it ({first})") from None
    lacking = [name for name in ("layers", "norm", "embed_tokens") if not hasattr(model, name)]
    if lacking or model.config._attn_implementation != attention:
        raise Refused(f"{folder}: not a decoder of layers, norm and embed_tokens ({type(model).__name__})")
    return model.eval()


def _restore_small_parts(model: Any, config: Any, folder: Path) -> None:
    """Parts without weights (rotary positions) have tables that no file holds: they are built for real."""
    for name, part in list(model.named_children()):
        if name in ("layers", "norm", "embed_tokens"):
            continue
        if any(True for _ in part.parameters()):
            raise Refused(f"{folder}: its {name} has weights of its own, which is not supported")
        setattr(model, name, type(part)(config=config))
    held = model.state_dict()
    for name, table in model.named_buffers():
        if name not in held and table.is_meta:
            raise Refused(f"{folder}: {name} is a table that no file holds, which is not supported")


def _put(layer: nn.Module, tensors: Mapping[str, Any]) -> None:
    for name, tensor in tensors.items():
        owner, _, leaf = name.rpartition(".")
        module = layer.get_submodule(owner)
        (module._parameters if leaf in module._parameters else module._buffers)[leaf] = tensor
