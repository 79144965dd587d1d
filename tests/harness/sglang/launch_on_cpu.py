"""Start SGLang's own server on a CPU without its compiled CPU kernels. Run inside the venv of requirements.txt.

Only bookkeeping is filled in, no mathematics of the model:
- torchvision beside a CPU build of torch fails at import, where it describes two operators that it doesn't have;
- `sgl_kernel` is not published for CPUs. Two of its functions keep the table of cache slots; they are written here.
  Every other one raises when it is called.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
import os
import runpy
import sys
import types

import torch


def write_slots(requests, table, starts, ends, slots, width):
    """table[request, start:end] = that request's part of `slots`, one request after the other."""
    taken = 0
    for request, start, end in zip(requests.tolist(), starts.tolist(), ends.tolist(), strict=True):
        count = end - start
        table[request, start:end] = slots[taken : taken + count].to(table.dtype)
        taken += count


def move_rows(addresses, row_bytes, targets, sources):
    """Copy cached keys and values from row to row, in every layer's buffer; all are read before any is written."""
    pairs = list(zip(targets.tolist(), sources.tolist(), strict=True))
    for address, size in zip(addresses.tolist(), row_bytes.tolist(), strict=True):
        rows = [ctypes.string_at(address + source * size, size) for _, source in pairs]
        for (target, _), row in zip(pairs, rows, strict=True):
            ctypes.memmove(address + target * size, row, size)


class Kernels(types.ModuleType):
    """Stands in for sgl_kernel."""

    __version__ = "0"
    __path__ = ()
    assign_req_to_token_pool_cpu = staticmethod(write_slots)
    copy_all_layer_kv_cache_cpu = staticmethod(move_rows)

    def __getattr__(self, name):
        if not name.endswith("_cpu"):
            raise AttributeError(name)

        def absent(*arguments, **options):
            raise NotImplementedError(f"sgl_kernel.{name} is not available on this CPU")

        return absent


os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
for operator in ("nms", "qnms"):
    torch.library.define(f"torchvision::{operator}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
kernels = Kernels("sgl_kernel")
kernels.__spec__ = importlib.machinery.ModuleSpec("sgl_kernel", None)
sys.modules["sgl_kernel"] = kernels  # here and not below: the server's own processes import this file too

if __name__ == "__main__":
    runpy.run_module("sglang.launch_server", run_name="__main__")
