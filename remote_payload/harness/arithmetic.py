"""In which arithmetic a target's layers are run: float32, or bfloat16 where that is wanted or measured to be faster."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import torch
from decoder import Decoder
from refusal import Refused

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
AUTO = "auto"
_CLEARLY = 1.5  # times as fast; less is not worth numbers that differ from those of other machines
_FEW, _MANY = 32, 512  # rows of the products that are timed
_LARGEST = 16 << 20  # numbers of the matrix that is timed; a larger one is cut to fewer outputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """GFLOP/s of a product [rows, inputs] x [inputs, outputs] in each arithmetic on this CPU."""

    rows: int
    inputs: int
    outputs: int
    float32: float
    bfloat16: float

    @property
    def faster(self) -> str:
        """bfloat16 only where it is clearly faster."""
        return "bfloat16" if self.bfloat16 >= _CLEARLY * self.float32 else "float32"

    def __str__(self) -> str:
        return (
            f"{self.rows} x {self.inputs} x {self.outputs} at {self.bfloat16:.4g} GFLOP/s in bfloat16, "
            f"{self.float32:.4g} in float32"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """The arithmetic of an extraction, how it came to it, and what was measured for that."""

    name: str
    why: str
    rates: Rates | None = None

    def __str__(self) -> str:
        return f"{self.name} ({self.why})"


def settle(wanted: str, decoder: Decoder, began: dict[str, Any] | None) -> Arithmetic:
    """The arithmetic to take. `auto` keeps to that of an extraction that was begun (its settings); else it measures.

    Raises `Refused` where bfloat16 is wanted for weights that are not stored so: it would round them.
    """
    if wanted == AUTO and began is not None:
        return Arithmetic(name=began.get("arithmetic", "float32"), why="as it was begun")
    if wanted == "float32":
        return Arithmetic(name=wanted, why="the same on every machine")
    decoder.check_complete()
    other = _other_than_bfloat16(decoder)
    if wanted == AUTO:
        if other is not None:
            return Arithmetic(name="float32", why=f"{other} is not stored in bfloat16")
        rates = measure(decoder)
        return Arithmetic(name=rates.faster, why=str(rates), rates=rates)
    if other is not None:
        raise Refused(f"{decoder.folder}: {other} is not stored in bfloat16, which would round it. "
                      "Leave out --arithmetic")  # fmt: skip
    return Arithmetic(name=wanted, why="asked for")


def measure(decoder: Decoder) -> Rates:
    """Time the largest matrix of the layers; only few rows of it where these show bfloat16 to be far slower."""
    outputs, inputs = max(_matrices(decoder).values(), key=math.prod)
    outputs = max(1, min(outputs, _LARGEST // inputs))
    few = _rates(_FEW, inputs, outputs)
    return few if few.bfloat16 < few.float32 / 2 else _rates(_MANY, inputs, outputs)


@torch.inference_mode()
def _rates(rows: int, inputs: int, outputs: int) -> Rates:
    """Best of two in each; numbers are ones: what is multiplied does not matter."""
    rates = {}
    for name, dtype in DTYPES.items():
        states, weight = torch.ones(rows, inputs, dtype=dtype), torch.ones(outputs, inputs, dtype=dtype)
        seconds = []
        for _ in range(2):
            began = time.perf_counter()
            torch.nn.functional.linear(states, weight)
            seconds.append(time.perf_counter() - began)
        rates[name] = float(f"{2e-9 * rows * inputs * outputs / min(seconds):.4g}")
    return Rates(rows=rows, inputs=inputs, outputs=outputs, **rates)


def _other_than_bfloat16(decoder: Decoder) -> str | None:
    """A matrix of the layers that the files hold in another dtype. (Vectors may be wider; they are rounded.)"""
    return next((name for name in _matrices(decoder) if decoder.files.places[name].dtype != "BF16"), None)


def _matrices(decoder: Decoder) -> dict[str, tuple[int, int]]:
    """Tensor name -> (outputs, inputs), of all layers."""
    shapes = [item for index in range(decoder.num_layers) for item in decoder.layer_shapes(index).items()]
    return {name: (shape[0], shape[1]) for name, shape in shapes if len(shape) == 2}
