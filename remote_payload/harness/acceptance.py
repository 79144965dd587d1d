"""How much of a drafted block the target would accept, from its greedy text alone. Pure functions.

At temperature 0 the accepted path is the target's own greedy text, so a cached text decides every round and no target
forward is needed. A round at anchor s drafts text[s+1], text[s+2], ...; its length is the accepted tokens plus one, the
token that the target adds itself. The next anchor is s + length. Published numbers are means over responses of the mean
over rounds ("walk, macro").

What the text can't decide is told apart, never mixed in: a round is *censored* when everything drafted so far was right
and then the text ends, or goes on with a token that was not the target's choice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt and its continuation, with the target's choice for every token of the continuation."""

    token_ids: tuple[int, ...]
    prompt_length: int
    argmax: tuple[int, ...]
    """argmax[j] is the target's greedy choice for token_ids[prompt_length + j]."""

    def known(self, anchor: int, count: int) -> tuple[int, ...]:
        """The tokens after `anchor` that are the target's own: at most `count`, up to the first that is not."""
        first = anchor + 1 - self.prompt_length
        known = []
        for token, choice in zip(self.token_ids[anchor + 1 : anchor + 1 + count], self.argmax[first:], strict=False):
            if token != choice:
                break
            known.append(token)
        return tuple(known)

    @property
    def anchors(self) -> range:
        """Where a round can start: from the first generated token to the last that has a successor."""
        return range(self.prompt_length, len(self.token_ids) - 1)


@dataclass(frozen=True, slots=True)
class Round:
    """One draft and what became of it. `accepted` of a censored round is what is known, a lower bound."""

    anchor: int
    accepted: int
    censored: bool

    @property
    def length(self) -> int:
        """Tokens that the target pass yields: the target always adds one of its own, so at least 1."""
        return self.accepted + 1


def leading_run(draft: Sequence[int], truth: Sequence[int]) -> int:
    """How many tokens agree before the first that doesn't."""
    for index, (drafted, true) in enumerate(zip(draft, truth, strict=False)):
        if drafted != true:
            return index
    return min(len(draft), len(truth))


def block_round(anchor: int, draft: Sequence[int], known: Sequence[int]) -> Round:
    """The round of a drafted sequence. Censored if the known tokens ran out before the draft failed or ended."""
    accepted = leading_run(draft, known)
    return Round(anchor, accepted, censored=accepted == len(known) < len(draft))


def walk(anchors: range, round_at: Callable[[int], Round]) -> list[Round]:
    """The rounds that decoding goes through, each starting where the one before it ended."""
    rounds = []
    anchor = anchors.start
    while anchor < anchors.stop:
        rounds.append(round_at(anchor))
        anchor += rounds[-1].length
    return rounds


def clean_lengths(rounds: Sequence[Round]) -> list[int]:
    """Lengths of the rounds that the text decides."""
    return [round_.length for round_ in rounds if not round_.censored]


def macro(lengths_by_prompt: Sequence[Sequence[int]]) -> float | None:
    """Mean over prompts of the mean over rounds; prompts without a decided round don't count. None without any."""
    means = [fmean(lengths) for lengths in lengths_by_prompt if lengths]
    return fmean(means) if means else None


def pooled(lengths_by_prompt: Sequence[Sequence[int]]) -> float | None:
    """Mean over all rounds of all prompts."""
    lengths = [length for prompt in lengths_by_prompt for length in prompt]
    return fmean(lengths) if lengths else None


def histogram(lengths_by_prompt: Sequence[Sequence[int]]) -> dict[str, int]:
    """Round length -> number of rounds, all prompts pooled."""
    counts = Counter(length for prompt in lengths_by_prompt for length in prompt)
    return {str(length): counts[length] for length in sorted(counts)}


@dataclass(frozen=True, slots=True)
class Hits:
    """Where the draft at one anchor was right, for as many positions as the text decides."""

    right: tuple[bool, ...]
    block: int
    """Drafted tokens in a whole block."""

    @classmethod
    def of(cls, draft: Sequence[int], known: Sequence[int]) -> Hits:
        return cls(tuple(drafted == true for drafted, true in zip(draft, known, strict=False)), len(draft))

    @property
    def run(self) -> int:
        return self.right.index(False) if False in self.right else len(self.right)


def all_anchor(hits: Sequence[Hits]) -> float | None:
    """Mean length of a round started at every anchor whose whole block the text decides (others would bias it)."""
    lengths = [1 + each.run for each in hits if len(each.right) == each.block]
    return fmean(lengths) if lengths else None


def positions(hits: Sequence[Hits]) -> list[dict[str, float | int | None]]:
    """Accuracy at each position k of the block, over the n anchors for which the text decides positions 1..k.

    marginal     P(draft k is right)
    survival     P(drafts 1..k are all right); 1 + its sum is an acceptance length
    conditional  P(draft k is right | drafts 1..k-1 are), over n_conditional anchors
    """
    rows: list[dict[str, float | int | None]] = []
    for k in range(1, max((each.block for each in hits), default=0) + 1):
        decided = [each for each in hits if len(each.right) >= k]
        reached = sum(each.run >= k - 1 for each in decided)
        survived = sum(each.run >= k for each in decided)
        rows.append(
            {
                "k": k,
                "marginal": _share(sum(each.right[k - 1] for each in decided), len(decided)),
                "survival": _share(survived, len(decided)),
                "conditional": _share(survived, reached),
                "n": len(decided),
                "n_conditional": reached,
            }
        )
    return rows


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
