"""A strided view of memory laid out contiguously, row by row, without numpy.

A view is (start, shape, stride) in elements. `memoryview` takes the innermost rows in C; the loop over the outer
dimensions is ours.
"""

from typing import Any, Callable, Iterator, List, Tuple, Union

from remote_payload.agent.tensors import Tensor

IN_MEMORY = 8 * 1024 * 1024
"""bytes of output that one step holds"""
HELD = 24 * 1024 * 1024
"""bytes of source that one step holds, where they lie close enough together"""
FAR = 16 * 1024
"""bytes between two rows from which on two reads cost less than reading across"""
_FORMATS = {1: "B", 2: "H", 4: "I", 8: "Q"}
Read = Callable[[int, int], Union[bytes, memoryview]]
"""(offset, size) in bytes of the storage -> those bytes"""
Dimensions = List[Tuple[int, int]]
"""(size, stride) of each, outermost first"""


def gathered(tensor: Tensor, read: Read) -> Iterator[bytes]:
    """The tensor's bytes in row-major order. `read(offset, size)` gives bytes of its storage."""
    if tensor.elements:
        yield from _blocks(tensor.offset, _merged(tensor.shape, tensor.stride), tensor.dtype.size, read)


def _merged(shape: Tuple[int, ...], stride: Tuple[int, ...]) -> Dimensions:
    """Dimensions of size 1 dropped, and neighbours that lie one after the other joined."""
    found: Dimensions = []
    for size, step in zip(shape, stride):
        if size == 1:
            continue
        if found and found[-1][1] == size * step:
            found[-1] = (found[-1][0] * size, step)
        else:
            found.append((size, step))
    return found


def _blocks(start: int, dims: Dimensions, item: int, read: Read) -> Iterator[bytes]:
    """Cut along the outermost dimension until a block's output fits IN_MEMORY."""
    size = item
    for count, _ in dims:
        size *= count
    if size <= IN_MEMORY:
        yield _block(start, dims, item, read)
        return
    (count, step), inner = dims[0], dims[1:]
    rows = max(1, IN_MEMORY // (size // count))
    for first in range(0, count, rows):
        here = min(rows, count - first)
        block = [(here, step), *inner] if here > 1 else inner
        yield from _blocks(start + first * step, block, item, read)


def _block(start: int, dims: Dimensions, item: int, read: Read) -> bytes:
    span = 1 + sum((count - 1) * step for count, step in dims)
    if span * item <= HELD:
        return _rows(memoryview(read(start * item, span * item)), dims, item)
    # too far apart to read at once: collect it in the order in which it lies, then turn it round
    order = sorted(range(len(dims)), key=lambda d: -dims[d][1])
    compact: List[int] = [0] * len(dims)
    width = 1
    for d in reversed(order):
        repeated = dims[d][1] == 0
        compact[d] = 0 if repeated else width
        width *= 1 if repeated else dims[d][0]
    lying = [dims[d] for d in order if dims[d][1]]
    collected = b"".join(_collect(start, lying, item, read))
    return _rows(memoryview(collected), [(dims[d][0], compact[d]) for d in range(len(dims))], item)


def _collect(start: int, dims: Dimensions, item: int, read: Read) -> Iterator[bytes]:
    """The block's elements in the order of their addresses, in reads of at most IN_MEMORY."""
    span = 1 + sum((count - 1) * step for count, step in dims)
    if span * item <= IN_MEMORY or not dims:
        yield _rows(memoryview(read(start * item, span * item)), dims, item)
        return
    (count, step), inner = dims[0], dims[1:]
    inner_span = 1 + sum((size - 1) * inner_step for size, inner_step in inner)
    apart = (step - inner_span) * item > FAR
    rows = 1 if apart else max(1, (IN_MEMORY // item - inner_span) // step + 1)
    for first in range(0, count, rows):
        here = min(rows, count - first)
        yield from _collect(start + first * step, ([(here, step)] if here > 1 else []) + inner, item, read)


def _rows(source: memoryview, dims: Dimensions, item: int) -> bytes:
    """Row-major bytes of a view that begins where `source` does. The longest dimension is copied in C."""
    out_steps: List[int] = []
    total = 1
    for count, _ in reversed(dims):
        out_steps.insert(0, total)
        total *= count
    out = bytearray(total * item)
    source_items, out_items = _elements(source, item), _elements(memoryview(out), item)
    longest = max(range(len(dims)), key=lambda d: dims[d][0], default=-1)
    if longest < 0:
        return source[:item].tobytes()
    count, step = dims[longest]
    out_step = out_steps[longest]
    rest = [(dims[d][0], dims[d][1], out_steps[d]) for d in range(len(dims)) if d != longest]
    for at, out_at in _starts(0, 0, rest):
        if step:
            line = source_items[at : at + (count - 1) * step + 1 : step]
        else:
            line = _elements(memoryview(source[at * item : (at + 1) * item].tobytes() * count), item)
        out_items[out_at : out_at + (count - 1) * out_step + 1 : out_step] = line
    return bytes(out)


def _elements(memory: memoryview, item: int) -> Any:
    """The memory as whole elements, so that a slice with a step moves elements and not bytes."""
    return memory.cast(_FORMATS[item])  # type: ignore[call-overload]


def _starts(at: int, out_at: int, dims: List[Tuple[int, int, int]]) -> Iterator[Tuple[int, int]]:
    if not dims:
        yield at, out_at
        return
    (count, step, out_step), inner = dims[0], dims[1:]
    for index in range(count):
        yield from _starts(at + index * step, out_at + index * out_step, inner)
