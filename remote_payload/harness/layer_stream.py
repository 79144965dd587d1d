"""The layers of a decoder one after the other, each read once, the next one prefetched from the disk meanwhile."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from decoder import Decoder
from torch import Tensor


class LayerBuffer:
    """Memory for the weights of one layer, used again and again: whatever its kind, a layer fits.

    Layers are read into it by the threads that compute, in a hundredth of the time that these then compute. What takes
    time is the disk: the system is told to fetch the next layer's pages, which are no memory of this process.
    """

    def __init__(self, decoder: Decoder, dtype: torch.dtype = torch.float32) -> None:
        self._decoder = decoder
        self._buffer = _large_pages(decoder.largest_layer * dtype.itemsize).view(dtype)

    @property
    def scratch(self) -> Tensor:
        """The buffer as float32 for other use, while no layer is read."""
        return self._buffer.view(torch.float32)

    @torch.no_grad()
    def read(self, index: int) -> dict[str, Tensor]:
        """A layer's weights by their names in the files. They last until the next one is read."""
        weights, first = {}, 0
        for name, shape in self._decoder.layer_shapes(index).items():
            weights[name] = self._buffer[first : first + shape.numel()].view(shape)
            self._decoder.files.read_into(name, weights[name])
            first += shape.numel()
        return weights

    def stream(self, indices: Sequence[int]) -> Iterator[tuple[int, dict[str, Tensor]]]:
        """(index, weights) of each layer. Close it (contextlib.closing): that waits for the prefetching thread."""
        with ThreadPoolExecutor(1) as prefetcher:
            for place, index in enumerate(indices):
                weights = self.read(index)
                for after in indices[place + 1 : place + 2]:  # what goes wrong with it is told when it is read
                    prefetcher.submit(self._decoder.files.prefetch, list(self._decoder.layer_shapes(after)))
                yield index, weights


def _large_pages(size: int) -> Tensor:
    """Bytes whose first use costs a fault for every 2 MiB, not for every 4 KiB, where the system has such pages."""
    memory = mmap.mmap(-1, size + -size % 4, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)
