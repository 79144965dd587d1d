"""The questions about checkpoints: which is the latest complete one, and send me its weights."""

import hashlib
import time
from typing import Any, Dict, Iterator, List, Optional, Tuple

from remote_payload.agent.errors import AgentError
from remote_payload.agent.scan import scan
from remote_payload.agent.stream import Source, open_source


def scan_answer(args: Dict[str, Any], talk: Any) -> Dict[str, Any]:
    """args: root, layout, training_alive, and step where only that one is asked for. See `scan`."""
    return scan(
        str(args["root"]),
        layout=args.get("layout"),
        training_alive=bool(args.get("training_alive")),
        now=time.time(),
        step=args.get("step"),
    )


def send_answer(args: Dict[str, Any], talk: Any) -> Dict[str, Any]:
    """args: root, path, ship, model_key, identity, limit_rate (bytes a second), layout.

    First the plan as progress {"files", "size"}, then the bytes of the files one after the other, then the digests.
    """
    source = open_source(
        str(args["root"]),
        str(args["path"]),
        ship=str(args.get("ship") or "model"),
        model_key=args.get("model_key"),
        identity=args.get("identity"),
        layout=args.get("layout"),
    )
    try:
        talk.progress({"files": source.files, "size": source.size})
        return _sent(source, talk, args.get("limit_rate"))
    finally:
        source.close()


def _sent(source: Source, talk: Any, limit_rate: Optional[float]) -> Dict[str, Any]:
    whole = hashlib.sha256()
    digests = [hashlib.sha256() for _ in source.files]
    at = left = 0
    for chunk in _paced(source.chunks(), limit_rate):
        talk.send(chunk)
        whole.update(chunk)
        if len(source.files) > 1:
            at, left = _add(digests, source.files, at, left, chunk)
    total = whole.hexdigest()
    sums = [digest.hexdigest() for digest in digests] if len(digests) > 1 else [total]
    return {
        "files": [dict(file, sha256=digest) for file, digest in zip(source.files, sums)],
        "bytes": source.size,
        "sha256": total,
        "step": source.step,
        "identity": source.identity,
        "stripped": source.stripped,
        "aliases": source.aliases,
        "placeholders": source.placeholders,
        "config": source.config,
    }


def _add(digests: List[Any], files: List[Dict[str, Any]], at: int, done: int, chunk: bytes) -> Tuple[int, int]:
    """Add a chunk to the digests of the files that it belongs to; returns where that ends: (file, bytes of it)."""
    view = memoryview(chunk)
    while view:
        take = min(len(view), int(files[at]["size"]) - done)
        digests[at].update(view[:take])
        view = view[take:]
        done += take
        if done == files[at]["size"] and view:
            at, done = at + 1, 0
    return at, done


def _paced(chunks: Iterator[bytes], limit_rate: Optional[float]) -> Iterator[bytes]:
    """The chunks no faster than `limit_rate` bytes a second on average."""
    if limit_rate is not None and limit_rate <= 0:
        raise AgentError("limit_rate: %r is not a positive number of bytes a second" % limit_rate, kind="config")
    began = time.monotonic()
    sent = 0
    for chunk in chunks:
        yield chunk
        sent += len(chunk)
        if limit_rate:
            time.sleep(max(0.0, began + sent / limit_rate - time.monotonic()))
