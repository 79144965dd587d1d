"""The sending end of a shipment, on the training box: chunks read in order, hashed, and put on whatever way there is.

A way is this conversation itself (relay), or connections of `ssh` to the evaluation host (direct, tunnel), started by
this process and ending with it. What was lost on the way is asked for again: the receiver says which chunks it lacks.
"""

from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from remote_payload.agent import chunks
from remote_payload.agent.chunks import Chunk
from remote_payload.agent.errors import AgentError
from remote_payload.agent.pace import Pace
from remote_payload.agent.stream import Source, open_source
from remote_payload.agent.ways import Relay, Way

MOST_PARTS = 16
"""pieces of a chunk that are written one by one; more of them, of small tensors, are joined first"""


def send_answer(args: Dict[str, Any], talk: Any) -> Dict[str, Any]:
    """args: root, path, ship, model_key, identity, limit_rate (bytes a second), layout, training ({"identity", "ranks"}
    of the process on this box that is not to feel it, or None).

    First the plan as progress {"files", "size", "chunk", "plan"}. Then for each message {"missing": ranges, "way": ...}
    those chunks go out, and progress {"round": {"sent": bytes, "problems": [text]}} is said behind them. A message
    without missing chunks ends it. Answers the account: what was sent with a digest over it, and what became of names.
    """
    limit_rate = args.get("limit_rate")
    if limit_rate is not None and limit_rate <= 0:
        raise AgentError("limit_rate: %r is not a positive number of bytes a second" % limit_rate, kind="config")
    source = open_source(
        str(args["root"]),
        str(args["path"]),
        ship=str(args.get("ship") or "model"),
        model_key=args.get("model_key"),
        identity=args.get("identity"),
        layout=args.get("layout"),
    )
    try:
        plan = chunks.plan_digest(source.files, chunks.CHUNK, source.header, source.identity)
        talk.progress({"files": source.files, "size": source.size, "chunk": chunks.CHUNK, "plan": plan})
        sender = Sender(source, Pace(limit_rate, args.get("training")))
        while True:
            wanted = talk.message()
            missing = list(chunks.from_ranges(wanted.get("missing", []), len(sender.chunks)))
            if not missing:
                return sender.account()
            talk.progress({"round": sender.send(missing, way_of(wanted.get("way") or {}, talk))})
    finally:
        source.close()


def way_of(asked: Dict[str, Any], talk: Any) -> "Way":
    """The connections that a message asks for."""
    if asked.get("kind") == "ssh":
        from remote_payload.agent import sshlanes

        return Way(sshlanes.open_lanes(asked, talk))
    return Way([Relay(talk)])


class Sender:
    """Sends chunks of one source and remembers what it sent."""

    def __init__(self, source: Source, pace: Pace) -> None:
        self._source = source
        self._pace = pace
        self.chunks = chunks.cut(source.files)
        self._digests: Dict[int, bytes] = {}
        self._bytes = 0

    def send(self, missing: Sequence[int], way: Way) -> Dict[str, Any]:
        """These chunks (numbers, ascending), by this way. Raises AgentError where the source is torn or changed."""
        sent = 0
        self._pace.begin()
        try:
            for chunk, parts in self._pace.reading(self._filled(missing)):
                if not way.put(chunk.number, parts):
                    break
                sent += chunk.size
                self._pace.sent(chunk.size)
        finally:
            problems = way.finish()
        self._digests.update(way.digests)
        self._bytes += sent
        return {"sent": sent, "problems": problems}

    def _filled(self, missing: Sequence[int]) -> Iterator[Tuple[Chunk, Sequence[memoryview]]]:
        """Each chunk with its bytes, as they were read, in one pass over the source."""
        order = iter(missing)
        chunk: Optional[Chunk] = None
        parts: List[memoryview] = []
        lacking = 0
        for _, piece in self._source.pieces(chunks.spans(self.chunks, missing)):
            while piece:
                if chunk is None:
                    chunk = self.chunks[next(order)]
                    parts, lacking = [], chunk.size
                parts.append(piece[:lacking])
                piece = piece[len(parts[-1]) :]
                lacking -= len(parts[-1])
                if not lacking:
                    yield chunk, parts if len(parts) <= MOST_PARTS else [memoryview(b"".join(parts))]
                    chunk = None

    def account(self) -> Dict[str, Any]:
        """What was sent in this conversation, and how names of the source became names of the shipment."""
        source, order = self._source, sorted(self._digests)
        return {
            "files": source.files,
            "bytes": source.size,
            "sent": {"bytes": self._bytes, "chunks": chunks.to_ranges(order), "tree": self._tree(order)},
            "step": source.step,
            "identity": source.identity,
            "stripped": source.stripped,
            "aliases": source.aliases,
            "placeholders": source.placeholders,
            "config": source.config,
            "pace": self._pace.account(),
        }

    def _tree(self, order: Sequence[int]) -> str:
        return chunks.tree(self._digests[index] for index in order)
