"""Federated Newton: what methods of local steps are compared with where there are few coefficients."""

from dataclasses import dataclass

import numpy as np

from fedscaffold.core.capabilities import SmoothProblem
from fedscaffold.core.types import Array

NUMBER_BITS = 64.0


@dataclass(frozen=True)
class FedNewton:
    """θ⁺ = θ − (Σ_c w_c ∇²f_c(θ))⁻¹ Σ_c w_c ∇f_c(θ), from each client's loss, gradient and Hessian at θ.

    A round costs a pass over all records and d(d + 1)/2 + d + 1 numbers from every client, where methods of local
    steps send d. Where the loss has grown, the server goes half of the way back. It is no method of local steps:
    `compare` takes it, `run` does not.

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

    def path(self, problem: SmoothProblem, rounds: int) -> Array:
        """θ before the first and after each round, from θ = 0, (rounds + 1, dim)."""
        theta = accepted = np.zeros(problem.dim)
        least, models = np.inf, [theta]
        for _ in range(rounds):
            loss = problem.loss(theta)
            if loss > least + 1e-12 * abs(least):
                theta = 0.5 * (theta + accepted)
            else:
                accepted, least = theta, loss
                gradient = problem.weights @ problem.client_gradients(theta)
                hessian = np.einsum("c,cij->ij", problem.weights, problem.client_hessians(theta))
                theta = theta - np.linalg.solve(hessian, gradient)
            models.append(theta)
        return np.stack(models)

    def bits(self, dim: int) -> float:
        """Bits that a client sends and receives in a round."""
        return NUMBER_BITS * (dim * (dim + 1) / 2 + dim + 1 + dim)
