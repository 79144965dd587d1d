"""The files that drafters come in: which file, which configuration, which tensors. What they mean: loading.py."""

from __future__ import annotations

import argparse
import json
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from files import digest_of, open_safetensors, read_json, safetensors_of, sha256
from fitting import search_config
from refusal import Refused
from torch import Tensor

_TORCH_SUFFIXES = (".pt", ".pth", ".bin")
_TORCH_NAMES = ("training_state.pt", "checkpoint.pt")
_STATE_KEYS = ("draft_state_dict", "model", "state_dict", "model_state_dict", "drafter", "draft_model")


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """Tensors under the names of their file, the drafter's configuration, and where each came from."""

    file: Path
    sha256: str
    state: dict[str, Tensor]
    config: Mapping[str, Any]
    config_source: str
    step: int | None


def read_checkpoint(path: Path, config: Path | None = None) -> Checkpoint:
    """Read the drafter at `path`, a folder or a file. `config` (a file or its folder) overrides what the file says."""
    if not path.exists():
        raise Refused(f"{path}: no such file or folder")
    file = _weights_of(path) if path.is_dir() else path
    if file.is_dir():
        state, carried, step = _read_folder(file), None, None
        digest = _folder_digest(file)
    elif file.suffix == ".safetensors":
        state, carried, step = _read_safetensors(file)
        digest = sha256(file)
    elif file.suffix in _TORCH_SUFFIXES:
        state, carried, step = _read_torch(file)
        digest = sha256(file)
    else:
        raise Refused(f"{file}: expected a folder, .safetensors or {', '.join(_TORCH_SUFFIXES)}")
    settings, source = _config_of(file, carried, config)
    return Checkpoint(file, digest, state, settings, source, step)


def _weights_of(folder: Path) -> Path:
    """Its safetensors (the folder itself where an index names several), else the one torch file of a known name."""
    if (folder / "model.safetensors.index.json").exists():
        return folder
    if (folder / "model.safetensors").exists():
        return folder / "model.safetensors"
    known = [folder / name for name in _TORCH_NAMES if (folder / name).exists()]
    if len(known) != 1:
        raise Refused(f"{folder}: holds no drafter: neither model.safetensors nor one of {', '.join(_TORCH_NAMES)}")
    return known[0]


def _folder_digest(folder: Path) -> str:
    """One digest of the names and digests of several weights files."""
    return digest_of({file.name: sha256(file) for file in set(safetensors_of(folder).values())})


def _read_folder(folder: Path) -> dict[str, Tensor]:
    state: dict[str, Tensor] = {}
    files = safetensors_of(folder)
    for file in sorted(set(files.values())):
        with open_safetensors(file) as tensors:
            state |= {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118 - not a mapping
    absent = sorted(set(files) - set(state))
    if absent:
        raise Refused(f"{folder}: the index names {absent[0]}, which no file holds")
    return state


def _read_safetensors(file: Path) -> tuple[dict[str, Tensor], Any, int | None]:
    with open_safetensors(file) as tensors:
        metadata = tensors.metadata() or {}
        state = {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118 - not a mapping
    step = metadata.get("step", "")
    return state, _decoded(metadata.get("config"), file), int(step) if step.isdecimal() else None


def _decoded(config: Any, file: Path) -> Any:
    if not isinstance(config, str):
        return config
    try:
        return json.loads(config)
    except json.JSONDecodeError as error:
        raise Refused(f"{file}: its metadata key config is not JSON ({error})") from None


def _read_torch(file: Path) -> tuple[dict[str, Tensor], Any, int | None]:
    """A torch file without running any code in it. argparse.Namespace is let in: it only holds the run's arguments."""
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            content = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise Refused(
            f"{file}: holds more than tensors and plain values, and nothing in it is run ({_first_line(error)}). "
            "Save the state dict alone, or ship it as safetensors"
        ) from None
    except (RuntimeError, EOFError, OSError, ValueError, KeyError, AttributeError) as error:
        raise Refused(f"{file}: not a whole torch file ({_first_line(error)})") from None
    if not isinstance(content, Mapping):
        raise Refused(f"{file}: holds {type(content).__name__}, expected a state dict")
    state = next((content[key] for key in _STATE_KEYS if isinstance(content.get(key), Mapping)), content)
    tensors = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    if not tensors or (state is not content and len(tensors) != len(state)):
        raise Refused(f"{file}: no state dict under any of {', '.join(_STATE_KEYS)}, nor at the top")
    step = content.get("step", content.get("global_step"))
    return tensors, content, step if type(step) is int else None


def _config_of(file: Path, carried: Any, given: Path | None) -> tuple[Mapping[str, Any], str]:
    """The configuration given by the user, else carried by the file, else lying beside it."""
    if given is not None:
        return read_config(given), str(given)
    if found := search_config(carried):
        return found, f"{file} (its own config)"
    beside = (file if file.is_dir() else file.parent) / "config.json"
    if beside.exists():
        return read_config(beside), str(beside)
    raise Refused(
        f"{file}: carries no drafter configuration, and there is no {beside}. "
        "Name one with --config (of a baseline: --baseline-config)"
    )


def read_config(path: Path) -> Mapping[str, Any]:
    """The drafter's configuration in a JSON file, or in the config.json of a folder."""
    file = path / "config.json" if path.is_dir() else path
    found = search_config(read_json(file))
    if found is None:
        raise Refused(f"{file}: is no drafter's configuration: it has no hidden_size and num_hidden_layers")
    return found


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].strip()
