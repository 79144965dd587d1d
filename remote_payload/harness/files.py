"""Files that are whole or absent, and their digests."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from refusal import Refused
from safetensors import SafetensorError, safe_open


def sha256(path: Path) -> str:
    """Hex digest of a file's bytes."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while chunk := stream.read(1 << 22):
            digest.update(chunk)
    return digest.hexdigest()


def digest_of(value: Any) -> str:
    """Hex digest of a JSON value, the same whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def write_json(path: Path, value: Any, *, durable: bool = True) -> None:
    """Write beside, then rename: a reader sees the old file or the new one, never half.

    `durable` waits for the disk; without it only a power cut or a crash of the system can leave half.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with open(temporary, "w", encoding="utf-8") as stream:
        json.dump(value, stream, indent=1)
        stream.write("\n")
        if durable:
            stream.flush()
            os.fsync(stream.fileno())
    temporary.replace(path)


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises `Refused` where there is none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Refused(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise Refused(f"{path}: not readable as JSON ({error})") from None
    if not isinstance(value, dict):
        raise Refused(f"{path}: holds {type(value).__name__}, expected a JSON object")
    return value


def open_safetensors(path: Path) -> safe_open:
    """An open safetensors file (use as a context). Raises `Refused` where it is torn or something else."""
    try:
        return safe_open(path, framework="pt")
    except FileNotFoundError:
        raise Refused(f"{path}: no such file") from None
    except (SafetensorError, OSError) as error:
        raise Refused(f"{path}: not a whole safetensors file ({error})") from None


def safetensors_of(folder: Path) -> dict[str, Path]:
    """Tensor name -> file, of a Hugging Face folder with one model.safetensors or an index of several."""
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if index.exists():
        names = read_json(index).get("weight_map")
        if not isinstance(names, dict) or not names:
            raise Refused(f"{index}: has no weight_map")
        return {name: folder / file for name, file in names.items()}
    if not single.exists():
        raise Refused(f"{folder}: holds neither model.safetensors nor model.safetensors.index.json")
    with open_safetensors(single) as tensors:
        return dict.fromkeys(tensors.keys(), single)
