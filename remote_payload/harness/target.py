"""What a drafter borrows from its target: the embedding and the head. Nothing else of the target is read.

Both stay as they lie on disk (memory-mapped, in the file's dtype); rows are gathered and chunks of the vocabulary are
widened to float32 as they are used, so a 5 GB head costs one chunk of memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from drafter_config import DrafterConfig
from files import open_safetensors, read_json, safetensors_of
from refusal import Refused
from torch import Tensor

CHUNK = 16384  # rows of the vocabulary widened at a time


@dataclass(frozen=True, eq=False)
class TargetEnds:
    """A target's input embedding and output head, both [V, H] in the file's dtype; the same tensor when tied."""

    embedding_VH: Tensor
    head_VH: Tensor

    @property
    def tied(self) -> bool:
        return self.head_VH is self.embedding_VH

    @property
    def vocab_size(self) -> int:
        return self.embedding_VH.shape[0]

    @property
    def hidden_size(self) -> int:
        return self.embedding_VH.shape[1]

    def embed(self, ids: Tensor, scale: float = 1.0) -> Tensor:
        """Embeddings [..., H] of token ids [...], float32."""
        return self.embedding_VH[ids].float() * scale


@dataclass(frozen=True, eq=False)
class Best:
    """The best of each row of logits. `log_probs_RK` are exact (normalised over the whole row), best first."""

    ids_RK: Tensor
    log_probs_RK: Tensor
    margin_R: Tensor
    """Best logit less the second best."""


@dataclass(frozen=True, eq=False)
class Head:
    """hidden -> logits of one drafter: the target's head, or its own over a reduced vocabulary.

    `token_ids_V` maps the head's rows to the target's token ids; None is the identity.
    """

    weight_VH: Tensor
    token_ids_V: Tensor | None = None
    multiplier: float = 1.0
    softcap: float | None = None

    @classmethod
    def of_target(cls, ends: TargetEnds, config: DrafterConfig) -> Head:
        return cls(ends.head_VH, None, config.output_multiplier, config.final_logit_softcapping)

    def logits(self, hidden_RH: Tensor) -> Tensor:
        """All logits [R, V], float32."""
        return torch.cat(list(self._chunks(hidden_RH)), dim=-1)

    def best(self, hidden_RH: Tensor, count: int) -> Best:
        """The `count` best tokens of each row, without ever holding more than a chunk of logits.

        The first of each row is argmax: of equal logits the lowest id.
        """
        rows = hidden_RH.shape[0]
        logits_RK = hidden_RH.new_empty(rows, 0)
        ids_RK = torch.empty(rows, 0, dtype=torch.long)
        total_R = hidden_RH.new_full((rows,), float("-inf"))
        first = 0
        keep = min(max(count, 2), self.weight_VH.shape[0])
        for chunk_RC in self._chunks(hidden_RH):
            total_R = torch.logaddexp(total_R, chunk_RC.logsumexp(-1))
            places = _top_places(chunk_RC, min(keep, chunk_RC.shape[1]))
            logits_RK = torch.cat((logits_RK, chunk_RC.gather(-1, places)), dim=-1)
            ids_RK = torch.cat((ids_RK, places + first), dim=-1)
            logits_RK, ids_RK = _order(logits_RK, ids_RK, keep)
            first += chunk_RC.shape[1]
        margin_R = logits_RK[:, 0] - logits_RK[:, 1] if keep > 1 else torch.full((rows,), float("inf"))
        ids_RK = ids_RK if self.token_ids_V is None else self.token_ids_V[ids_RK]
        return Best(ids_RK[:, :count], (logits_RK - total_R[:, None])[:, :count], margin_R)

    def _chunks(self, hidden_RH: Tensor) -> Iterator[Tensor]:
        for rows_CH in self.weight_VH.split(CHUNK):
            logits = hidden_RH @ rows_CH.float().T * self.multiplier
            yield logits if self.softcap is None else torch.tanh(logits / self.softcap) * self.softcap


def _top_places(chunk_RC: Tensor, count: int) -> Tensor:
    """Places of the best logits of each row. topk may leave out the first of equal ones, so argmax is put back in."""
    places_RK = chunk_RC.topk(count, dim=-1).indices
    first_R = chunk_RC.argmax(-1)
    left_out = ~(places_RK == first_R[:, None]).any(-1)
    places_RK[left_out, -1] = first_R[left_out]
    return places_RK


def _order(logits_RK: Tensor, ids_RK: Tensor, keep: int) -> tuple[Tensor, Tensor]:
    """Best first; equal logits by ascending id (two stable sorts)."""
    by_id = ids_RK.argsort(dim=-1, stable=True)
    logits_RK, ids_RK = logits_RK.gather(-1, by_id), ids_RK.gather(-1, by_id)
    by_logit = logits_RK.argsort(dim=-1, descending=True, stable=True)[:, :keep]
    return logits_RK.gather(-1, by_logit), ids_RK.gather(-1, by_logit)


def load_ends(folder: Path) -> TargetEnds:
    """Embedding and head of a Hugging Face target folder. Raises `Refused` where they can't be told."""
    config = read_json(folder / "config.json")
    text = config.get("text_config") or config
    tied = bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False)))
    files = safetensors_of(folder)
    embedding = _the_one(files, "embed_tokens.weight", folder)
    if tied:
        return _ends(files, embedding, None)
    if not any(name.endswith("lm_head.weight") for name in files):
        raise Refused(f"{folder}: has no lm_head.weight, and its config does not tie the head to the embedding")
    return _ends(files, embedding, _the_one(files, "lm_head.weight", folder))


def load_stored_ends(file: Path) -> TargetEnds:
    """Embedding and head from a cache's own target.safetensors (no head: tied)."""
    with open_safetensors(file) as tensors:
        names = set(tensors.keys())
    if "embed_tokens.weight" not in names:
        raise Refused(f"{file}: has no embed_tokens.weight")
    files = dict.fromkeys(names, file)
    return _ends(files, "embed_tokens.weight", "lm_head.weight" if "lm_head.weight" in names else None)


def _the_one(files: dict[str, Path], ending: str, folder: Path) -> str:
    """The tensor of that ending; extra prediction layers and vision towers have their own, which don't count."""
    names = [
        name
        for name in files
        if (name == ending or name.endswith("." + ending)) and not {"mtp", "visual"} & set(name.split("."))
    ]
    if len(names) != 1:
        raise Refused(f"{folder}: expected one {ending}, found {', '.join(sorted(names)) or 'none'}")
    return names[0]


def _ends(files: dict[str, Path], embedding: str, head: str | None) -> TargetEnds:
    embedding_VH = _tensor(files[embedding], embedding)
    if head is None:
        return TargetEnds(embedding_VH, embedding_VH)
    head_VH = _tensor(files[head], head)
    if head_VH.shape != embedding_VH.shape:
        raise Refused(f"{head} is {list(head_VH.shape)}, {embedding} {list(embedding_VH.shape)}; expected equal shapes")
    return TargetEnds(embedding_VH, head_VH)


def _tensor(file: Path, name: str) -> Tensor:
    with open_safetensors(file) as tensors:
        tensor: Tensor = tensors.get_tensor(name)
    if tensor.dim() != 2 or not tensor.is_floating_point() or tensor.element_size() < 2:
        raise Refused(f"{file}: {name} is {tensor.dtype} {list(tensor.shape)}; expected a float matrix [V, H]")
    return tensor
