"""What all passes of a prediction share, and where each part of a method's state stands in one long vector.

The vector z̃ = (1, server fields, client fields) holds deviations: fields that are models are relative to θ*. Its
second moment E z̃z̃ᵀ has the mean in its first row, so that one linear recursion carries mean and covariance.
"""

from dataclasses import dataclass

import numpy as np

from fedscaffold.core.capabilities import SmoothProblem
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.protocols import Method
from fedscaffold.core.random.batches import Batches
from fedscaffold.core.types import Array
from fedscaffold.theory.client_blocks import noise_factors
from fedscaffold.theory.prediction.clouds.averages import CloudAverages
from fedscaffold.theory.prediction.family.linear_method import LinearMethod, linear_method
from fedscaffold.theory.prediction.local_steps import Steps, steps
from fedscaffold.theory.prediction.setting import cloud_averages
from fedscaffold.theory.supported import gives_averages, is_quadratic

LARGEST = 600  # numbers in the state of all clients; its covariance is a matrix of this size
PRECISION = 1e-9  # of powers along a round


@dataclass(frozen=True, eq=False)
class FamilySetting:
    """Problem, method and batches of a prediction, and what is computed from them once."""

    problem: SmoothProblem
    averages: CloudAverages
    linear: LinearMethod
    factors: Array  # noise factors, (N,)
    optimum: Array
    gradients: Array  # ∇f_c(θ*), (N, d)
    hessians: Array  # ∇²f_c(θ*), (N, d, d)
    steps: Steps  # nodes among the most local steps that a round may have
    quadratic: bool
    step_by_step: bool  # whether noise is followed through every local step, for quadratic f_c, or at the nodes

    @property
    def size(self) -> int:
        """Length of the vector z̃ that the method's round maps: 1, server state and client states."""
        K, J = self.linear.n_server, self.linear.n_client
        return 1 + (K + J * self.problem.n_clients) * self.problem.dim

    def server(self, k: int) -> slice:
        """Where server field k stands in z̃."""
        d = self.problem.dim
        return slice(1 + k * d, 1 + (k + 1) * d)

    def clients(self, j: int) -> slice:
        """Where field j of all clients stands in z̃, client after client."""
        N, d = self.problem.n_clients, self.problem.dim
        start = 1 + self.linear.n_server * d + j * N * d
        return slice(start, start + N * d)

    def start(self) -> Array:
        """z̃ at θ_0 = 0, with all other fields 0."""
        state = np.zeros(self.size)
        state[0] = 1.0
        for k, position in enumerate(self.linear.positions):
            state[self.server(k)] = -position * self.optimum
        return state


def family_setting(problem: SmoothProblem, method: Method, batches: Batches) -> FamilySetting:
    """Check problem and method and compute what all passes share."""
    if not gives_averages(problem):
        raise InvalidInput(f"theory knows ridge, logistic and problems with record_gradients, not {problem.kind}")
    factors = noise_factors(problem, batches)
    linear = linear_method(method, problem.weights)
    N, d = problem.n_clients, problem.dim
    if N * d > LARGEST:
        raise InvalidInput(
            f"{method.kind} is predicted for up to {LARGEST:,} numbers in the clients' states, but {N} clients of "
            f"{d} features have {N * d:,}; take a subset of the clients, or simulate with fedscaffold.run"
        )
    optimum = problem.optimum()
    hessians = problem.client_hessians(optimum)
    curvatures = np.linalg.eigvalsh(hessians)
    longest = int(linear.steps.max())
    return FamilySetting(
        problem=problem,
        averages=cloud_averages(problem),
        linear=linear,
        factors=factors,
        optimum=optimum,
        gradients=problem.client_gradients(optimum),
        hessians=hessians,
        steps=steps(linear.gamma, longest, float(curvatures.min()), float(curvatures.max()), PRECISION),
        quadratic=is_quadratic(problem),
        step_by_step=is_quadratic(problem),
    )
