"""Cox regression: Efron's partial likelihood of each client's rows, so that every client has a baseline hazard.

At each time with d events, Efron's approximation divides by D_l = Σ e^z over the rows at risk − l/d Σ e^z over
these events, l = 0, ..., d − 1. A target is the time of an event, or minus the time of the last visit without one.
"""

from typing import Any, NoReturn

import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.random.stream import Batches
from fedscaffold.core.types import Array, IntArray
from fedscaffold.problems.base import OFFSET, TARGET, TabularProblem
from fedscaffold.problems.multinomial import gram
from fedscaffold.problems.newton import minimise

RANGE = 600.0  # of logarithms of weights, within which float64 holds their quotients


def signed_times(times: Array, events: Array) -> Array:
    """Return times with a minus where there was no event; also that of 0, as a float has a sign."""
    return np.copysign(times, np.where(events > 0, 1.0, -1.0))


def problems_of_training(trainer: str, *, client_intercepts: bool, hessians: bool = True) -> list[str]:
    """Return what Cox regression does not support of these settings, in sentences."""
    found = ["kind='cox' requires trainer='newton' or 'auto'"] if trainer == "scaffold" else []
    found += ["kind='cox' requires hessians=True"] if not hessians else []
    clients = "kind='cox' does not support client_intercepts: each client has a baseline hazard"
    return found + ([clients] if client_intercepts else [])


class RiskSets:
    """The partial likelihood of one client's rows at margins z.

    Parameters
    ----------
    y
        Signed times, (rows,).
    z
        Margins, offsets included, (rows,).
    x
        Features, (rows, d). Adding the same numbers to all rows changes nothing, so they are centred.

    Examples
    --------
    >>> import numpy as np
    >>> from fedscaffold.problems.cox import RiskSets
    >>> at_risk = RiskSets(np.array([1.0, 2.0, -3.0]), np.zeros(3), np.array([[1.0], [0.0], [0.0]]))
    >>> round(at_risk.loss, 12) == round(float(np.log(3) + np.log(2)), 12)
    True
    >>> at_risk.gradient.round(4)
    array([-0.6667])
    """

    def __init__(self, y: Array, z: Array, x: Array) -> None:
        times = np.abs(y)
        self.order = np.argsort(times, kind="stable")
        times, event = times[self.order], ~np.signbit(y[self.order])
        self.z, x = z[self.order], x[self.order]
        self.x: Array = x - x.mean(axis=0)
        self.events: IntArray = np.flatnonzero(event)
        at, self.place, self.deaths = np.unique(times[event], return_inverse=True, return_counts=True)
        self.first = np.cumsum(self.deaths) - self.deaths  # of each time's events, among the events
        self.share: Array = (np.arange(self.events.size) - self.first[self.place]) / self.deaths[self.place]
        self.passed: IntArray = np.searchsorted(times[event], times, side="right")  # events up to each row's time
        begin = len(times) - 1 - np.searchsorted(times, at)  # of those at risk, from the last row on
        sizes, means = (found[begin] for found in running_means(self.z[::-1], self.x[::-1]))
        highest = self._of_times(np.maximum, self.z[self.events])
        hazard = np.exp(self.z[self.events] - highest[self.place])
        own = self._of_times(np.add, hazard)
        own_means = self._of_times(np.add, hazard[:, None] * self.x[self.events]) / own[:, None]
        part = self.share * (np.exp(highest - sizes) * own)[self.place]  # of D_0 that D_l lacks, below 1
        self.log_size: Array = sizes[self.place] + np.log1p(-part)  # log D_l
        part = part[:, None]
        self.means: Array = (means[self.place] - part * own_means[self.place]) / (1.0 - part)  # of x in D_l
        self.loss = float(self.log_size.sum() - self.z[self.events].sum())

    def _of_times(self, reduce: np.ufunc, of_events: Array) -> Array:
        """Return the sum, or the largest, of numbers of the events at each time."""
        return np.asarray(reduce.reduceat(of_events, self.first) if self.events.size else of_events)

    @property
    def gradient(self) -> Array:
        """∇ of the loss, (d,)."""
        return np.asarray(self.means.sum(axis=0) - self.x[self.events].sum(axis=0))

    @property
    def hessian(self) -> Array:
        """∇² of the loss, (d, d)."""
        return gram(self.x, self._expected(False)[0]) - self.means.T @ self.means

    def _expected(self, moments: bool) -> tuple[Array, Array]:
        """Return the expected events of each row, Σ e^z/D_l over all D_l up to its time, and Σ e^z/D_l · means.

        A row with an event is only a part 1 − l/d of the D_l of its time.
        """
        means = self.means if moments else self.means[:, :0]
        total, centre = running_means(-self.log_size, means)
        some, latest = self.passed > 0, self.passed - 1
        count, moment = np.zeros(self.z.size), np.zeros((self.z.size, means.shape[1]))
        count[some] = np.exp(self.z[some] + total[latest[some]])
        moment[some] = count[some, None] * centre[latest[some]]
        if self.events.size:
            start = self.log_size[self.first][self.place]  # log D_0 of the time, the largest
            less = self.share * np.exp(start - self.log_size)
            scale = np.exp(self.z[self.events] - start)
            count[self.events] -= scale * self._of_times(np.add, less)[self.place]
            moment[self.events] -= scale[:, None] * self._of_times(np.add, less[:, None] * means)[self.place]
        return count, moment

    @property
    def scores(self) -> Array:
        """Derivatives of ∇ in the rows' weights, in the order of the rows, (rows, d); their sum is ∇."""
        count, moment = self._expected(True)
        found = count[:, None] * self.x - moment
        if self.events.size:
            centres = self._of_times(np.add, self.means) / self.deaths[:, None]
            found[self.events] -= self.x[self.events] - centres[self.place]
        out = np.empty_like(found)
        out[self.order] = found
        return out


def running_means(log_weights: Array, values: Array) -> tuple[Array, Array]:
    """Return log Σ w of the rows up to each, (rows,), and the means of their values weighted by w, (rows, d).

    They are finite however far apart the weights are: what a site answers must not depend on its rows.
    """
    if not log_weights.size:
        return log_weights, values
    if np.ptp(log_weights) < RANGE:
        highest = log_weights.max()
        weights = np.exp(log_weights - highest)
        totals = np.cumsum(weights)
        return highest + np.log(totals), np.cumsum(weights[:, None] * values, axis=0) / totals[:, None]
    totals, means = np.logaddexp.accumulate(log_weights), np.array(values)
    shares = np.exp(log_weights - totals)
    for k in range(1, len(means)):
        means[k] = means[k - 1] + shares[k] * (values[k] - means[k - 1])
    return totals, means


def null_sums(y: Array, o: Array, a: Array) -> Array:
    """Return of one client the events, the loss without features, and 1 if it has an event; times its weight."""
    if not y.size:
        return np.zeros(3)
    events = float(np.count_nonzero(~np.signbit(y)))
    loss = RiskSets(y, o, np.zeros((y.size, 0))).loss
    return np.array([a[0] * events, a[0] * loss, float(events > 0)])


class Cox(TabularProblem):
    """f_c(θ) = the negative logarithm of Efron's partial likelihood over n_c, plus l2/2 ‖θ‖².

    A row's loss depends on all rows of its client at risk with it, so that there are no gradients of batches.
    """

    kind = "cox"
    curvature = float("nan")  # a row has no loss

    def risk_sets(self, client: int, theta: Array) -> RiskSets:
        """Return the partial likelihood of a client's rows at θ."""
        own = slice(int(self.offsets[client]), int(self.offsets[client + 1]))
        x, y = self.x[own], self.y[own]
        return RiskSets(y[:, TARGET], x @ theta + y[:, OFFSET], x)

    def client_losses(self, theta: Array) -> Array:
        """Return the loss f_c(θ) of each client, (n_clients,)."""
        each = np.array([self.risk_sets(c, theta).loss for c in range(self.n_clients)])
        return each / self.sizes + 0.5 * float(self.penalty @ theta**2)

    def client_gradients(self, theta: Array) -> Array:
        """Return ∇f_c(θ), shape (N, d)."""
        each = np.stack([self.risk_sets(c, theta).gradient for c in range(self.n_clients)])
        return each / self.sizes[:, None] + self.penalty * theta

    def client_hessians(self, theta: Array) -> Array:
        """Return ∇²f_c(θ), shape (N, d, d)."""
        each = np.stack([self.risk_sets(c, theta).hessian for c in range(self.n_clients)])
        return each / self.sizes[:, None, None] + np.diag(self.penalty)

    def loss(self, theta: Array) -> float:
        """Return f(θ) = Σ w_c f_c(θ)."""
        return float(self.weights @ self.client_losses(theta))

    def gradient(self, theta: Array) -> Array:
        """Return the gradient ∇f(θ), shape (d,)."""
        return np.asarray(self.weights @ self.client_gradients(theta))

    def hessian(self, theta: Array) -> Array:
        """Return the Hessian ∇²f(θ), shape (d, d)."""
        return np.asarray(np.einsum("c,cij->ij", self.weights, self.client_hessians(theta)))

    def _solve_optimum(self) -> Array:
        return minimise(self)

    def _slopes(self, theta: Array, x: Array, y: Array) -> Array:
        _no_batches()

    def smoothness(self, batches: Batches) -> float:
        """Raise, since local steps on batches are not possible."""
        _no_batches()

    def describe(self) -> dict[str, Any]:
        """Return the kind, sizes, weights, penalty and the number of events."""
        return {**super().describe(), "events": int(np.count_nonzero(~np.signbit(self.y[:, TARGET])))}


def _no_batches() -> NoReturn:
    raise InvalidInput(
        "kind='cox' has no gradients of single rows or batches, and so no local steps; fit it by Newton's method"
    )
