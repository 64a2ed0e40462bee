"""Claims of the paper, what was measured about them, and files that keep both."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedscaffold.core.checks import whole_number
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.files import write_text


@dataclass(frozen=True)
class Claim:
    """A sentence that a figure is to show, and the measurement in words."""

    claim: str
    measured: str
    holds: bool | None  # None if the chosen numbers of clients, runs or draws cannot decide

    @property
    def verdict(self) -> str:
        """The words "yes", "NO" or "not tested"."""
        return {True: "yes", False: "NO", None: "not tested"}[self.holds]


def save_claims(found: Sequence[Claim], settings: Any, file: Path) -> None:
    """Write claims and the settings they were tested with, a dataclass, to a JSON file."""
    content = {"settings": asdict(settings), "claims": [asdict(claim) for claim in found]}
    write_text(file, json.dumps(content, indent=2) + "\n")


def to_markdown(found: Sequence[Claim]) -> str:
    """Return claims as a Markdown table."""
    lines = ["| claim | measured | holds |", "|---|---|---|"]
    lines += [f"| {claim.claim} | {claim.measured} | {claim.verdict} |" for claim in found]
    return "\n".join(lines) + "\n"


def check_client_numbers(clients: Sequence[int], *, multiple_of: int = 1, fewest: int = 1) -> None:
    """Raise if numbers of clients are repeated, fewer than `fewest`, or not multiples of `multiple_of`."""
    for n_clients in clients:
        if whole_number("clients", n_clients, least=multiple_of) % multiple_of:
            wanted = "even" if multiple_of == 2 else f"a multiple of {multiple_of}"
            raise InvalidInput(f"each number of clients must be {wanted}, got {n_clients}")
    if len(set(clients)) < max(fewest, len(clients)):
        many = "" if fewest == 1 else f"{fewest} or more "
        raise InvalidInput(f"clients must be {many}different numbers, got {list(clients)}")
