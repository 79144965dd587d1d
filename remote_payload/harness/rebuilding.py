"""Make damaged files of a whole cache again, each alone."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cache
from arithmetic import DTYPES
from decoder import Decoder
from extraction import LayerProgress, Means, copy_ends, digest_of_target
from files import write_json
from hidden_states import LayerRun, Reading, plan_for
from machine import versions
from refusal import Refused
from safetensors_reader import TensorFiles


def rebuild(target: Path, out: Path, names: Sequence[str], means: Means) -> str:
    """Make damaged files of a whole cache again, and nothing else; return the sentence to print.

    A shard's texts are run with those that shared a chunk with it, which gives the same bytes on a like machine. Where
    it does not, the manifest takes the new digest and says so.
    """
    manifest = cache.read_manifest(out)
    files = TensorFiles(target)
    if digest_of_target(files) != manifest["target"]["digest"]:
        raise Refused(f"{target}: is not the target of {out} ({manifest['target']['id']}): their digests differ")
    decoder = Decoder(target, files)
    wanted = [_known_file(name, manifest, out) for name in names]
    if "target.safetensors" in wanted:
        copy_ends(decoder, out / "target.safetensors")
    shards = [index for index, entry in enumerate(manifest["prompts"]) if entry["shard"] in wanted]
    if shards:
        _rebuild_shards(manifest, decoder, shards, out, means)
    facts = cache.file_facts(out, wanted)
    changed = [name for name in wanted if facts[name] != manifest["files"][name]]
    if changed:
        manifest["files"] |= facts
        manifest["rebuilt"] = [*manifest.get("rebuilt", []), {"files": changed, **versions()}]
        write_json(out / "manifest.json", manifest)
        return (
            f"{out}: {', '.join(wanted)} made again; not the same bytes for {', '.join(changed)}, the manifest says so"
        )
    return f"{out}: {', '.join(wanted)} made again, byte for byte"


def _rebuild_shards(manifest: dict[str, Any], decoder: Decoder, shards: list[int], out: Path, means: Means) -> None:
    texts = tuple(tuple(entry["token_ids"]) for entry in manifest["prompts"])
    layer_ids = tuple(manifest["target_layer_ids"])
    arithmetic = manifest["engine"].get("arithmetic", "float32")
    if arithmetic not in tuple(DTYPES):
        raise Refused(f"{out}: was computed in {arithmetic}; this harness computes in {' or '.join(DTYPES)}: update it")
    plan = plan_for(decoder, texts, means.memory, arithmetic)
    chunk_tokens = manifest["engine"].get("chunk_tokens", plan.chunk_tokens)
    reading, kept = Reading(texts, layer_ids, chunk_tokens, decoder.packed, arithmetic).only(shards)
    growing = {
        index: cache.TapFile(
            out / manifest["prompts"][index]["shard"],
            len(texts[index]),
            decoder.hidden_size,
            len(layer_ids),
            manifest["dtype"],
        )
        for index in shards
    }
    for shard in growing.values():
        shard.start()

    def sink(text: int, place: int, rows: Any, durable: bool) -> None:
        if kept[text] in growing:
            growing[kept[text]].write(place, rows, durable)

    with tempfile.TemporaryDirectory(prefix=".rebuild-", dir=out) as folder:
        run = LayerRun(decoder, reading, Path(folder), LayerProgress(None).step)
        run.run(max(layer_ids), sink)
    for shard in growing.values():
        shard.finish()


def _known_file(name: str, manifest: dict[str, Any], out: Path) -> str:
    for known in manifest["files"]:
        if name in (known, Path(known).name, Path(known).stem):
            return str(known)
    raise Refused(f"{out}/manifest.json: knows no file {name}")
