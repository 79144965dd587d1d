"""This process on its machine: CPU only, and as many threads as it was told."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch
from refusal import Refused


def require_cpu() -> None:
    """Refuse to run where a GPU is visible: an evaluation must not be able to touch one that trains."""
    count = torch.cuda.device_count()
    if count:
        raise Refused(f"{count} GPU(s) are visible to this process. Hide them: CUDA_VISIBLE_DEVICES='' python ...")
    if opened := open_devices(Path("/proc/self/fd")):
        raise Refused(f"this process has {opened[0]} open. Hide the GPUs: CUDA_VISIBLE_DEVICES='' python ...")


def open_devices(descriptors: Path, prefix: str = "/dev/nvidia") -> list[str]:
    """Device files that a process holds open. With an index that doesn't exist no GPU is visible, yet they are."""
    if not descriptors.is_dir():
        return []
    targets = []
    for descriptor in descriptors.iterdir():
        try:
            targets.append(str(descriptor.readlink()))
        except OSError:  # closed since: the listing's own
            continue
    return sorted(target for target in targets if target.startswith(prefix))


def set_threads() -> int:
    """Use OMP_NUM_THREADS threads where it is set, torch's own choice where not; return how many.

    Also holds matrix products to full float32, where a CPU could round their inputs to bfloat16.
    """
    torch.set_float32_matmul_precision("highest")
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    if wanted.isdecimal() and int(wanted) > 0:
        torch.set_num_threads(int(wanted))
    return torch.get_num_threads()


def versions() -> dict[str, str]:
    """What computes here, for the record."""
    return {"python": platform.python_version(), "torch": torch.__version__}
