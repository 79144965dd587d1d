"""This process on its machine: CPU only, and as many threads as it was told."""

from __future__ import annotations

import os
import platform

import torch
from refusal import Refused


def require_cpu() -> None:
    """Refuse to run where a GPU is visible: an evaluation must not be able to touch one that trains."""
    count = torch.cuda.device_count()
    if count:
        raise Refused(f"{count} GPU(s) are visible to this process. Hide them: CUDA_VISIBLE_DEVICES='' python ...")


def set_threads() -> int:
    """Use OMP_NUM_THREADS threads where it is set, torch's own choice where not; return how many."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    if wanted.isdecimal() and int(wanted) > 0:
        torch.set_num_threads(int(wanted))
    return torch.get_num_threads()


def versions() -> dict[str, str]:
    """What computes here, for the record."""
    return {"python": platform.python_version(), "torch": torch.__version__}
