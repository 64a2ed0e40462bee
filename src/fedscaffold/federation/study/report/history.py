"""How the error of a training went down, as far as the training itself can know."""

from dataclasses import dataclass
from typing import Any, Literal, Self

from fedscaffold.core.files import Fields

How = Literal["estimated", "certified"]


@dataclass(frozen=True, kw_only=True)
class ErrorPoint:
    """The distance to the pooled model after some exchanges, without knowing that model.

    Parameters
    ----------
    exchange
        Number of exchanges with all sites until then.
    relative
        Distance relative to the norm of the coefficients, intercept left out.
    standard_errors
        Largest distance of a coefficient in its standard errors; None where these are not known.
    how
        "certified" by sums over all sites, or "estimated" from what the latest rounds achieved.
    method
        What brought the model there, for example "Scaffold, 64 local steps" or "Newton".

    Examples
    --------
    >>> from fedscaffold.federation.study.report.history import ErrorPoint
    >>> point = ErrorPoint(exchange=7, relative=0.02, how="estimated", method="Scaffold")
    >>> ErrorPoint.from_json(point.to_json()) == point
    True
    """

    exchange: int
    relative: float
    standard_errors: float | None = None
    how: How = "certified"
    method: str = ""

    def to_json(self) -> dict[str, Any]:
        """The point as values that JSON can hold."""
        return vars(self).copy()

    @classmethod
    def from_json(cls, values: Any) -> Self:
        """The point that `to_json` gave."""
        fields = Fields(values, "the history of a training")
        known = fields.value("standard_errors") is not None
        how: Any = fields.choice("how", "estimated", "certified")
        return cls(
            exchange=fields.integer("exchange", least=0, most=2**53),
            relative=fields.number("relative", least=0.0),
            standard_errors=fields.number("standard_errors", least=0.0) if known else None,
            how=how,
            method=fields.text("method", longest=200),
        )
