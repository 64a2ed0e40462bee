"""Predictions of what a run will reach: the plateau, and the curve that leads there."""

from dataclasses import replace

import numpy as np

from fedscaffold.core.capabilities import GeneralisedLinear, PopulationMoments, SmoothProblem
from fedscaffold.core.checks import check_problem_and_method, whole_number
from fedscaffold.core.errors import InvalidInput, NoPlateau
from fedscaffold.core.privacy import Privacy
from fedscaffold.core.protocols import Method
from fedscaffold.core.random.batches import Batches, Sampling
from fedscaffold.core.threads import one_blas_thread
from fedscaffold.theory.prediction.curve import curve_parts
from fedscaffold.theory.prediction.family.predict_family import is_plain, predict_family
from fedscaffold.theory.prediction.local_steps import Curvature
from fedscaffold.theory.prediction.moments.curve import small_curve
from fedscaffold.theory.prediction.moments.predict import is_small, plateau_is_small, small_prediction, small_round
from fedscaffold.theory.prediction.moments.private import predict_private
from fedscaffold.theory.prediction.plateau import control_variate_biases
from fedscaffold.theory.prediction.prediction import Prediction
from fedscaffold.theory.prediction.reduced_system import points_for
from fedscaffold.theory.prediction.reliability import EXACT, GAUSSIAN, warn_if_unreliable
from fedscaffold.theory.prediction.sampled.curve import DRAWN_ROUNDS
from fedscaffold.theory.prediction.sampled.measure import can_be_drawn, measured
from fedscaffold.theory.prediction.setting import Setting, setting
from fedscaffold.theory.prediction.stationary import solve_stationary
from fedscaffold.theory.supported import is_quadratic

MOST_ROUNDS = 1_000_000  # of a predicted curve, which takes a step for each
PASSES, DOUBLINGS = 6, 14  # of a typical prediction
PRODUCTS_PER_SECOND = 5e9  # additions and multiplications of matrix products on one core
LONGEST = 1200.0  # seconds


@one_blas_thread
def predict(
    problem: SmoothProblem,
    method: Method,
    *,
    batch_size: int | None,
    sampling: Sampling = "with_replacement",
    rounds: int | None = None,
    privacy: Privacy | None = None,
) -> Prediction:
    """E‖θ − θ*‖² = tr Σ + ‖b‖², with Σ and b of the stationary law of Scaffold or FedAvg for any γH.

    Goes beyond the expansions of the paper (Lemma 5.1 and Theorem 5.3), which it approaches as γH → 0: powers of
    I − γ∇²f_c are kept, and noise, curvature and mean are found together. For ridge the plateau is exact, for
    other problems an approximation in which local models are nearly Gaussian. Where the approximation itself says
    that it leaves out more than a percent, as where single records move a logistic model far, the method is run on
    drawn records for up to two seconds and the prediction is what was measured; `reliability` says so, and how
    precisely. The same call always gives the same prediction.

    Parameters
    ----------
    problem
        Ridge or logistic regression, on tables or streams, with any weights and sizes of clients; or any strongly
        convex problem that has Hessians and `record_gradients`, such as multinomial regression, with up to
        some tens of parameters.
    method
        Scaffold or FedAvg; and, for up to 600 numbers in all clients' models together, every method whose server
        and clients combine models linearly: with cohorts (of clients of equal weight) or unequal local steps,
        TwoSidedScaffold, ProxSkip, FedLin, ServerOptimizer with "sgd" and momentum, or one of your own.
    batch_size
        Records in each stochastic gradient; None for full gradients.
    sampling
        "with_replacement" or "without_replacement", within a batch.
    rounds
        If given, also predict the curve of that many rounds from θ_0 = 0.
    privacy
        Clipping and noise, as `fedscaffold.run` takes them; for ridge and logistic regression on tables.

    Raises
    ------
    InvalidInput
        If the method does not contract, so that it has no plateau.

    Examples
    --------
    Predicted and simulated plateau, which agree within a few percent:

    >>> import fedscaffold as fs
    >>> problem = fs.problems.paper("regression", n_clients=4)
    >>> method = fs.Scaffold(step_size=0.05, local_steps=20)
    >>> predicted = fs.theory.predict(problem, method, batch_size=10).mse
    >>> trace = fs.run(problem, method, rounds=300, batch_size=10, repetitions=20)
    >>> bool(abs(trace.plateau().mean / predicted - 1) < 0.1)
    True
    """
    if rounds is not None:
        rounds = whole_number("rounds", rounds, least=1, most=MOST_ROUNDS)
    batches = Batches(batch_size, sampling)
    if privacy is not None:
        private = predict_private(problem, method, batches, rounds, privacy)
        warn_if_unreliable(private.reliability)
        return private
    if not is_plain(problem, method):
        reliability = EXACT if is_quadratic(problem) else GAUSSIAN
        return Prediction(**predict_family(problem, method, batches, rounds)._asdict(), reliability=reliability)
    found = measured_prediction(setting(problem, method, batches), rounds)
    warn_if_unreliable(found.reliability)
    return found


@one_blas_thread
def predict_at_scale(
    problem: SmoothProblem,
    method: Method,
    *,
    batch_size: int,
    n_clients: int | None = None,
    rounds: int | None = None,
) -> Prediction:
    """`predict` for streamed clients at a cost that does not depend on N: E‖θ − θ*‖² as N enters it, by 1/N.

    Means over clients are taken over the distribution that clients are drawn from, by the problem's
    `representatives`; the noise of each counts as that of one client in N. Against `predict` on N drawn clients
    this leaves out that these are not quite their distribution, an error that falls as 1/√N. At N = 1,000 it is
    a few percent of Scaffold's error; FedAvg's bias, a mean over clients, can be off by a quarter.

    Parameters
    ----------
    problem
        `RidgeStream` or `LogisticStream`, of any number of clients.
    method
        Scaffold or FedAvg.
    batch_size
        Records in each stochastic gradient.
    n_clients
        N, the problem's own by default; clients of equal weight unless it is the problem's own.
    rounds
        If given, also predict the curve of that many rounds from θ_0 = 0.

    Examples
    --------
    Six million clients cost no more than six:

    >>> import fedscaffold as fs
    >>> problem = fs.problems.RidgeStream(n_clients=6, dim=3)
    >>> method = fs.Scaffold(step_size=0.1, local_steps=10)
    >>> few = fs.theory.predict_at_scale(problem, method, batch_size=4)
    >>> many = fs.theory.predict_at_scale(problem, method, batch_size=4, n_clients=6_000_000)
    >>> round(few.mse / many.mse / 1e6, 1)
    1.0
    """
    check_problem_and_method(problem, method)
    if not isinstance(problem, PopulationMoments):
        raise InvalidInput(f"predict_at_scale is for streamed clients, not for {problem.kind}; use predict")
    if rounds is not None:
        rounds = whole_number("rounds", rounds, least=1, most=MOST_ROUNDS)
    weight = float(problem.weights @ problem.weights)
    if n_clients is not None:
        weight = 1.0 / whole_number("n_clients", n_clients, least=1)
    s = setting(problem.representatives(), method, Batches(batch_size))
    return predict_setting(replace(s, own=np.full_like(s.own, weight)), rounds)


def measured_prediction(s: Setting, rounds: int | None) -> Prediction:
    """The prediction of a setting, corrected by drawn rounds where its approximations do not hold.

    Whether curves are drawn is decided by their first rounds, the same ones for all numbers of rounds asked for.
    """
    longer = max(rounds, DRAWN_ROUNDS) if rounds is not None and can_be_drawn(s) else rounds
    try:
        found = predict_setting(s, longer)
    except NoPlateau:
        seen = measured(s, None, longer)
        if seen is None:
            raise
    else:
        seen = measured(s, found, longer) or found
    if rounds == longer or seen.curve is None or rounds is None:
        return seen
    return replace(seen, curve=seen.curve[: rounds + 1])


def predict_setting(s: Setting, rounds: int | None) -> Prediction:
    """The prediction of a setting, with a curve of some rounds, by the way that suits the size of the problem."""
    if plateau_is_small(s):
        return small_prediction(s, rounds)
    check_affordable(s)
    state = solve_stationary(s)
    curve = None
    if rounds is not None:
        parts = small_curve(s, small_round(s), rounds) if is_small(s) else curve_parts(s, state, rounds)
        curve = np.add(*parts)
    return Prediction(
        cov_theta=state.cov_theta,
        bias=state.bias,
        bias_xi=control_variate_biases(s, state),
        curve=curve,
        reliability=EXACT if s.quadratic else GAUSSIAN,
    )


def check_affordable(s: Setting) -> None:
    """Refuse a problem of so many features that a prediction would take longer than a few minutes."""
    d = reduced = s.problem.dim
    if s.scaffold:
        at_optimum = Curvature.of(s.at_optimum.U, s.at_optimum.lam, s.gamma, s.H)
        reduced *= points_for(at_optimum, s.tolerance).size
    records = (
        int(s.problem.sizes.sum()) if isinstance(s.problem, GeneralisedLinear) else 2 * d * s.problem.n_clients
    )
    products = PASSES * (DOUBLINGS * 6 * reduced**3 + 8 * s.steps.nodes.size * records * d**2)
    seconds = products / PRODUCTS_PER_SECOND
    if seconds > LONGEST:
        raise InvalidInput(
            f"a prediction with {d:,} features and {s.problem.n_clients:,} clients would take about "
            f"{seconds / 60:,.0f} minutes; use theory.expansion, plan(..., mode='first_order') or fedscaffold.run"
        )
