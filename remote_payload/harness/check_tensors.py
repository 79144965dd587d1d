"""Whether eval_drafter.py would take a checkpoint, asked before a byte of it is shipped. No torch, no weights.

Takes eval_drafter.py's own arguments, of which it reads --config and --cache, and on stdin a JSON object {"tensors":
{name: [type, shape]}, "config": the settings that the checkpoint carries, or null}. Exit 0: it fits; 2: the reason.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from drafter_config import DrafterConfig
from fitting import BORROWED, OWN_HEAD, TRAINING_ONLY, check_cached, check_shapes, search_config, strip_wrappers
from refusal import Refused

FILE = "the checkpoint"
FLOATS = ("F32", "BF16", "F16", "F64")


def main(words: Sequence[str] | None = None) -> int:
    """Check what stdin describes. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path)
    parser.add_argument("--cache", type=Path)
    arguments = parser.parse_known_args(words)[0]
    asked = json.load(sys.stdin)
    try:
        config = check(asked["tensors"], asked["config"], arguments.config, arguments.cache)
    except Refused as error:
        print(error)
        return 2
    print(f"{config.num_layers} layers of {config.hidden_size}, block {config.block_size}: fits its configuration")
    return 0


def check(tensors: Mapping[str, Any], carried: Any, given: Path | None, cache: Path | None) -> DrafterConfig:
    """The drafter's configuration. Raises Refused where eval_drafter.py would, as far as names and shapes tell."""
    found = search_config(_json(given) if given is not None else carried)
    if found is None:
        where = f"{given} is" if given is not None else f"{FILE} carries"
        raise Refused(f"{where} no drafter configuration. Name one with --config")
    config = DrafterConfig.from_hf(found)
    state = strip_wrappers(tensors)
    _drop_borrowed(state, config)
    wrong = next((name for name, (kind, _) in sorted(state.items()) if kind not in FLOATS), None)
    if wrong is not None:
        raise Refused(f"{FILE}: {wrong} is {state[wrong][0]}; expected float32, bfloat16 or float16")
    check_shapes({name: tuple(shape) for name, (_, shape) in state.items()}, config, FILE)
    if cache is not None and (cache / "manifest.json").exists():
        manifest = _json(cache / "manifest.json")
        check_cached(config, manifest, cache)
        target = manifest["target"]["hidden_size"]
        if config.hidden_size != target:
            raise Refused(f"{FILE}: hidden_size is {config.hidden_size}, the target's {target}")
    return config


def _drop_borrowed(state: dict[str, Any], config: DrafterConfig) -> None:
    """What is not of the drafter's own body; a vocabulary of its own has its head."""
    if config.draft_vocab_size is not None:
        missing = [name for name in OWN_HEAD if name not in state]
        if missing:
            raise Refused(f"{FILE}: draft_vocab_size is {config.draft_vocab_size}, but {', '.join(missing)} is missing")
    for name in (*BORROWED, *TRAINING_ONLY, "t2d", "d2t"):
        state.pop(name, None)


def _json(path: Path) -> Any:
    file = path / "config.json" if path.is_dir() else path
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Refused(f"{file}: {error}") from None


if __name__ == "__main__":
    sys.exit(main())
