"""A synthetic language that a tiny model learns in seconds and a drafter learns in a minute.

A text opens with a topic word and goes on in phrases, each a fixed run of 3 to 6 words. The topic decides which phrase
follows which, so the words inside a phrase can be guessed from their neighbours alone, while the first word of the next
phrase needs the topic, far back in the text. A drafter learns the first kind early and the second kind later: its
acceptance length goes on growing instead of jumping to its end.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

VOCABULARY = 256
MASK_TOKEN = VOCABULARY - 1
"""The drafter's mask; it is never part of a text."""
TOPIC_WORDS = range(0, 8)
PHRASE_WORDS = range(8, 128)
PHRASES = 20
OPENING = 16
"""Tokens that tell one prompt from another: training prompts are this long, held-out prompts at least this long."""


@dataclass(frozen=True)
class Language:
    """The phrases and, for every topic, the phrase that follows each phrase."""

    seed: int
    phrases: tuple[tuple[int, ...], ...]
    successors: tuple[tuple[int, ...], ...]

    @classmethod
    def from_seed(cls, seed: int) -> Language:
        chooser = random.Random(f"{seed} language")
        phrases = tuple(tuple(chooser.sample(PHRASE_WORDS, chooser.randint(3, 6))) for _ in range(PHRASES))
        return cls(seed, phrases, tuple(_one_cycle(PHRASES, chooser) for _ in TOPIC_WORDS))

    def text(self, length: int, chooser: random.Random, *, surprise: float = 0.1) -> list[int]:
        """`length` token ids. With probability `surprise` a phrase is followed by any phrase instead of its own one."""
        topic = chooser.choice(TOPIC_WORDS)
        phrase = chooser.randrange(PHRASES)
        tokens = [topic]
        while len(tokens) < length:
            tokens += self.phrases[phrase]
            phrase = chooser.randrange(PHRASES) if chooser.random() < surprise else self.successors[topic][phrase]
        return tokens[:length]

    def training_prompts(self, count: int) -> list[list[int]]:
        """`count` openings of OPENING tokens; a smaller count gives the beginning of a larger one."""
        chooser = random.Random(f"{self.seed} training prompts")
        return [self.text(OPENING, chooser, surprise=0.5) for _ in range(count)]

    def held_out_prompts(self, count: int, *, training_prompts: int) -> list[list[int]]:
        """`count` openings of 16 to 28 tokens, none of which begins like one of the first `training_prompts`."""
        seen = {tuple(prompt) for prompt in self.training_prompts(training_prompts)}
        chooser = random.Random(f"{self.seed} held-out prompts")
        prompts: list[list[int]] = []
        while len(prompts) < count:
            prompt = self.text(chooser.randint(OPENING, OPENING + 12), chooser, surprise=0.5)
            if tuple(prompt[:OPENING]) not in seen:
                prompts.append(prompt)
        return prompts


def _one_cycle(size: int, chooser: random.Random) -> tuple[int, ...]:
    """A random successor for each of `size` things such that following them visits all before coming back."""
    order = chooser.sample(range(size), size)
    following = dict(zip(order, order[1:] + order[:1], strict=True))
    return tuple(following[thing] for thing in range(size))
