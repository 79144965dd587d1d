"""Hidden states of many texts, layer by layer: every text through a layer before the next layer is read."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from arithmetic import DTYPES
from batching import Chunk, chunks_of
from decoder import Decoder
from files import digest_of
from greedy import Choices, choose
from layer_stream import LayerBuffer
from memory import Needs, Plan, anonymous_memory, plan_memory
from refusal import Refused
from residuals import Residuals
from torch import Tensor

_DURABLE_AFTER = 5.0  # seconds; a layer that took longer is put on the disk before it counts as done

TapSink = Callable[[int, int, Tensor, bool], None]
"""(text, place in the list of taps, rows [S, H], wait for the disk): keeps the tap of a text."""
Step = Callable[[str, str, int], None]
"""(what was done, out of how many such steps altogether)."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Texts to read, the layers to tap, and all that the numbers hang on. Texts are run from the shortest on."""

    texts: tuple[tuple[int, ...], ...]
    layer_ids: tuple[int, ...]
    chunk_tokens: int
    packed: bool
    arithmetic: str = "float32"

    @property
    def order(self) -> list[int]:
        return sorted(range(len(self.texts)), key=lambda text: len(self.texts[text]))

    @property
    def tokens(self) -> int:
        return sum(map(len, self.texts))

    def chunks(self) -> list[Chunk]:
        return chunks_of([len(self.texts[text]) for text in self.order], self.chunk_tokens, self.packed)

    def only(self, wanted: Sequence[int]) -> tuple[Reading, list[int]]:
        """The texts that share a chunk with these, and which they are: run alone, they give the same bits again."""
        order, kept = iter(self.order), []
        for chunk in self.chunks():
            inside = [next(order) for _ in chunk.lengths]
            if set(inside) & set(wanted):
                kept += inside
        kept.sort()
        return replace(self, texts=tuple(self.texts[text] for text in kept)), kept


def plan_for(decoder: Decoder, texts: Sequence[Sequence[int]], budget: int, arithmetic: str = "float32") -> Plan:
    """What fits the budget, on top of what this process holds already."""
    needs = Needs(
        held=anonymous_memory(),
        layer=DTYPES[arithmetic].itemsize * decoder.largest_layer,
        per_token=decoder.bytes_per_token,
        longest=max(map(len, texts)),
    )
    return plan_memory(needs, budget)


class LayerRun:
    """One pass of a reading through a decoder, its state in a folder; run again, it goes on at the layer it was at."""

    def __init__(self, decoder: Decoder, reading: Reading, folder: Path, step: Step) -> None:
        self._decoder, self._reading, self._step = decoder, reading, step
        self._buffer = LayerBuffer(decoder, DTYPES[reading.arithmetic])
        self._chunks = reading.chunks()
        identity = digest_of([reading.texts, decoder.num_layers, reading.packed])
        self._residuals = Residuals(folder, reading.tokens, decoder.hidden_size, identity)

    def run(self, through: int, sink: TapSink) -> None:
        """Run layers 0..`through` over all texts; hand each tapped one to `sink`."""
        if self._residuals.done < 0:
            self._embed()
        indices = range(self._residuals.done, through + 1)
        with closing(self._buffer.stream(indices)) as layers:
            for index, weights in layers:
                began = time.monotonic()
                with self._decoder.loaded(index, weights):
                    self._through_layer(index, len(indices) * len(self._chunks))
                durable = time.monotonic() - began > _DURABLE_AFTER
                self._tap(index, sink, durable)
                self._residuals.advance(durable)

    def choose(self, predicting: Sequence[range]) -> list[Choices]:
        """For each text, the greedy choices after these positions. To be called when every layer was run."""
        if self._residuals.done != self._decoder.num_layers:
            raise ValueError("the greedy choice needs every layer")
        starts = self._starts()
        rows = torch.cat([torch.arange(each.start, each.stop) + starts[i] for i, each in enumerate(predicting)])
        rows_NH = self._residuals.next[: len(rows)]  # its content is no longer needed
        for part in torch.arange(len(rows)).split(self._reading.chunk_tokens):
            rows_NH[part[0] : part[-1] + 1] = self._decoder.final_norm(self._residuals.current[rows[part]])
        chosen = choose(
            self._decoder,
            rows_NH,
            self._buffer.scratch,
            lambda block, of: self._step("head", f"block {block}/{of}", of),
        )
        lengths = [len(each) for each in predicting]
        return [Choices(*parts) for parts in zip(chosen.ids.split(lengths), chosen.margins.split(lengths), strict=True)]

    def _embed(self) -> None:
        ids_N = torch.tensor([token for text in self._reading.order for token in self._reading.texts[text]])
        for chunk in self._chunks:
            self._residuals.next[chunk.rows] = self._decoder.embed(ids_N[chunk.rows])
        self._residuals.advance(durable=False)

    def _through_layer(self, index: int, steps: int) -> None:
        current, following = self._residuals.current, self._residuals.next
        for number, chunk in enumerate(self._chunks, start=1):
            out = self._decoder.run(chunk, current[chunk.rows])
            chunk.from_batch(out, following[chunk.rows])
            if not all_finite(following[chunk.rows]):
                raise Refused(f"{self._decoder.folder}: layer {index} gives numbers that are not finite")
            self._step("layers", f"layer {index}, chunk {number}/{len(self._chunks)}", steps)

    def _tap(self, index: int, sink: TapSink, durable: bool) -> None:
        places = [place for place, layer in enumerate(self._reading.layer_ids) if layer == index]
        starts = self._starts()
        for place in places:
            for text, tokens in enumerate(self._reading.texts):
                sink(text, place, self._residuals.next[starts[text] : starts[text] + len(tokens)], durable)

    def _starts(self) -> dict[int, int]:
        """Text -> its first row among the residuals."""
        starts, first = {}, 0
        for text in self._reading.order:
            starts[text] = first
            first += len(self._reading.texts[text])
        return starts


def all_finite(numbers: Tensor) -> bool:
    """One pass in place of four: the sum shows a number that is not finite; itself it overflows rarely."""
    return bool(numbers.sum().isfinite()) or bool(numbers.isfinite().all())
