"""The result of a study."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from fedscaffold.core.types import Array
from fedscaffold.federation.agreement import Agreement
from fedscaffold.federation.study.evaluation import Evaluation
from fedscaffold.federation.study.plan import Plan
from fedscaffold.inference.training import Trained

if TYPE_CHECKING:
    from fedscaffold.models.model import Model


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class StudyResult:
    """temporary"""

    plan: Plan
    coding: Agreement
    trained: Trained
    n_rows: int
    evaluation: Mapping[str, Evaluation] = field(default_factory=dict)
    received: Sequence[Any] = ()
    log: Mapping[str, Any] = field(default_factory=dict)

    @property
    def theta(self) -> Array:
        return self.trained.theta

    @property
    def reached(self) -> bool:
        return self.trained.reached

    @property
    def rounds(self) -> int:
        return self.trained.rounds

    @property
    def certified_error(self) -> dict[str, float | None]:
        found = self.trained.certificate
        return {"standard_errors": found.error_in_standard_errors, "relative": found.relative_error}

    def for_sites(self) -> dict[str, Any]:
        return {"study": self.plan.name}

    @property
    def model(self) -> "Model":
        from fedscaffold.models.model import Model, in_own_units

        encoding = self.coding.encoding
        vectors = np.reshape(self.theta, (encoding.n_vectors, encoding.dim))
        encoding, equations = in_own_units(
            encoding, vectors, target_shift=self.coding.target_shift, target_scale=self.coding.target_scale
        )
        return Model(
            encoding=encoding, equations=equations, provenance={}, client_intercepts=self.coding.client_intercepts
        )
