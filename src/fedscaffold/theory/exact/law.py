"""The stationary law and the error curve of a linear method on quadratic losses."""

from dataclasses import dataclass

from fedscaffold.core.capabilities import SmoothProblem
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.privacy import Privacy
from fedscaffold.core.protocols import Method
from fedscaffold.core.random.batches import Batches
from fedscaffold.core.threads import one_blas_thread
from fedscaffold.core.types import Array
from fedscaffold.theory.prediction.family.family_setting import LARGEST
from fedscaffold.theory.prediction.family.linear_method import linear_method
from fedscaffold.theory.prediction.family.predict_family import is_plain, predict_family
from fedscaffold.theory.prediction.predict import predict_setting
from fedscaffold.theory.prediction.setting import setting
from fedscaffold.theory.supported import is_quadratic


@dataclass(frozen=True, kw_only=True, eq=False)
class ExactLaw:
    """Mean and covariance of the stationary law, and E‖θ_t − θ*‖² of the rounds that lead there.

    Attributes
    ----------
    cov_theta
        Cov θ on the plateau, (d, d).
    bias
        E θ − θ* on the plateau, (d,).
    bias_xi
        E ξ_c − ξ*_c on the plateau, (N, d).
    curve
        E‖θ_t − θ*‖² for t = 0, ..., rounds, (rounds + 1,); None if no rounds were given.
    """

    cov_theta: Array
    bias: Array
    bias_xi: Array
    curve: Array | None


def is_exact(problem: SmoothProblem, method: Method, batches: Batches, privacy: Privacy | None = None) -> bool:
    """Return whether `exact_law` applies: quadratic losses, a linear method, and few enough numbers.

    Parameters
    ----------
    problem, method, batches, privacy
        As in `exact_law`.

    Returns
    -------
    bool
        False for clipped gradients or messages, which are not linear in the model.
    """
    if privacy is not None or not is_quadratic(problem):
        return False
    try:
        if is_plain(problem, method):
            return True
        linear_method(method, problem.weights)
    except InvalidInput:
        return False
    return problem.n_clients * problem.dim <= LARGEST


@one_blas_thread
def exact_law(
    problem: SmoothProblem,
    method: Method,
    batches: Batches,
    *,
    rounds: int | None = None,
    theta0: Array | None = None,
    privacy: Privacy | None = None,
) -> ExactLaw:
    """Return the stationary mean and covariance of a linear method on quadratic losses, and its error curve.

    Parameters
    ----------
    problem
        Ridge regression, on tables or streams.
    method
        A method whose server and clients combine models linearly.
    batches
        How local steps pick their records.
    rounds
        If given, also compute the curve of this many rounds.
    theta0
        Where the curve starts, (d,); 0 by default.
    privacy
        None; clipping is not linear.

    Returns
    -------
    ExactLaw
        The law.

    Raises
    ------
    NoPlateau
        If the method does not contract.
    InvalidInput
        If `is_exact` is False for these arguments.
    """
    if theta0 is not None:
        raise InvalidInput("theta0 is not supported yet")
    if not is_exact(problem, method, batches, privacy):
        raise InvalidInput("the law is exact for quadratic losses and linear methods without clipping only")
    if is_plain(problem, method):
        law = predict_setting(setting(problem, method, batches), rounds)
        return ExactLaw(cov_theta=law.cov_theta, bias=law.bias, bias_xi=law.bias_xi, curve=law.curve)
    return ExactLaw(**predict_family(problem, method, batches, rounds)._asdict())
