"""Which problems have records whose gradients can be clipped."""

from typing import Any

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.privacy import RecordLevel
from fedscaffold.core.protocols import HasClippedGradient, Streamed
from fedscaffold.core.types import Array


def check_clippable(problem: Any) -> None:
    """Raise for privacy at the level of records if a problem has no records, or none that can be clipped."""
    if isinstance(problem, Streamed):
        raise InvalidInput(
            "this problem's clients are distributions, which have no records to protect; "
            "privacy=RecordLevel(...) is for tables, ClientLevel(...) for any problem"
        )
    if not isinstance(problem, HasClippedGradient):
        raise InvalidInput(
            f"single records of {problem.kind!r} cannot be clipped; privacy=RecordLevel(...) is for generalised "
            "linear and multinomial regression, problems.Differentiable and problems.Torch"
        )
    if getattr(problem, "mixes_records", False):
        raise InvalidInput(
            "batch normalisation mixes the records of a batch, so that no record's gradient can be clipped; use "
            "group or layer normalisation with privacy=RecordLevel(...)"
        )


def reject_anchor(privacy: RecordLevel | None, anchor: Array | None) -> None:
    """Raise if a method subtracts gradients at an anchor, which would count every record twice."""
    if privacy is not None and anchor is not None:
        raise InvalidInput(
            "this method's steps also take gradients at an anchor, for which the noise is not enough; "
            "with privacy=RecordLevel(...) use Scaffold or FedAvg"
        )
