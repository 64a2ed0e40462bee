"""What all passes of a prediction share: the problem, the method, θ*, and how finely to compute."""

from dataclasses import dataclass

import numpy as np

from fedscaffold.core.capabilities import GeneralisedLinear, HasRecordGradients, PopulationMoments, SmoothProblem
from fedscaffold.core.protocols import Method
from fedscaffold.core.random.batches import Batches
from fedscaffold.core.types import Array
from fedscaffold.theory.client_blocks import noise_factors
from fedscaffold.theory.prediction.averages import CloudAverages
from fedscaffold.theory.prediction.cubature import RecordAverages, StreamAverages
from fedscaffold.theory.prediction.local_steps import Steps, steps
from fedscaffold.theory.prediction.margins import MarginAverages
from fedscaffold.theory.supported import is_quadratic, parse_method

PRECISE, FAST = 1e-10, 1e-6  # of the interpolation, for few and for many clients
MANY = 8
COARSE, MANY_FEATURES = 1e-4, 50  # and for more features than this, where points of the interpolation cost most
SETTLED, SETTLED_EXACT = 1e-4, 1e-6  # what further passes would change; the second where the fixed point is exact
SETTLED_MANY, MANY_CLIENTS = 3e-4, 64  # and for more clients than this, where a pass takes long
STEPS, STEPS_DRIFTING = 1e-4, 1e-6  # of powers; the second for FedAvg on ridge, whose noise falls along a round


@dataclass(frozen=True, eq=False)
class Setting:
    """Problem, method and batches of a prediction, and what is computed from them once."""

    problem: SmoothProblem
    averages: CloudAverages
    gamma: float
    H: int
    scaffold: bool
    batches: Batches
    factors: Array  # noise factors, (N,)
    own: Array  # the weight of a client's noise in the mean, w_c; less where it stands for many clients, (N,)
    optimum: Array
    gradients: Array  # ∇f_c(θ*), (N, d)
    steps: Steps
    tolerance: float
    settled: float
    quadratic: bool


def setting(problem: SmoothProblem, method: Method, batches: Batches, optimum: Array | None = None) -> Setting:
    """Check problem and method and compute what all passes share; θ* too where it is not given."""
    scaffold, gamma, H = parse_method(problem, method)
    factors = noise_factors(problem, batches)
    optimum = problem.optimum() if optimum is None else optimum
    quadratic = is_quadratic(problem)
    smallest, largest = curvature_range(problem, optimum, quadratic)
    precision = STEPS_DRIFTING if quadratic and not scaffold else STEPS
    return Setting(
        problem=problem,
        averages=cloud_averages(problem),
        gamma=gamma,
        H=H,
        scaffold=scaffold,
        batches=batches,
        factors=factors,
        own=problem.weights,
        optimum=optimum,
        gradients=problem.client_gradients(optimum),
        steps=steps(gamma, H, smallest, largest, precision),
        tolerance=interpolation_tolerance(problem.n_clients, problem.dim),
        settled=settled_at(problem.n_clients, quadratic),
        quadratic=quadratic,
    )


def interpolation_tolerance(n_clients: int, dim: int) -> float:
    """Relative error of the reduced system of Scaffold's clients."""
    if dim > MANY_FEATURES:
        return COARSE
    return PRECISE if n_clients <= MANY else FAST


def settled_at(n_clients: int, quadratic: bool) -> float:
    """Relative change of the stationary law that ends the passes over the clients."""
    if n_clients > MANY_CLIENTS:
        return SETTLED_MANY
    return SETTLED_EXACT if quadratic else SETTLED


def curvature_range(problem: SmoothProblem, optimum: Array, quadratic: bool) -> tuple[float, float]:
    """The smallest and largest curvature of any client at θ* and, where it differs, at θ = 0, where runs begin."""
    points = [optimum] if quadratic else [optimum, np.zeros_like(optimum)]
    curvatures = np.stack([np.linalg.eigvalsh(problem.client_hessians(point)) for point in points])
    return float(curvatures.min()), float(curvatures.max())


def cloud_averages(problem: SmoothProblem) -> CloudAverages:
    """How to average over clouds of local models, by what the problem gives: margins, distributions or records."""
    if isinstance(problem, GeneralisedLinear):
        return MarginAverages(problem, is_quadratic(problem))
    if isinstance(problem, PopulationMoments):
        return StreamAverages(problem)
    assert isinstance(problem, HasRecordGradients)  # as `parse_method` has seen
    return RecordAverages(problem)
