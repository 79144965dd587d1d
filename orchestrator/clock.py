"""Now, as documents say it."""

from __future__ import annotations

from datetime import datetime, timezone


def utc_now() -> str:
    """`2026-11-30T09:12:44Z`."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")
