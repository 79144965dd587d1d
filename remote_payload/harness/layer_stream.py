"""The layers of a decoder one after the other, each read once, the next one while this one computes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from decoder import Decoder
from torch import Tensor


class Slots:
    """Room for the weights of a few layers, used again and again: whatever its kind, a layer fits one."""

    def __init__(self, decoder: Decoder, count: int) -> None:
        self._decoder = decoder
        self._room = [torch.empty(decoder.largest_layer) for _ in range(count)]

    @property
    def scratch(self) -> Tensor:
        """A slot's memory for other use, while no layer is read."""
        return self._room[0]

    @torch.no_grad()
    def read(self, index: int, slot: int) -> dict[str, Tensor]:
        """A layer's weights in float32, by their names in the files. They last until the slot is used again."""
        weights, first = {}, 0
        for name, shape in self._decoder.layer_shapes(index).items():
            weights[name] = self._room[slot][first : first + shape.numel()].view(shape)
            self._decoder.files.read_into(name, weights[name])
            first += shape.numel()
        return weights

    def stream(self, indices: Sequence[int]) -> Iterator[tuple[int, dict[str, Tensor]]]:
        """(index, weights) of each layer. Close it (contextlib.closing): that waits for the reading thread.

        With one slot a layer is read when it is asked for; an error of the thread is raised here.
        """
        count = len(self._room)
        with ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,)) as reader:
            pending = reader.submit(self.read, indices[0], 0) if indices else None
            for place, index in enumerate(indices):
                weights = pending.result() if pending else {}
                after = indices[place + 1 : place + 2]
                if after and count > 1:
                    pending = reader.submit(self.read, after[0], (place + 1) % count)
                yield index, weights
                if after and count == 1:
                    pending = reader.submit(self.read, after[0], 0)
