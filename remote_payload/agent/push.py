"""Make a host's harness folder equal to a manifest: what differs from the last sync is saved first, and what is about
to be done is announced, so that a sync that is killed between two renames is recognised and mended by the next one."""

from typing import Any, Dict, Iterable, Sequence

from remote_payload.agent import lastsync, manifest, replace, scratch
from remote_payload.agent.manifest import Entry
from remote_payload.agent.replace import Found, Replacement, content


def push(
    remote: str,
    entries: Sequence[Entry],
    send: Sequence[str],
    delete: Sequence[str],
    expected: Found,
    pieces: Iterable[bytes],
) -> Dict[str, Any]:
    """Make `remote` hold exactly `entries` (extras stay). `pieces` are the bytes of the files in `send`, in that order;
    `expected` is what the plan saw on the host at every path in `send` and `delete` (None: nothing).

    Returns {"pushed": [path], "deleted": [path], "saved": folder or None, "digest"}. Raises AgentError: refused when a
    file changed since the plan, when a path is not below the folder, on a full disk or without permission; transfer
    when bytes are missing or wrong. After an error the old files are whole.
    """
    replace.check(entries, send, delete)
    root = scratch.expand(remote)
    with replace.opened(root, "sync-harness") as incoming:
        change = Replacement(root, incoming, entries, send, delete, expected)
        change.receive(pieces)
        change.verify()
        base = _settle(root, change.found)
        lastsync.keep_contents(root, entries, change.arrived, incoming)
        saved = change.save(lambda path, entry: content(entry) != content(base.get(path)))
        lastsync.announce(root, entries)
        try:
            pushed = change.swap(lambda: lastsync.remember(root, entries))
        finally:
            lastsync.withdraw(root)
        lastsync.drop_contents(root, entries)
    return {"pushed": pushed, "deleted": sorted(delete), "saved": saved, "digest": manifest.digest(entries)}


def _settle(root: str, found: Found) -> Dict[str, Entry]:
    """The last sync by path; one that was cut is part of it from now on."""
    intent = lastsync.intent_of(root)
    base = lastsync.settled(lastsync.base_of(root), intent, found) or []
    if intent is not None:
        lastsync.remember(root, base)
    return {one["path"]: one for one in base}
