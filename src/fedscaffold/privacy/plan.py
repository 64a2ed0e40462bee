"""How a privacy budget is spent: clip, noise, step size and number of noisy gradients, from public facts alone.

The model is gradient descent with momentum β on a quadratic. T steps of size γ with the noise that T releases need
come to the same for all T with the same length τ = γT/(1 − β): along an eigenvector of the Hessian with eigenvalue
λ the squared error is

    b² e^(−2λτ) + τ s² (1 − e^(−2λτ)) / 2λ

with b² what is to be learnt and s² the variance of the mean gradient's noise if there were a single release.
Columns are taken to have mean square 1 and correlation 1/2, and targets to depend on them as strongly as is usual.
If the table is otherwise the model is worse, and as private.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.checks import positive, set_fields, whole_number
from fedscaffold.core.errors import Collector, InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.privacy.accounting import noise_for
from fedscaffold.privacy.grid import CLIP, noise_units

OF_ROWS = ("exposure", "offset", "weight", "sample_weight", "class_weight")  # options that weigh rows
LIMIT = 3.0  # of encoded numbers: half of a range over a sixth of it
CORRELATION = 0.5  # of any two numbers
MOMENTUM = 0.7  # of the coordinator's steps: a third of the exchanges for the same way
MOST_ROUNDS = 40  # each is an exchange with all sites
SPARE = 1  # releases beyond the plan: of a site that paid for one and crashed before it was kept
CLIPS = (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0)  # of the norm that is typical at θ = 0
LENGTHS = np.geomspace(0.02, 2000.0, 120)  # λτ of the mean curvature
# of the margins that the target depends on
SPREADS = {"ridge": 0.7, "logistic": 1.5, "poisson": 0.6, "gamma": 0.7}


@dataclass(frozen=True, kw_only=True)
class PrivacySettings:
    """A privacy budget, and settings of the training; settings that are None are chosen for the budget.

    Parameters
    ----------
    epsilon
        ε > 0 of every row, for everything that the fit publishes; or of every client.
    delta
        δ, below one over the number of rows of every client; by default a tenth of that of the largest client.
    clip
        The largest norm of one row's gradient, or of what one client sends.
    step_size, rounds
        γ and T.

    Examples
    --------
    >>> from fedscaffold.privacy.plan import PrivacySettings
    >>> PrivacySettings(epsilon=3.0).delta_for([500, 200])
    0.0002
    """

    epsilon: float
    delta: float | None = None
    clip: float | None = None
    step_size: float | None = None
    rounds: int | None = None

    def __post_init__(self) -> None:
        found = Collector("the privacy budget")
        for name in ("epsilon", "delta", "clip", "step_size", "rounds"):
            value: Any = getattr(self, name)
            if value is None and name != "epsilon":
                continue
            with found.catching():
                checked = whole_number(name, value, least=1) if name == "rounds" else positive(name, value)
                set_fields(self, **{name: checked})
                if name == "delta" and value >= 1.0:
                    raise InvalidInput(f"delta must be below 1, got {value:g}")
        found.raise_any()

    def delta_for(self, sizes: NDArray[np.int64] | list[int], what: str = "rows of the largest client") -> float:
        """Return δ for clients of these sizes; raise unless it is below one over the size of each.

        Parameters
        ----------
        sizes
            Numbers of rows, or of something else, which `what` names.
        what
            Name of the largest size in the error message.
        """
        largest = int(np.max(sizes))
        if self.delta is None:
            return 0.1 / largest
        if self.delta >= 1.0 / largest:
            raise InvalidInput(
                f"delta must be below {1.0 / largest:.3g}, one over the {largest:,} {what}; got {self.delta:g}"
            )
        return self.delta


@dataclass(frozen=True, kw_only=True)
class PrivatePlan:
    """The spending of a privacy budget, decided from public facts alone.

    Parameters
    ----------
    epsilon, delta
        The budget of every row, or of every site.
    protect
        "rows" or "sites".
    rounds, step_size
        T and γ: T times, v ← 0.7 v − γ (noisy sum of clipped gradients / units + penalty · θ) and θ ← θ + v.
    clip
        Largest norm of a row's gradient, or of a site's mean gradient.
    noise
        Standard deviation of the noise that each site adds, in units of clip / 2³⁰.
    noise_multiplier
        Standard deviation over the clip of the noise that protects each row or site: of one site's, or of the sum
        of all parts that are not revealed.
    units
        Number of rows, or of sites.
    predicted_error
        ‖θ − θ*‖ / ‖θ*‖ of the model that these settings were chosen by; None if they were given.
    """

    epsilon: float
    delta: float
    protect: Literal["rows", "sites"]
    rounds: int
    step_size: float
    clip: float
    noise: int
    noise_multiplier: float
    units: int
    predicted_error: float | None = None

    @property
    def releases(self) -> int:
        """Number of noisy sums that the noise suffices for, spare ones included."""
        return self.rounds + SPARE

    def step(self, theta: Array, velocity: Array, total: Any, penalty: Array) -> tuple[Array, Array]:
        """Return θ and its velocity after a step, from the noisy sum in units of clip / 2³⁰."""
        mean = np.asarray(total, np.float64) * (self.clip / CLIP) / self.units
        velocity = MOMENTUM * velocity - self.step_size * (mean + penalty * theta)
        return theta + velocity, velocity

    def to_json(self) -> dict[str, Any]:
        """Return values that JSON can hold."""
        return {name: value for name, value in vars(self).items() if name != "predicted_error"}

    def explain(self) -> str:
        """Return the plan in a few sentences."""
        whose, what = "row's gradient", "row"
        if self.protect == "sites":
            whose, what = "site's mean gradient", "site's table as a whole"
        text = (
            f"{self.rounds} steps of gradient descent with momentum, of size {self.step_size:.3g}. Every {whose} "
            f"is clipped to norm {self.clip:.3g}, and sums get noise of {self.noise_multiplier:.3g} times that, "
            "on whole numbers. All steps together are "
            f"({self.epsilon:g}, {self.delta:.2g})-differentially private for every {what}."
        )
        if self.predicted_error is None:
            return f"{text} These settings were given."
        text += f" They were chosen for {self.units:,} {self.protect} from public facts alone."
        if self.predicted_error < 0.9:
            return text
        return f"{text} So small a budget takes more {self.protect}: the model will hardly beat one of zeros."


def public_plan(
    target: Any,
    levels: Sequence[int],
    sizes: Sequence[int],
    settings: PrivacySettings,
    *,
    l2: float,
    intercept: bool = True,
) -> PrivatePlan:
    """Return the settings for a budget of every row of clients of some sizes; given settings stay.

    The parameters are as in `plan_budget`. δ is by default a tenth of one over the rows of the largest client.
    """
    known = replace(settings, delta=settings.delta_for(list(sizes)))
    return plan_budget(
        target, tuple(levels), known, units=int(sum(sizes)), sites=len(sizes), l2=l2, intercept=intercept
    )


@lru_cache(maxsize=64)
def plan_budget(
    target: Any,
    levels: tuple[int, ...],
    settings: PrivacySettings,
    *,
    units: int,
    sites: int,
    l2: float,
    intercept: bool = True,
    protect: Literal["rows", "sites"] = "rows",
    honest: int | None = None,
    most_rounds: int = MOST_ROUNDS,
) -> PrivatePlan:
    """Return the settings for a budget; given settings stay.

    Parameters
    ----------
    target
        The target's kind, and its range or classes: a `data.public.PublicTarget`.
    levels
        For each feature the number of its values; 0 for numbers.
    settings
        The budget with its δ, and settings that were decided before.
    units
        Number of rows of all sites, or of sites, as `protect` says.
    sites
        Number of sites that add noise.
    l2
        Strength of the penalty.
    intercept
        Whether there is one.
    protect
        Unit of the budget.
    honest
        Number of sites whose parts of the noise suffice together; None if each adds all of it.
    most_rounds
        Most exchanges.

    Raises
    ------
    InvalidInput
        If the noise would be beyond all use.
    """
    if settings.delta is None:
        raise InvalidInput("a privacy budget requires delta=...")
    squares, curvature, slope = _public_spectrum(target, levels, intercept=intercept)
    learnt = SPREADS[target.kind] ** 2 / float(squares.sum())  # b², alike for all coefficients
    typical = slope * math.sqrt(squares.sum())
    if protect == "sites":  # of a mean of gradients, half-way between θ = 0 and the optimum
        typical = 0.5 * curvature * math.sqrt(learnt * float(squares @ squares))
    clips = np.array(CLIPS) * typical if settings.clip is None else np.array([settings.clip])
    one = noise_for(epsilon=settings.epsilon, delta=settings.delta, steps=1)
    spread = one * clips * math.sqrt(sites if honest is None else sites / honest) / units
    # (clips, lengths, coefficients); gradients that are clipped are shorter, so that the model moves slower
    lengths = LENGTHS / curvature
    speed = np.sqrt(np.minimum(clips / typical, 1.0))[:, None, None] * (curvature * squares + l2)
    left = np.exp(-2.0 * speed * lengths[:, None])
    noise = lengths[:, None] * (spread**2)[:, None, None] * (1.0 - left) / (2.0 * speed)
    error = (learnt * left + noise).mean(axis=2) / learnt + (0.25 * np.exp(-4.0 * clips / typical))[:, None]
    best, at = np.unravel_index(int(np.argmin(error)), error.shape)
    clip, length = float(clips[best]), float(lengths[at])
    mean = float(squares.sum())
    assumed, most = (_largest_curvature(target, clip, square) + l2 for square in (mean, LIMIT**2 * mean))
    wanted = math.ceil(length * (1.0 - MOMENTUM) * most)
    rounds = settings.rounds or max(1, min(wanted, most_rounds))
    z = noise_for(epsilon=settings.epsilon, delta=settings.delta, steps=rounds + SPARE)
    return PrivatePlan(
        epsilon=settings.epsilon,
        delta=settings.delta,
        protect=protect,
        rounds=rounds,
        step_size=settings.step_size or min((1.0 - MOMENTUM) * length / rounds, 1.0 / assumed),
        clip=clip,
        noise=noise_units(z if honest is None else z / math.sqrt(honest)),
        noise_multiplier=z,
        units=units,
        predicted_error=math.sqrt(float(error.min())) if None in (settings.rounds, settings.step_size) else None,
    )


def _public_spectrum(target: Any, levels: Sequence[int], *, intercept: bool) -> tuple[Array, float, float]:
    """Return the eigenvalues of E[x xᵀ] that are assumed, and the loss's curvature and slope in the margin."""
    numbers = sum(count == 0 for count in levels)
    found = [1.0 + CORRELATION * (numbers - 1)] * (numbers > 0) + [1.0 - CORRELATION] * (numbers - 1)
    found += [1.0 / count for count in levels for _ in range(count - 1)] + [1.0] * intercept
    if target.vectors > 1:
        share = 1.0 / target.vectors
        return np.array(found), 0.7 * share * (1.0 - share), math.sqrt(1.0 - share)
    mean = math.exp(target.shift) if target.kind == "poisson" else 1.0
    curvature, slope = {"logistic": (0.16, 0.5)}.get(target.kind, (mean, mean))
    return np.array(found), curvature, slope


def _largest_curvature(target: Any, clip: float, square: float) -> float:
    """Return the largest curvature of a mean of clipped losses whose rows have ‖x‖² = `square` on average.

    A row's slope ℓ' counts up to C/‖x‖; beyond, the clipped loss is a straight line. For counts ℓ'' = ℓ' + y and
    for amounts ℓ'' = 1 − ℓ', so that their clipped losses have bounded curvature although e^z has none.
    """
    if target.kind in ("poisson", "gamma"):
        mean = math.exp(target.shift) if target.kind == "poisson" else 1.0
        return mean * square + clip * math.sqrt(square)
    return square if target.kind == "ridge" else (0.5 if target.vectors > 1 else 0.25) * square


def refuse_beside_epsilon(given: dict[str, Any], usual: dict[str, Any]) -> None:
    """Raise if options would publish something that no budget covers; the message names all of them."""
    found = [name for name, value in given.items() if name not in usual or not _same(value, usual[name])]
    if found:
        listed = ", ".join(f"{name}=..." for name in found)
        why = "it would read rows outside of the budget, or has no meaning here"
        if set(found) <= set(OF_ROWS):
            why = "weights of rows change the largest curvature of the loss, which the bounds do not cover"
        raise InvalidInput(f"epsilon cannot be combined with {listed}: {why}")


def _same(value: Any, usual: Any) -> bool:
    """Return whether an option has its usual value; arrays never do."""
    plain = isinstance(value, tuple) or np.ndim(value) == 0
    return value is usual or (plain and bool(value == usual))
