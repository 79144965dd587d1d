"""Why a file is not taken: the two answers that a reader of checkpoints has besides the content itself."""


class Torn(Exception):
    """The file isn't whole: a save in progress, or one that was stopped. The message says what is missing."""


class Refusal(Exception):
    """The file may be whole, but orch won't read it: hostile, damaged on purpose, or of a kind it doesn't know."""


class Hostile(Refusal):
    """A claim that no training run's file makes: to be larger, deeper or longer than it can be."""
