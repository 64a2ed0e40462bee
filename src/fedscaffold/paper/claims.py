"""Claims about a figure, each with what was measured and whether it holds."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Claim:
    """A sentence that a figure is to show, and what was measured.

    Attributes
    ----------
    claim
        The sentence.
    measured
        The measured numbers in words.
    holds
        Whether they agree with the sentence; None where the chosen numbers of clients cannot say.
    """

    claim: str
    measured: str
    holds: bool | None
