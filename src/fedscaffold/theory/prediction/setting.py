"""What all passes of a prediction share: the problem, the method, θ*, and how finely to compute."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from fedscaffold.core.arrays import evenly_spaced_clients
from fedscaffold.core.capabilities import GeneralisedLinear, HasRecordGradients, PopulationMoments, SmoothProblem
from fedscaffold.core.protocols import Method
from fedscaffold.core.random.batches import Batches
from fedscaffold.core.types import Array, IntArray
from fedscaffold.theory.client_blocks import ClientBlock, for_blocks, for_kept_blocks, noise_factors
from fedscaffold.theory.prediction.clouds.averages import Averages, CloudAverages
from fedscaffold.theory.prediction.clouds.clipped import ClippedAverages
from fedscaffold.theory.prediction.clouds.cubature import RecordAverages, StreamAverages
from fedscaffold.theory.prediction.clouds.margins import MarginAverages
from fedscaffold.theory.prediction.local_steps import Steps, steps
from fedscaffold.theory.supported import is_quadratic, parse_method

PRECISE, FAST = 1e-10, 1e-6  # of the interpolation, for few and for many clients
MANY = 8
COARSE, MANY_FEATURES = 5e-3, 50  # and for more than 64 clients or this many features
SETTLED, SETTLED_EXACT = 1e-4, 1e-6  # what further passes would change; the second where the fixed point is exact
SETTLED_MANY, MANY_CLIENTS = 3e-4, 64  # and for more clients than this, where a pass takes long
CURVATURES_AT_ZERO = 64  # clients: enough to see the range of their curvatures
STEPS, STEPS_DRIFTING = 1e-4, 1e-6  # of powers; the second for FedAvg on ridge, whose noise falls along a round


class AtOptimum(NamedTuple):
    """The clients at θ*: what depends on the problem and the batches alone."""

    gradients: Array  # ∇f_c(θ*), (N, d)
    U: Array  # eigenvectors of ∇²f_c(θ*), (N, d, d)
    lam: Array  # its eigenvalues, (N, d)
    noise: Array  # C_c(θ*), (N, d, d)
    smallest: float  # curvature of any client in any direction, at θ* and at θ = 0, where runs begin
    largest: float


@dataclass(frozen=True, eq=False)
class Setting:
    """Problem, method and batches of a prediction, and what is computed from them once.

    Arrays over clients are about those in `clients`, all or a sample of them: see `client_sample`.
    """

    problem: SmoothProblem
    averages: CloudAverages
    gamma: float
    H: int
    scaffold: bool
    batches: Batches
    clients: IntArray  # in increasing order, (N,)
    weights: Array  # w_c, in a sample times how many clients each stands for, (N,)
    factors: Array  # noise factors, (N,)
    own: Array  # the weight of a client's noise in the mean, w_c; less where it stands for many clients, (N,)
    optimum: Array
    at_optimum: AtOptimum
    steps: Steps
    tolerance: float
    settled: float
    quadratic: bool
    kept: list[ClientBlock] | None = None  # the clients' records, where they are few enough to be kept
    has_privacy_noise: bool = False  # whether steps or messages have noise besides that of batches
    theta_noise: float = 0.0  # variance of noise that θ⁺ gets in every round and that no client remembers

    @property
    def gradients(self) -> Array:
        """∇f_c(θ*), each client's gradient at the optimum, (N, d)."""
        return self.at_optimum.gradients

    @property
    def noisy(self) -> bool:
        """Whether there is any noise."""
        return self.has_privacy_noise or bool(self.factors.any())

    def places(self, block: ClientBlock) -> IntArray:
        """Where the clients of a block are in the arrays over clients."""
        return np.searchsorted(self.clients, block.clients)

    def for_blocks(self, work: Callable[[ClientBlock], None]) -> None:
        """Call work on blocks of the clients, of a size that suits arrays (k, nodes, d, d)."""
        if self.kept is not None:
            for_kept_blocks(self.kept, work)
        else:
            for_blocks(self.problem, work, copies=self.steps.nodes.size, clients=self.clients)

    def with_method(self, gamma: float, H: int) -> "Setting":
        """The same problem with another step size and other local steps."""
        precision = STEPS_DRIFTING if self.quadratic and not self.scaffold else STEPS
        chosen = steps(gamma, H, self.at_optimum.smallest, self.at_optimum.largest, precision)
        return replace(self, gamma=gamma, H=H, steps=chosen)


def setting(
    problem: SmoothProblem,
    method: Method,
    batches: Batches,
    optimum: Array | None = None,
    clipped: ClippedAverages | None = None,
) -> Setting:
    """Check problem and method and compute what all passes share; θ* too where it is not given.

    With `clipped` the problem is that of clipped records, and steps have noise besides that of batches.
    """
    scaffold, gamma, H = parse_method(problem, method)
    factors = noise_factors(problem, batches)
    optimum = problem.optimum() if optimum is None else optimum
    quadratic, averages = is_quadratic(problem) and clipped is None, clipped or cloud_averages(problem)
    found = clients_at_optimum(problem, averages, optimum, factors, quadratic)
    precision = STEPS_DRIFTING if quadratic and not scaffold else STEPS
    return Setting(
        problem=problem,
        averages=averages,
        gamma=gamma,
        H=H,
        scaffold=scaffold,
        batches=batches,
        clients=np.arange(problem.n_clients),
        weights=problem.weights,
        factors=factors,
        own=problem.weights,
        optimum=optimum,
        at_optimum=found,
        steps=steps(gamma, H, found.smallest, found.largest, precision),
        tolerance=interpolation_tolerance(problem.n_clients, problem.dim),
        settled=settled_at(problem.n_clients, quadratic),
        quadratic=quadratic,
        has_privacy_noise=clipped is not None,
    )


def clients_at_optimum(
    problem: SmoothProblem, averages: CloudAverages, optimum: Array, factors: Array, quadratic: bool
) -> AtOptimum:
    """Gradients, curvatures and noise of all clients at θ*."""
    gradients, noise, hessians = at_point(problem, averages, np.arange(problem.n_clients), optimum, factors)
    lam, U = np.linalg.eigh(hessians)
    smallest, largest = float(lam.min()), float(lam.max())
    if not quadratic:
        some = evenly_spaced_clients(problem.n_clients, min(problem.n_clients, CURVATURES_AT_ZERO))
        at_zero = np.linalg.eigvalsh(
            at_point(problem, averages, some, np.zeros_like(optimum), factors[some]).hessian
        )
        smallest, largest = min(smallest, float(at_zero.min())), max(largest, float(at_zero.max()))
    return AtOptimum(gradients, U, lam, noise, smallest, largest)


def at_point(
    problem: SmoothProblem, averages: CloudAverages, clients: IntArray, theta: Array, factors: Array
) -> Averages:
    """∇f_c (k, d), C_c (k, d, d) and ∇²f_c (k, d, d) of some clients at one θ."""
    k, d = clients.size, problem.dim
    gradient, noise, hessian = np.empty((k, d)), np.empty((k, d, d)), np.empty((k, d, d))

    def work(block: ClientBlock) -> None:
        at = np.searchsorted(clients, block.clients)
        if isinstance(averages, MarginAverages):
            gradient[at], noise[at], hessian[at] = averages.at_point(block, theta, factors[at])
        else:
            noise[at] = averages.noise_at(block, np.broadcast_to(theta, (at.size, 1, d)), factors[at])[:, 0]

    for_blocks(problem, work, clients=clients)
    if not isinstance(averages, MarginAverages):
        gradient, hessian = problem.client_gradients(theta)[clients], problem.client_hessians(theta)[clients]
    return Averages(gradient, noise, hessian)


def interpolation_tolerance(n_clients: int, dim: int) -> float:
    """Relative error of the reduced system of Scaffold's clients."""
    if dim > MANY_FEATURES or n_clients > MANY_CLIENTS:
        return COARSE
    return PRECISE if n_clients <= MANY else FAST


def settled_at(n_clients: int, quadratic: bool) -> float:
    """Relative change of the stationary law that ends the passes over the clients."""
    if n_clients > MANY_CLIENTS:
        return SETTLED_MANY
    return SETTLED_EXACT if quadratic else SETTLED


def cloud_averages(problem: SmoothProblem) -> CloudAverages:
    """How to average over clouds of local models, by what the problem gives: margins, distributions or records."""
    if isinstance(problem, GeneralisedLinear):
        return MarginAverages(problem, is_quadratic(problem))
    if isinstance(problem, PopulationMoments):
        return StreamAverages(problem)
    assert isinstance(problem, HasRecordGradients)  # as `parse_method` has seen
    return RecordAverages(problem)
