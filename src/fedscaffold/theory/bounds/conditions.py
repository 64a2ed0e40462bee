"""A bound, the conditions under which it is proved, and the noise constants that suit them best."""

import math
from dataclasses import dataclass, field
from typing import Literal

from fedscaffold.core.checks import positive, whole_number
from fedscaffold.core.display.summaries import html_summary, text_summary
from fedscaffold.core.errors import InvalidInput
from fedscaffold.theory.problem_constants import Constants

Proof = Literal["sharp", "paper"]
BELOW = 1.0 - 1e-9  # so that a limit met exactly is not missed by rounding


@dataclass(frozen=True, repr=False)
class Condition:
    """value ≤ limit, as a statement of the paper asks.

    Attributes
    ----------
    name
        The inequality in the paper's symbols.
    value, limit
        Its two sides.
    satisfied
        Whether value ≤ limit.
    missed_by
        value/limit: by which factor the condition is missed; at most 1 when it is satisfied.

    Examples
    --------
    >>> from fedscaffold.theory.bounds import Condition
    >>> Condition("γ ≤ 1/(2L)", 0.5, 0.25)
    Condition(γ ≤ 1/(2L): 0.5 > 0.25, missed by a factor 2)
    >>> Condition("γ ≤ 1/(2L)", 0.1, 0.25).satisfied
    True
    """

    name: str
    value: float
    limit: float
    satisfied: bool = field(init=False)
    missed_by: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "satisfied", self.value <= self.limit)
        object.__setattr__(self, "missed_by", self.value / self.limit)

    def __repr__(self) -> str:
        if self.satisfied:
            return f"Condition({self.name}: {self.value:.3g} ≤ {self.limit:.3g})"
        missed = f"missed by a factor {self.missed_by:.3g}"
        return f"Condition({self.name}: {self.value:.3g} > {self.limit:.3g}, {missed})"


@dataclass(frozen=True, repr=False)
class Bound:
    """A number that is proved to be an upper bound if its conditions hold.

    Attributes
    ----------
    value
        The formula's value, whether or not it is proved here.
    holds
        Whether all conditions are satisfied, so that `value` is a bound.
    conditions
        All that the proof needs of γ and H.

    Examples
    --------
    >>> from fedscaffold.theory.bounds import Bound, Condition
    >>> bound = Bound(0.3, (Condition("γ ≤ 1/(2L)", 0.1, 0.25),))
    >>> bound
    <Bound | value: 0.3, holds: True, conditions satisfied: 1 of 1>
    """

    value: float
    holds: bool = field(init=False)
    conditions: tuple[Condition, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "holds", all(condition.satisfied for condition in self.conditions))

    def _facts(self) -> dict[str, object]:
        satisfied = sum(condition.satisfied for condition in self.conditions)
        return {
            "value": f"{self.value:.4g}",
            "holds": self.holds,
            "conditions satisfied": f"{satisfied} of {len(self.conditions)}",
        }

    def __repr__(self) -> str:
        return text_summary("Bound", self._facts())

    def _repr_html_(self) -> str:
        sides = {one.name: f"{one.value:.3g}, limit {one.limit:.3g}" for one in self.conditions}
        return html_summary("Bound", {**self._facts(), **sides})


def setting(
    constants: Constants, step_size: float, local_steps: int, n_clients: int
) -> tuple[float, int, float, float, float]:
    """γ, H, Σ w_c², μ, L; refuses what no statement is about."""
    gamma = positive("step_size", step_size)
    H = whole_number("local_steps", local_steps, least=1)
    share = noise_share(constants, n_clients)
    check_convex(constants)
    return gamma, H, share, constants.mu, constants.L


def noise_share(constants: Constants, n_clients: int) -> float:
    """Σ w_c² of N clients whose weights differ as the constants' clients' do; 1/N where they are equal.

    The proofs use 1/N as the variance of the mean of N independent vectors of variance 1, which is Σ w_c² with
    weights, and means over clients otherwise, which become Σ w_c.
    """
    return constants.design_effect / whole_number("n_clients", n_clients, least=1)


def check_convex(constants: Constants) -> None:
    """Refuse μ = 0, as all statements divide by μ, and constants that are known at θ* only."""
    if "mu" in constants.local:
        raise InvalidInput(
            "the bounds need constants that hold for all θ, but these are about θ* only; where you can vouch for "
            "them, dataclasses.replace(constants, local=())"
        )
    if not constants.mu > 0:
        raise InvalidInput("the bounds need strong convexity, but mu = 0; give the problem a penalty l2 > 0")


def rate(share: float, steps: float) -> float:
    """(1 − share)^steps; infinite where 1 − share is negative, which no condition allows."""
    return math.exp(steps * math.log1p(-share)) if share < 1.0 else math.inf


def small_step(gamma: float, L: float, parts: int) -> Condition:
    """γ ≤ 1/(parts · L)."""
    return Condition(f"γ ≤ 1/({parts}L)", gamma, 1.0 / (parts * L))


def short_round(gamma: float, H: int, L: float, mu: float, parts: int, which: str = "L") -> Condition:
    """γH(L + μ) ≤ 1/parts."""
    limit = "1" if parts == 1 else f"1/{parts}"
    return Condition(f"γH({which} + μ) ≤ {limit}", gamma * H * (L + mu), 1.0 / parts)


def noise_pair(constants: Constants, largest_beta: float) -> tuple[float, float]:
    """A5's (σ*², β) with the smallest σ*² that has β ≤ largest_beta.

    Bounds grow with σ*², and β enters conditions only, so this is the best of `Constants.noise_bound`'s family.
    If there is none with so small a β, the pair of the constants' own fields.
    """
    lipschitz2 = constants.noise_lipschitz2
    if lipschitz2 == 0.0:
        return constants.noise_at_optimum, 0.0
    room = largest_beta * BELOW / lipschitz2 - 1.0
    if room <= 0.0:
        return constants.sigma_star2, constants.beta
    return constants.noise_bound(1.0 / room)
