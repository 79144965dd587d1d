"""Build a hidden-state cache: a target's greedy texts and the hidden states that drafters read.

    python extract_hidden_states.py --target DIR --drafter DIR --out CACHE
    python extract_hidden_states.py --target DIR --layers 1,9,17,25,33 --prompts my.jsonl --out CACHE
    python extract_hidden_states.py --target DIR --drafter DIR --server http://127.0.0.1:30000 --out CACHE
    python extract_hidden_states.py --target DIR --out CACHE --rebuild shards/00017.safetensors

A line of JSONL is one prompt: {"id": ..., "data_set": "gsm8k", and one of "prompt" (text), "messages" (a chat),
"token_ids"}; results are also given by data_set. Without --prompts a small set of its own is taken.

Texts are the target's greedy continuations. They come from a server that takes and returns token ids, or from this
process where the whole target fits --memory. Hidden states are computed here on the CPU, layer by layer: a layer's
weights are read once, run over all texts and dropped, so a target may be several times larger than the memory.
Every generated token is compared with the target's own choice (the greedy check).

Interrupted, the same command goes on where it stopped: at a prompt, at a layer. The cache appears at --out when it is
whole; until then it grows in the folder CACHE.partial. --layers with the layers of several drafters serves them all.

A cache is computed in one arithmetic, which its manifest names: float32, the same on every machine, or bfloat16. auto
times both and takes bfloat16 if the weights are stored so and it is 1.5 times as fast (with AMX, AVX512-BF16).

Exits with 0: done, or already there; 2: refused, with a sentence; 130: interrupted; 1: a bug, with its traceback.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import arithmetic
import cache
import memory
import servers
from checkpoint_files import read_config
from completions import key_from
from decoder import Decoder
from drafter_config import DrafterConfig, check_taps
from extraction import Extraction, Means, begun, digest_of_target, extract
from files import read_json
from machine import require_cpu, set_threads
from prompt_files import read_prompts
from rebuilding import rebuild
from refusal import Refused
from safetensors_reader import TensorFiles

DEMO = Path(__file__).parent / "prompts" / "demo.jsonl"


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    try:
        require_cpu()
        set_threads()
        print(run(arguments))
    except (Refused, OSError) as error:
        print(f"extract_hidden_states: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("extract_hidden_states: interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    return 0


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--target", type=Path, required=True, metavar="DIR", help="Hugging Face folder of the target")
    add("--out", type=Path, required=True, metavar="CACHE", help="where the cache will be")
    layers = parser.add_mutually_exclusive_group(required=True)
    layers.add_argument("--layers", type=_layers, metavar="1,9,...", help="target layers to tap, counted from 0")
    layers.add_argument(
        "--drafter", type=Path, metavar="DIR", help="tap the layers that this drafter (config.json) reads"
    )
    layers.add_argument(
        "--rebuild", action="append", metavar="FILE", help="make a damaged file of CACHE again, and nothing else"
    )
    add("--prompts", type=Path, default=DEMO, metavar="JSONL", help="id, data_set and prompt, messages or token_ids")
    add("--max-new-tokens", type=_count, default=256, metavar="N", help="longest completion (default 256)")
    add("--template", choices=("chat", "raw"), help="default: chat where the tokenizer has a template")
    add("--thinking", action="store_true", help="let the chat template ask for thinking")
    add("--dtype", choices=sorted(cache.DTYPES), default="float32", help="how taps are stored (default float32)")
    add(
        "--arithmetic",
        choices=[*arithmetic.DTYPES, arithmetic.AUTO],
        default="float32",
        help="what layers are computed in (default float32: the same numbers on every machine; auto: see above)",
    )
    add(
        "--memory",
        type=memory.parse_size,
        metavar="SIZE",
        help="memory that this process may fill, like 12GiB (default: most of what is free)",
    )
    add(
        "--no-greedy-check",
        action="store_true",
        help="take the texts for the target's own choice: layers above the last tapped one and the head are not run",
    )
    server = parser.add_argument_group("texts from a server")
    server.add_argument("--server", metavar="URL", help="take completions from there instead of computing them")
    server.add_argument(
        "--api", choices=servers.APIS, default="generate", help="SGLang's /generate (default), or /v1/completions"
    )
    server.add_argument("--server-model", metavar="NAME", help="model to name to /v1/completions (default: the first)")
    server.add_argument("--server-key-from", metavar="VARIABLE", help="environment variable that holds a bearer token")
    server.add_argument("--at-once", type=_count, default=4, metavar="N", help="prompts asked for at once (default 4)")
    return parser


def run(arguments: argparse.Namespace) -> str:
    """Extract or rebuild; return the sentence to print."""
    means = Means(memory=arguments.memory or memory.default_budget(), at_once=arguments.at_once)
    if arguments.rebuild:
        return rebuild(arguments.target, arguments.out, arguments.rebuild, means)
    extraction, decoder = plan(arguments)
    return extract(extraction, decoder, arguments.out, means)


def plan(arguments: argparse.Namespace) -> tuple[Extraction, Decoder]:
    """Check everything that can be checked before anything long is done."""
    layer_ids = arguments.layers or DrafterConfig.from_hf(read_config(arguments.drafter)).target_layer_ids
    config = read_json(arguments.target / "config.json")
    layers = (config.get("text_config") or config).get("num_hidden_layers")
    if type(layers) is not int:
        raise Refused(f"{arguments.target}/config.json: has no num_hidden_layers: not a language model")
    check_taps(layer_ids, layers)
    prompts = read_prompts(arguments.prompts, arguments.target, arguments.template, arguments.thinking)
    decoder = Decoder(arguments.target, TensorFiles(arguments.target))
    key = key_from(arguments.server_key_from)
    server = arguments.server and servers.server_at(arguments.server, arguments.api, arguments.server_model, key)
    extraction = Extraction(
        target=arguments.target,
        layer_ids=layer_ids,
        prompts=prompts,
        max_new_tokens=arguments.max_new_tokens,
        thinking=arguments.thinking,
        dtype=arguments.dtype,
        server=server,
        target_digest=digest_of_target(decoder.files),
        greedy_check=not arguments.no_greedy_check,
        arithmetic=arithmetic.settle(arguments.arithmetic, decoder, begun(arguments.out)),
    )
    return extraction, decoder


def _layers(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"expected layers like 1,9,17, not {text!r}")
    return tuple(map(int, parts))


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number from 1 up, not {text!r}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
