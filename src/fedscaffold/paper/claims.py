"""Claims of the paper, what was measured about them, and files that keep both."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedscaffold.core.storage.files import write_text

VERDICTS = {True: "yes", False: "NO", None: "not tested"}


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

    @property
    def verdict(self) -> str:
        """The words "yes", "NO" or "not tested"."""
        return VERDICTS[self.holds]


def save_claims(found: Sequence[Claim], settings: Any, file: Path) -> None:
    """Write claims and the settings they were tested with, a dataclass, to a JSON file."""
    content = {"settings": asdict(settings), "claims": [asdict(claim) for claim in found]}
    write_text(file, json.dumps(content, indent=2) + "\n")


def to_markdown(found: Sequence[Claim]) -> str:
    """Claims as a Markdown table."""
    lines = ["| claim | measured | holds |", "|---|---|---|"]
    lines += [f"| {claim.claim} | {claim.measured} | {claim.verdict} |" for claim in found]
    return "\n".join(lines) + "\n"
