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
        z, x = z[self.order], x[self.order]
        self.x: Array = x - x.mean(axis=0)
        self.events: IntArray = np.flatnonzero(event)
        at, self.place, deaths = np.unique(times[event], return_inverse=True, return_counts=True)
        first = np.cumsum(deaths) - deaths  # of each time's events, among the events
        self.first, self.deaths = first, deaths
        self.passed: IntArray = np.searchsorted(at, times, side="right")  # times of events up to each row's
        self.share: Array = (np.arange(self.events.size) - first[self.place]) / deaths[self.place]
        self.hazard: Array = np.exp(z - z.max())
        begin = np.searchsorted(times, at)  # where those at risk begin
        at_risk, own = self._sums(self.hazard, begin)
        self.size: Array = at_risk[self.place] - self.share * own[self.place]
        moments, own = self._sums(self.hazard[:, None] * self.x, begin)
        with np.errstate(divide="ignore", invalid="ignore"):  # margins too far apart for float64
            self.means: Array = (moments[self.place] - self.share[:, None] * own[self.place]) / self.size[:, None]
            self.loss = float(np.log(self.size).sum() - (z - z.max())[event].sum())

    def _sums(self, values: Array, begin: IntArray) -> tuple[Array, Array]:
        """Return the sums over those at risk at each time of events, and over these events."""
        own = np.add.reduceat(values[self.events], self.first) if self.events.size else values[:0]
        return np.cumsum(values[::-1], axis=0)[::-1][begin], own

    def _accumulated(self, of_events: Array) -> Array:
        """Return for each row the sum over all D_l up to its time; with its share of those that it is one of."""
        own = np.add.reduceat(of_events, self.first) if self.events.size else of_events
        until = np.concatenate([np.zeros((1, *own.shape[1:])), np.cumsum(own, axis=0)])[self.passed]
        share = self.share.reshape(-1, *(1,) * (of_events.ndim - 1))
        if self.events.size:
            until[self.events] -= np.add.reduceat(share * of_events, self.first)[self.place]
        return until

    @property
    def gradient(self) -> Array:
        """∇ of the loss, (d,)."""
        return np.asarray(self.means.sum(axis=0) - self.x[self.events].sum(axis=0))

    @property
    def hessian(self) -> Array:
        """∇² of the loss, (d, d)."""
        return gram(self.x, self.hazard * self._accumulated(1.0 / self.size)) - self.means.T @ self.means

    @property
    def scores(self) -> Array:
        """Derivatives of ∇ in the rows' weights, in the order of the rows, (rows, d); their sum is ∇.

        An event's own term is x less the mean of its D_l; each D_l a row is part of adds its share of the hazard.
        """
        found = self._accumulated(1.0 / self.size)[:, None] * self.x - self._accumulated(
            self.means / self.size[:, None]
        )
        found *= self.hazard[:, None]
        if self.events.size:
            centres = np.add.reduceat(self.means, self.first) / self.deaths[:, None]
            found[self.events] -= self.x[self.events] - centres[self.place]
        out = np.empty_like(found)
        out[self.order] = found
        return out


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
