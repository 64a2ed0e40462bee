"""Predict the error that a run will reach: exactly, to first order, or by measurement."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from fedscaffold.core.checks import check_problem_and_method, choice, numbers, positive, whole_number
from fedscaffold.core.display import Summarised, new_axes, plain_grid
from fedscaffold.core.errors import Diverged, InvalidInput, NoPlateau
from fedscaffold.core.privacy import Privacy
from fedscaffold.core.protocols import Method, Problem
from fedscaffold.core.random.stream import Batches, Sampling
from fedscaffold.core.types import Array
from fedscaffold.planning import measured
from fedscaffold.planning.first_order import first_order_curve
from fedscaffold.planning.measured import ErrorCurve, Subject, measured_curve, measured_plateau
from fedscaffold.theory.exact import exact_law, is_exact
from fedscaffold.theory.expansion import first_order_law

if TYPE_CHECKING:
    from matplotlib.axes import Axes

How = Literal["exact", "first order", "measured"]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Prediction(Summarised):
    """E‖θ − θ*‖² = tr Cov θ + ‖E θ − θ*‖² on the plateau, and on the way to it: the result of `theory.predict`.

    Attributes
    ----------
    how
        "exact" (quadratic losses), "first order" (the paper's expansion) or "measured" (runs of the simulator).
    variance
        tr Cov θ on the plateau, which falls as 1/N.
    bias
        E θ − θ* on the plateau, (d,).
    standard_error
        Standard error of `mse`; 0 unless measured.
    cov_theta
        Cov θ on the plateau, (d, d); None if measured in more than 500 dimensions.
    curve
        E‖θ_t − θ*‖² for t = 0, ..., rounds from θ_0 = 0; None unless rounds were given.
    curve_error
        Standard errors of the curve, (rounds + 1,); None without a curve.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> problem = fs.problems.paper("regression", n_clients=4)
    >>> method = fs.Scaffold(step_size=0.05, local_steps=20)
    >>> found = fs.theory.predict(problem, method, batch_size=10, rounds=50)
    >>> found.how, found.standard_error, found.curve.shape
    ('exact', 0.0, (51,))
    >>> found.mse == found.variance + found.squared_bias
    True
    """

    how: How
    variance: float
    bias: Array
    standard_error: float = 0.0
    cov_theta: Array | None = None
    curve: Array | None = None
    curve_error: Array | None = None

    @property
    def squared_bias(self) -> float:
        """‖E θ − θ*‖² on the plateau."""
        return float(self.bias @ self.bias)

    @property
    def mse(self) -> float:
        """E‖θ − θ*‖² on the plateau."""
        return self.variance + self.squared_bias

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the predicted squared error by round, and the plateau.

        Parameters
        ----------
        ax
            matplotlib axes to draw on; by default the axes of a new figure.

        Returns
        -------
        Axes
            The axes.

        Raises
        ------
        InvalidInput
            If no curve was predicted.
        """
        if self.curve is None:
            raise InvalidInput("there is no curve to draw; predict it with theory.predict(..., rounds=100)")
        axes = new_axes(ax)
        draw_error_curve(axes, self.curve, self.mse)
        axes.legend(frameon=False)
        return axes

    def _facts(self) -> dict[str, object]:
        error = f" ± {self.standard_error:.2g}" if self.standard_error else ""
        facts: dict[str, object] = {
            "mse": f"{self.mse:.4g}{error}",
            "variance": f"{self.variance:.4g}",
            "squared bias": f"{self.squared_bias:.4g}",
            "how": self.how,
        }
        return facts if self.curve is None else {**facts, "rounds of the curve": self.curve.size - 1}

    def _title(self) -> str:
        return "Prediction of the plateau"


def draw_error_curve(ax: "Axes", curve: Array, plateau: float | None = None) -> None:
    """Draw E‖θ_t − θ*‖² for t = 0, 1, ... on a logarithmic scale, and the plateau as a dotted line."""
    colour = "#222222"
    ax.semilogy(np.arange(curve.size), curve, color=colour, lw=1.4, ls="--", label="predicted")
    if plateau is not None:
        ax.axhline(plateau, color=colour, lw=0.8, ls=":", label="predicted plateau")
    ax.set_xlabel("round")
    ax.set_ylabel("$\\|\\theta_t-\\theta^*\\|^2$")
    ax.margins(x=0)
    plain_grid(ax)


def predict(
    problem: Problem,
    method: Method,
    *,
    batch_size: int | None,
    rounds: int | None = None,
    sampling: Sampling = "with_replacement",
    accuracy: float = 0.02,
    privacy: Privacy | None = None,
    how: How | None = None,
    seconds: float = 10.0,
    optimum: ArrayLike | None = None,
) -> Prediction:
    """Predict E‖θ − θ*‖² = tr Cov θ + ‖E θ − θ*‖² on the plateau of a method, and on the way there.

    For quadratic losses and linear methods the prediction is exact. Otherwise it is measured: runs of the
    simulator, with a seed for this purpose, end when the standard error is small enough. The same call gives the
    same prediction on any machine, unless the time limit ends it.

    Parameters
    ----------
    problem
        Any problem that `fedscaffold.run` takes and whose optimum is known.
    method
        Any method that `fedscaffold.run` takes.
    batch_size
        Records in each stochastic gradient; None for full gradients.
    rounds
        If given, also predict the curve of this many rounds from θ_0 = 0.
    sampling
        "with_replacement" or "without_replacement", within a batch.
    accuracy
        Relative standard error at which measuring ends.
    privacy
        Clipping and noise, as `fedscaffold.run` takes them.
    how
        "exact", "first order" or "measured"; by default exact if possible, otherwise measured. "first order" is
        the paper's expansion of Scaffold or FedAvg in small γH, which takes no runs.
    seconds
        Time limit of measuring; a curve's first repetitions are completed whatever it is.
    optimum
        θ* if it is known already; by default the problem finds it.

    Returns
    -------
    Prediction
        The plateau, its parts, how they were found, and the curve.

    Raises
    ------
    NoPlateau
        If the method diverges or its error keeps growing.
    InvalidInput
        If the problem has no optimum, or the prediction cannot be made in the way that `how` names.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> problem = fs.problems.paper("classification", n_clients=4)
    >>> method = fs.Scaffold(step_size=0.05, local_steps=20)
    >>> found = fs.theory.predict(problem, method, batch_size=10)
    >>> found.how, found.standard_error <= 0.02 * found.mse
    ('measured', True)
    >>> fs.theory.predict(problem, method, batch_size=10, how="first order").standard_error
    0.0
    """
    check_problem_and_method(problem, method)
    if rounds is not None:
        rounds = whole_number("rounds", rounds, least=1, most=1_000_000)
    accuracy, seconds = positive("accuracy", accuracy), positive("seconds", seconds)
    batches = Batches(batch_size, sampling)
    batches.check_fits(problem.sizes)
    if how is not None:
        choice("how", how, get_args(How))
    smooth: Any = problem
    if how == "first order":
        if privacy is not None:
            raise InvalidInput("the first-order law does not cover clipping and noise; leave how out to measure")
        law: Any = first_order_law(smooth, method, batches)
        curve = None if rounds is None else first_order_curve(smooth, method, batches, law, rounds)
        return _of_law(how, law, curve)
    if how != "measured" and is_exact(smooth, method, batches, privacy):
        law = exact_law(smooth, method, batches, rounds=rounds)
        return _of_law("exact", law, law.curve)
    if how == "exact":
        raise InvalidInput(
            f"there is no exact law of {type(method).__name__} on {problem.kind}"
            f"{' with clipping' if privacy is not None else ''}; leave how out to measure"
        )
    subject = Subject(problem, method, batches, optimum_of(problem, optimum), privacy)
    share = 1.0 if rounds is None else 0.5
    found = measured_plateau(subject, accuracy=accuracy, seconds=share * seconds)
    drawn: ErrorCurve | None = None
    if rounds is not None:
        begin = measured.clock()

        def enough(curve: ErrorCurve, repetitions: int) -> bool:
            precise = bool((curve.spread <= accuracy * curve.errors).all())
            return precise or measured.clock() - begin > share * seconds

        try:
            drawn = measured_curve(subject, rounds, work=1e6, enough=enough)
        except Diverged as error:
            raise NoPlateau(f"runs from θ = 0 do not reach the plateau: {error}") from None
    return Prediction(
        how="measured", variance=found.mse - float(found.bias @ found.bias), bias=found.bias,
        standard_error=found.standard_error, cov_theta=found.cov_theta,
        curve=None if drawn is None else drawn.errors, curve_error=None if drawn is None else drawn.spread,
    )  # fmt: skip


def _of_law(how: How, law: Any, curve: Array | None) -> Prediction:
    return Prediction(
        how=how, variance=float(np.trace(law.cov_theta)), bias=law.bias, cov_theta=law.cov_theta, curve=curve,
        curve_error=None if curve is None else np.zeros_like(curve),
    )  # fmt: skip


def optimum_of(problem: Problem, optimum: ArrayLike | None) -> Array:
    """Return θ*, as it was given or from the problem.

    Raises
    ------
    InvalidInput
        If what was given is not a vector of the problem's length, or the problem has no optimum.
    """
    if optimum is None:
        return problem.optimum()
    try:
        theta = numbers(optimum)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"optimum must hold numbers: {error}") from None
    if theta.shape != (problem.dim,) or not np.isfinite(theta).all():
        raise InvalidInput(f"optimum must be {problem.dim} finite numbers, got shape {theta.shape}")
    return theta
