"""Small pieces of HTML that the parts of a report share. Everything that came from a host passes `safe`."""

from __future__ import annotations

import html

from orchestrator.amounts import decimal
from orchestrator.model import Estimate
from orchestrator.reports.text import shown

SHORT = 12
"""characters of a digest"""
GOOD, BAD = ("undisturbed", "better"), ("changed", "worse")
WORDS = {"no_difference": "no difference shown", "not_observed": "not observed", None: "-"}


def safe(text: str, limit: int = 200) -> str:
    """Foreign text for HTML: control characters as escapes, cut, and with its markup taken away."""
    return html.escape(shown(text, limit))


def short(digest: str) -> str:
    """The beginning of a digest."""
    return shown(digest, 80)[:SHORT]


def span(estimate: Estimate | None, *, signed: bool = False) -> str:
    """`3.401 to 3.623`; nothing where there is no interval."""
    if estimate is None or estimate.low is None or estimate.high is None:
        return ""
    sign = "+" if signed else ""
    return f"{decimal(estimate.low, sign)} to {decimal(estimate.high, sign)}"


def badge(word: str | None) -> str:
    """A verdict as a coloured word."""
    kind = " good" if word in GOOD else " bad" if word in BAD else ""
    return f'<span class="word{kind}">{safe(WORDS.get(word, word or "-"))}</span>'
