"""What a drafter borrows from its target: the embedding and the head. Nothing else of the target is read.

Both stay as they lie on disk (memory-mapped, in the file's dtype); rows are gathered and chunks of the vocabulary are
widened to float32 as they are used, so a 5 GB head costs one chunk of memory. Where memory is ample the head is widened
once (`TargetEnds.with_wide_head`): the same numbers, without widening it again for every batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from drafter_config import DrafterConfig
from files import open_safetensors
from refusal import Refused
from torch import Tensor

CHUNK = 8192  # rows of the vocabulary widened at a time
SPAN = 2 * CHUNK  # columns of logits held at a time
GROUP = 64  # columns that share a maximum in the search for the best


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

    def with_wide_head(self, room: int) -> TargetEnds:
        """The same with the head in float32 in memory, if that takes at most `room` bytes."""
        if self.head_VH.dtype == torch.float32 or 4 * self.head_VH.numel() > room:
            return self
        return replace(self, head_VH=self.head_VH.float())

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
        return torch.cat([span_RC.clone() for span_RC in self._spans(hidden_RH)], dim=-1)

    def best(self, hidden_RH: Tensor, count: int, *, normalised: bool = True) -> Best:
        """The `count` best tokens of each row, without ever holding more than a span of logits.

        The first of each row is argmax: of equal logits the lowest id. Not `normalised`, log_probs_RK are the logits.
        """
        rows = hidden_RH.shape[0]
        logits_RK = hidden_RH.new_empty(rows, 0)
        ids_RK = torch.empty(rows, 0, dtype=torch.long)
        total_R = hidden_RH.new_full((rows,), float("-inf"))
        first = 0
        keep = min(max(count, 2), self.weight_VH.shape[0])
        for span_RC in self._spans(hidden_RH):
            places_RK, best_RK = _top(span_RC, min(keep, span_RC.shape[1]))
            logits_RK = torch.cat((logits_RK, best_RK), dim=-1)
            ids_RK = torch.cat((ids_RK, places_RK + first), dim=-1)
            logits_RK, ids_RK = _order(logits_RK, ids_RK, keep)
            first += span_RC.shape[1]
            if normalised:  # last: it overwrites the span
                total_R = torch.logaddexp(total_R, _logsumexp(span_RC, best_RK.amax(-1)))
        margin_R = logits_RK[:, 0] - logits_RK[:, 1] if keep > 1 else torch.full((rows,), float("inf"))
        ids_RK = ids_RK if self.token_ids_V is None else self.token_ids_V[ids_RK]
        scores_RK = logits_RK - total_R[:, None] if normalised else logits_RK
        return Best(ids_RK[:, :count], scores_RK[:, :count], margin_R)

    def _spans(self, hidden_RH: Tensor) -> Iterator[Tensor]:
        """The logits, up to SPAN columns at a time; each is the next one's memory."""
        vocabulary = self.weight_VH.shape[0]
        room_RC = hidden_RH.new_empty(hidden_RH.shape[0], min(SPAN, vocabulary))
        for start in range(0, vocabulary, SPAN):
            span_RC = room_RC[:, : min(SPAN, vocabulary - start)]
            for first in range(0, span_RC.shape[1], CHUNK):
                chunk_RC = span_RC[:, first : first + CHUNK]
                rows_CH = self.weight_VH[start + first : start + first + chunk_RC.shape[1]]
                torch.mm(hidden_RH, rows_CH.float().T, out=chunk_RC)
            if self.multiplier != 1.0:
                span_RC.mul_(self.multiplier)
            if self.softcap is not None:
                span_RC.div_(self.softcap).tanh_().mul_(self.softcap)
            yield span_RC


def _top(span_RC: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Places and values [R, count] of the best logits of each row, in no order.

    The best `count` lie in the `count` groups with the highest maxima, so most columns are read once. topk may leave
    out the first of equal logits, so the first of all is put back in.
    """
    rows, columns = span_RC.shape
    whole = columns - columns % GROUP
    if columns < 4 * GROUP * count:
        places_RK = span_RC.topk(count, dim=-1, sorted=False).indices
    else:
        highest_RG = span_RC[:, :whole].unflatten(-1, (-1, GROUP)).amax(-1)
        groups_RG = highest_RG.topk(count, dim=-1, sorted=False).indices
        candidates_RC = (groups_RG[..., None] * GROUP + torch.arange(GROUP)).flatten(1)
        rest_RC = torch.arange(whole, columns).expand(rows, -1)
        candidates_RC = torch.cat((candidates_RC, rest_RC), dim=-1)
        chosen_RK = span_RC.gather(-1, candidates_RC).topk(count, dim=-1, sorted=False).indices
        places_RK = candidates_RC.gather(-1, chosen_RK)
    first_R = span_RC.argmax(-1)
    left_out = ~(places_RK == first_R[:, None]).any(-1)
    values_RK = span_RC.gather(-1, places_RK)
    places_RK[left_out, values_RK[left_out].argmin(-1)] = first_R[left_out]
    return places_RK, span_RC.gather(-1, places_RK)


def _logsumexp(span_RC: Tensor, highest_R: Tensor) -> Tensor:
    """log of the sum of exponentials of each row, overwriting it."""
    return span_RC.sub_(highest_R[:, None]).exp_().sum(-1).log_() + highest_R


def _order(logits_RK: Tensor, ids_RK: Tensor, keep: int) -> tuple[Tensor, Tensor]:
    """Best first; equal logits by ascending id (two stable sorts)."""
    by_id = ids_RK.argsort(dim=-1, stable=True)
    logits_RK, ids_RK = logits_RK.gather(-1, by_id), ids_RK.gather(-1, by_id)
    by_logit = logits_RK.argsort(dim=-1, descending=True, stable=True)[:, :keep]
    return logits_RK.gather(-1, by_logit), ids_RK.gather(-1, by_logit)


def load_stored_ends(file: Path) -> TargetEnds:
    """Embedding and head from a cache's own target.safetensors (no head: tied)."""
    with open_safetensors(file) as tensors:
        names = set(tensors.keys())
    if "embed_tokens.weight" not in names:
        raise Refused(f"{file}: has no embed_tokens.weight")
    embedding_VH = _tensor(file, "embed_tokens.weight")
    if "lm_head.weight" not in names:
        return TargetEnds(embedding_VH, embedding_VH)
    head_VH = _tensor(file, "lm_head.weight")
    if head_VH.shape != embedding_VH.shape:
        head, embedding = list(head_VH.shape), list(embedding_VH.shape)
        raise Refused(f"{file}: lm_head.weight is {head}, embed_tokens.weight {embedding}; expected equal shapes")
    return TargetEnds(embedding_VH, head_VH)


def _tensor(file: Path, name: str) -> Tensor:
    with open_safetensors(file) as tensors:
        tensor: Tensor = tensors.get_tensor(name)
    if tensor.dim() != 2 or not tensor.is_floating_point() or tensor.element_size() < 2:
        raise Refused(f"{file}: {name} is {tensor.dtype} {list(tensor.shape)}; expected a float matrix [V, H]")
    return tensor
