"""Which problems and methods theory knows, and what it reads of a method."""

from typing import NamedTuple

import numpy as np

from fedscaffold.core.capabilities import GeneralisedLinear, HasRecordGradients, MarginLoss, PopulationMoments
from fedscaffold.core.checks import check_problem_and_method
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.protocols import Method, Problem

# methods with a predictor of their own, for any number of clients, and whether their clients keep control variates
PLAIN = {"scaffold": True, "gradient_scaffold": True, "fedavg": False}
LARGEST_STREAM = 20_000_000  # numbers in the Hessians of streamed clients, of which theory holds a dozen copies


class ParsedMethod(NamedTuple):
    """The settings of a method that theory knows."""

    scaffold: bool  # True for Scaffold in either of its forms, False for FedAvg
    gamma: float  # γ, the step size
    H: int  # local steps, the same on every client


def parse_method(problem: Problem, method: Method) -> ParsedMethod:
    """Which method it is, γ and H.

    Raises
    ------
    InvalidInput
        If theory does not know the method or the problem, or if not all clients take part alike.
    """
    check_problem_and_method(problem, method)
    if not gives_averages(problem):
        raise InvalidInput(
            "theory knows ridge and logistic regression, on tables without offsets and sample weights or on "
            f"streams, and problems with record_gradients, not {problem.kind}"
        )
    if isinstance(problem, PopulationMoments) and problem.n_clients * problem.dim**2 > LARGEST_STREAM:
        raise InvalidInput(
            f"theory would hold {problem.n_clients:,} matrices of {problem.dim}², one for each client; use "
            "theory.predict_at_scale, which does not, or a subset of the clients"
        )
    if method.kind not in PLAIN:
        raise InvalidInput(
            f"theory knows Scaffold and FedAvg, not {method.kind}; simulate it with fedscaffold.run"
        )
    all_alike = "theory knows full participation with the same number of local steps on every client"
    if method.participants(problem.n_clients) < problem.n_clients:
        raise InvalidInput(f"{all_alike}, but here only some clients take part in a round")
    steps = method.local_step_counts(problem.n_clients, np.full(1, 0.5))
    if steps.size != 1:
        raise InvalidInput(f"{all_alike}, but local_steps has {steps.size} numbers; give one whole number")
    return ParsedMethod(PLAIN[method.kind], method.step_size, int(steps[0, 0]))


def gives_averages(problem: Problem) -> bool:
    """Whether gradients and noise of a problem can be averaged over many θ, which the predictor does."""
    return isinstance(problem, GeneralisedLinear | HasRecordGradients | PopulationMoments)


def is_quadratic(problem: Problem) -> bool:
    """Whether every f_c is known to be quadratic, so that its Hessian is the same everywhere."""
    return isinstance(problem, MarginLoss) and problem.margin_derivative_bounds == (0.0, 0.0)
