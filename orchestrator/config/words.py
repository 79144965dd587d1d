"""What single words of the files may be and mean: names, targets, paths, placeholders. A refusal is a ValueError."""

from __future__ import annotations

import re
from pathlib import Path

NAME_PATTERN = r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,63}$"
VARIABLE_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*$"
GPU_VARIABLES = frozenset(
    [
        "CUDA_VISIBLE_DEVICES",
        "HIP_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
        "GPU_DEVICE_ORDINAL",
        "ZE_AFFINITY_MASK",
        "ONEAPI_DEVICE_SELECTOR",
        "ASCEND_RT_VISIBLE_DEVICES",
        "MUSA_VISIBLE_DEVICES",
        "HABANA_VISIBLE_DEVICES",
        "NVIDIA_VISIBLE_DEVICES",
        "JAX_PLATFORMS",
    ]
)
"""set by orch, so that an evaluation sees no GPU; a test holds that these are what the agent sets"""
PAYLOAD_FOLDER = "remote_payload"
INSTALLED_ROOT = Path(__file__).resolve().parents[2]
"""the folder that holds the packages orchestrator and remote_payload, in a checkout and in an installation"""
PLACEHOLDERS = ("python", "checkpoint", "result")
DATA_PREFIX = "data."
_PLACEHOLDER = re.compile(r"\{\{([A-Za-z_][\w.-]*)\}\}|\{([A-Za-z_][\w.-]*)\}")
_SHELL = set("'\"`$\\;&<>|(){}*?!#")


def text(word: str) -> str:
    """Any text but none at all, and without NUL, which no command line or path can hold."""
    if not word.strip():
        raise ValueError("some text")
    if "\0" in word:
        raise ValueError("text without a NUL byte")
    return word


def name(word: str) -> str:
    """The name of a host, run, job or data folder: it becomes part of file names."""
    if not re.fullmatch(NAME_PATTERN.strip("^$"), word, re.ASCII):
        raise ValueError("a name of letters, digits, '.', '_' and '-', at most 64")
    return word


def variable(word: str) -> str:
    """The name of an environment variable that a job may set."""
    if not re.fullmatch(VARIABLE_PATTERN.strip("^$"), word, re.ASCII):
        raise ValueError("the name of an environment variable")
    if word in GPU_VARIABLES:
        raise ValueError("any variable but those that hide the GPUs, which orch sets itself")
    return word


def ssh_target(word: str) -> str:
    """An alias, `host`, `user@host` or `user@host:port`. Nothing that ssh or a shell could read as something else."""
    if not word or any(not char.isprintable() or char.isspace() for char in word):
        raise ValueError("an ssh target without spaces and control characters")
    if any(part.startswith("-") for part in (word, word.rpartition("@")[2])):
        raise ValueError("an ssh target that doesn't begin with '-'")
    if _SHELL & set(word):
        raise ValueError("an ssh target like ct200 or root@10.1.2.6")
    return word


def remote_folder(word: str) -> str:
    """A folder that orch may write to: not the root, not the home, and without `..`."""
    parts = text(word).rstrip("/").split("/")
    if ".." in parts or word.rstrip("/") in ("", "~", "."):
        raise ValueError("a folder of its own, such as /root/eval or ~/orch")
    return word


def harness_folder(folder: Path, local: str) -> Path | None:
    """The folder beside the inventory; for remote_payload/..., else the copy inside the installation; or none."""
    beside = folder / Path(local).expanduser()
    if beside.is_dir():
        return beside
    parts = Path(local).parts
    inside = parts[:1] == (PAYLOAD_FOLDER,) and ".." not in parts
    return INSTALLED_ROOT / local if inside and (INSTALLED_ROOT / local).is_dir() else None


def result_file(word: str) -> str:
    """A file in the run folder."""
    if "/" in text(word) or word.startswith("~") or word in (".", ".."):
        raise ValueError("a file name in the run folder, such as eval_results.json")
    return word


def layout(word: str) -> str:
    """The name of a layout, or a pattern that says where the step stands."""
    if ("/" in word or "{" in word) and word.count("{step}") < 1:
        raise ValueError("the name of a layout, or a pattern like step_{step}/checkpoint.pt")
    unknown = {found for found in re.findall(r"\{([^{}]*)\}", word) if found != "step"}
    if unknown:
        raise ValueError(f"no placeholder but {{step}} in a layout (not {{{sorted(unknown)[0]}}})")
    return text(word)


def progress(word: str) -> str:
    """The name of a preset, or a regular expression with the named group step."""
    if "(" not in word:
        return name(word)
    try:
        groups = re.compile(word).groupindex
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"a regular expression ({error})") from None
    unknown = sorted(set(groups) - {"step", "epoch", "loss", "rate", "unit"})
    if "step" not in groups or unknown:
        raise ValueError("a regular expression with named groups step and maybe epoch, loss, rate, unit")
    return word


def server(word: str) -> str:
    """The URL of a server, without a user or password in it."""
    if not re.fullmatch(r"https?://[^\s/@?#]+(/[^\s@]*)?", word):
        raise ValueError("a URL like http://127.0.0.1:30000, without user and password")
    return word


def placeholders(word: str) -> tuple[str, ...]:
    """Names in braces in one word of a command: `--x={data.cache}` -> ("data.cache",). `{{name}}` is no placeholder."""
    return tuple(found[2] for found in _PLACEHOLDER.finditer(word) if found[2])
