"""Federated Newton, with which methods of local steps are compared if there are few coefficients."""

from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from fedscaffold.core.types import Array
from fedscaffold.problems.newton import NoMinimiser, SmoothFunction, minimise

NUMBER_BITS = 64.0


@dataclass(frozen=True)
class FedNewton:
    """θ⁺ = θ − (Σ_c w_c ∇²f_c(θ))⁻¹ Σ_c w_c ∇f_c(θ), from each client's loss, gradient and Hessian at θ.

    A round costs a pass over all records and d(d + 1)/2 + d + 1 numbers from every client, while methods of local
    steps send d. If neither the loss nor the gradient has become smaller, the server goes half of the way back.
    `compare` takes it, but not `run`, since it has no local steps.

    Examples
    --------
    >>> import numpy as np
    >>> import fedscaffold as fs
    >>> from fedscaffold.benchmarking import FedNewton
    >>> rng = np.random.default_rng(0)
    >>> problem = fs.problems.Ridge(rng.normal(size=(4, 20, 2)), rng.normal(size=(4, 20)), l2=0.1)
    >>> path = FedNewton().path(problem, rounds=1)  # one step solves a quadratic problem
    >>> bool(np.allclose(path[1], problem.optimum()))
    True
    >>> FedNewton().bits(dim=2)  # sent and received by a client in a round
    512.0
    """

    def path(self, problem: SmoothFunction, rounds: int) -> Array:
        """Return θ before the first and after each round, from θ = 0, (rounds + 1, dim).

        A step that must be halved takes a round for each half.
        """
        models = [np.zeros(problem.dim)]
        with suppress(NoMinimiser):
            minimise(problem, visit=models.append)
        models = models[: rounds + 1]
        return np.stack([*models, *models[-1:] * (rounds + 1 - len(models))])

    def bits(self, dim: int) -> float:
        """Bits that a client sends and receives in a round."""
        return NUMBER_BITS * (dim * (dim + 1) / 2 + dim + 1 + dim)
