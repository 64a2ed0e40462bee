"""(ε, δ) of many steps with Gaussian noise, by Google's `dp-accounting`.

Two tables are neighbours if they differ in one record: "replace" (any other record in its place) or "remove"
(nothing in its place: it counts as a record without gradient). The number of records is public in both.
Replacing changes the sum of clipped gradients by up to 2 · clip, removing by up to clip.

Steps on all records are Gaussian mechanisms, whose composition is one again: exact (Balle & Wang 2018). Steps on
batches drawn without replacement are amplified by it as Wang, Balle & Kasiviswanathan (2019) show for replaced
records; that bound needs each step to draw its batch anew and to keep it secret. A batch drawn with replacement
may hold one record many times, which none of these bounds allows: it is rejected.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from fedscaffold.core.checks import choice, given, not_negative, positive, whole_number
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.imports import load_optional
from fedscaffold.core.privacy import Privacy, RecordLevel
from fedscaffold.core.protocols import Method, Problem
from fedscaffold.core.random.stream import Sampling
from fedscaffold.core.types import Array

Adjacency = Literal["replace", "remove"]
SENSITIVITY = {"replace": 2.0, "remove": 1.0}  # of a sum of vectors of norm up to 1
ENOUGH = 1e-6  # relative precision of a noise multiplier: far below the four digits that pages print
LARGEST_MEAN = 1e70  # of a Gaussian mechanism: beyond it ε, about mean²/2, exceeds 1e139 and counts as infinite
AMPLIFIED = 1e-3, 1e6  # noise for which Rényi divergences of batches are computed; dp-accounting fails far outside
WANTED = 1e-9, 1e9  # ε for which noise is searched: no budget in use is near either end


def epsilon(
    *,
    noise_multiplier: float,
    delta: float,
    steps: int,
    batch_size: int | None = None,
    records: int | None = None,
    sampling: Sampling = "without_replacement",
    adjacency: Adjacency = "replace",
) -> float:
    """Return ε such that many steps with Gaussian noise are (ε, δ)-differentially private together.

    Parameters
    ----------
    noise_multiplier
        Standard deviation of the noise in the sum of clipped vectors, in units of the clipping norm.
    delta
        δ, less than one over the number of records (or of clients).
    steps
        Number of noisy sums: local steps times rounds for `RecordLevel`, rounds for `ClientLevel`.
    batch_size
        Records in each step; None if every step uses all of them, and for clients.
    records
        Number of records of the client; required with a batch size.
    sampling
        How a batch is drawn; "with_replacement" raises, since a record may then count many times.
    adjacency
        Tables that must look alike: "replace", with any other record in a record's place, or "remove", with none.

    Returns
    -------
    float
        ε; infinity without noise.

    Raises
    ------
    InvalidInput
        If no bound is known for this combination of sampling and adjacency, or a number is out of range.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> round(fs.privacy.epsilon(noise_multiplier=20.0, delta=1e-3, steps=50, records=500), 2)
    2.05
    >>> all_alone = fs.privacy.epsilon(noise_multiplier=4.0, delta=1e-3, steps=50, records=500)
    >>> amplified = fs.privacy.epsilon(noise_multiplier=4.0, delta=1e-3, steps=50, records=500, batch_size=5)
    >>> amplified < 0.2 * all_alone
    True
    """
    parts = [NoisySteps(noise_multiplier, steps, batch_size, sampling)]
    return composed_epsilon(parts, delta=delta, records=records, adjacency=adjacency)


class NoisySteps(NamedTuple):
    """Steps with the same noise and batches.

    Parameters
    ----------
    noise_multiplier, steps, batch_size, sampling
        As for `fedscaffold.privacy.epsilon`.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> round(fs.privacy.composed_epsilon([fs.privacy.NoisySteps(20.0, 50)], delta=1e-3), 2)
    2.05
    """

    noise_multiplier: float
    steps: int
    batch_size: int | None = None
    sampling: Sampling = "without_replacement"


def composed_epsilon(
    parts: Sequence[NoisySteps], *, delta: float, records: int | None = None, adjacency: Adjacency = "replace"
) -> float:
    """Return ε of steps with different noise or batches, all on the same records.

    For steps on all records, the squares of the inverse noise add up; batches are composed by their Rényi
    divergences.

    Parameters
    ----------
    parts
        The steps.
    delta, records, adjacency
        As for `fedscaffold.privacy.epsilon`.

    Returns
    -------
    float
        ε; 0 without steps.

    Raises
    ------
    InvalidInput
        As `fedscaffold.privacy.epsilon` does.

    Examples
    --------
    >>> from fedscaffold.privacy import NoisySteps, composed_epsilon, epsilon
    >>> together = composed_epsilon([NoisySteps(20.0, 5), NoisySteps(40.0, 20)], delta=1e-3)
    >>> abs(together - epsilon(noise_multiplier=20.0, steps=10, delta=1e-3)) < 1e-9
    True
    """
    if not parts:
        return 0.0
    found = []
    for z, steps, batch_size, sampling in parts:
        not_negative("noise_multiplier", z)
        delta, steps, share = _checked(delta, steps, batch_size, records, sampling, adjacency)
        found.append((float(z), steps, share))
    return _epsilon(tuple(found), delta, adjacency)


def noise_for(
    *,
    epsilon: float,
    delta: float,
    steps: int,
    batch_size: int | None = None,
    records: int | None = None,
    sampling: Sampling = "without_replacement",
    adjacency: Adjacency = "replace",
) -> float:
    """Return the least noise multiplier, to 1e-6 relative, whose `epsilon` is at most the given one.

    Parameters
    ----------
    epsilon
        ε > 0, the budget.
    delta, steps, batch_size, records, sampling, adjacency
        As for `fedscaffold.privacy.epsilon`.

    Returns
    -------
    float
        Standard deviation of the noise in the sum, in units of the clipping norm.

    Raises
    ------
    InvalidInput
        As `fedscaffold.privacy.epsilon` does, and if ε is not between 1e-9 and 1e9.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> noise = fs.privacy.noise_for(epsilon=1.0, delta=1e-3, steps=50, records=500)
    >>> fs.privacy.epsilon(noise_multiplier=noise, delta=1e-3, steps=50, records=500) <= 1.0
    True
    """
    wanted = positive("epsilon", epsilon)
    if not WANTED[0] <= wanted <= WANTED[1]:
        raise InvalidInput(f"epsilon must be between {WANTED[0]:g} and {WANTED[1]:g}, got {given(wanted)}")
    return _noise_for(wanted, *_checked(delta, steps, batch_size, records, sampling, adjacency), adjacency)


def client_epsilons(
    problem: Problem,
    method: Method,
    privacy: Privacy,
    *,
    rounds: int,
    delta: float,
    batch_size: int | None = None,
    sampling: Sampling = "without_replacement",
    adjacency: Adjacency = "replace",
) -> Array:
    """Return ε of every client of a run, (n_clients,): of its records, or with `ClientLevel` of its whole table.

    A client's records are used by that client alone, so each client has a separate budget. Its messages are
    computed from its noisy local steps, and its control variates from its messages: neither costs more. A client
    that takes part in some rounds only is counted as if in all, since the server knows who was chosen.

    Parameters
    ----------
    problem, method, privacy, rounds, batch_size, sampling
        As for `fedscaffold.run`.
    delta, adjacency
        As for `fedscaffold.privacy.epsilon`.

    Returns
    -------
    Array
        ε of each client.

    Raises
    ------
    InvalidInput
        As `fedscaffold.privacy.epsilon` does, and if the method's number of local steps is random.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> problem = fs.problems.paper("regression", n_clients=4)
    >>> method = fs.Scaffold(step_size=0.05, local_steps=5)
    >>> privacy = fs.privacy.RecordLevel(clip=1.0, noise_multiplier=30.0)
    >>> fs.privacy.client_epsilons(problem, method, privacy, rounds=10, delta=1e-3).round(1)
    array([1.3, 1.3, 1.3, 1.3])
    """
    rounds = whole_number("rounds", rounds, least=1)
    n = problem.n_clients
    if not isinstance(privacy, RecordLevel):
        one = epsilon(
            noise_multiplier=privacy.noise_multiplier, delta=delta, steps=rounds, records=n, adjacency=adjacency
        )
        return np.full(n, one)
    fewest, most = (method.local_step_counts(n, np.full(1, u)) for u in (1e-6, 1.0 - 1e-6))
    if not np.array_equal(fewest, most):
        raise InvalidInput(
            f"{type(method).__name__} takes a random number of local steps, so its privacy cost is not known in "
            "advance; use a method with a fixed number"
        )
    steps = np.broadcast_to(most.max(axis=0), n)
    return np.array([
        epsilon(
            noise_multiplier=privacy.noise_multiplier, delta=delta, steps=rounds * int(own), batch_size=batch_size,
            records=int(size), sampling=sampling, adjacency=adjacency,
        )
        for own, size in zip(steps, problem.sizes, strict=True)
    ])  # fmt: skip


def _checked(
    delta: Any, steps: Any, batch_size: Any, records: Any, sampling: Any, adjacency: Any
) -> tuple[float, int, float]:
    """Return δ, number of steps and sampled share; raise if they cannot be combined."""
    delta, steps = positive("delta", delta), whole_number("steps", steps, least=1)
    choice("sampling", sampling, get_args(Sampling))
    choice("adjacency", adjacency, get_args(Adjacency))
    if records is not None:
        records = whole_number("records", records, least=1)
    if delta >= 1.0 / (records or 1):
        of = "" if records is None else f", one over the {records:,} that are protected"
        raise InvalidInput(f"delta must be below {1.0 / (records or 1):.3g}{of}; got {given(delta)}")
    if batch_size is None or batch_size == records:
        return delta, steps, 1.0
    size = whole_number("batch_size", batch_size, least=1)
    if records is None:
        raise InvalidInput("records is required when batch_size is given")
    if size > records:
        raise InvalidInput(f"batches of {size} records cannot be drawn from {records} without replacement")
    if sampling != "without_replacement":
        raise InvalidInput(
            "a batch drawn with replacement may hold one record many times, for which no bound is known; pass "
            "sampling='without_replacement'"
        )
    if adjacency == "remove":
        raise InvalidInput(
            "for batches drawn without replacement only replaced records have a bound; pass adjacency='replace'"
        )
    return delta, steps, size / records


@lru_cache(maxsize=4096)
def _epsilon(parts: tuple[tuple[float, int, float], ...], delta: float, adjacency: str) -> float:
    """Return ε of (noise, steps, share)s: exact for all records; for batches the smaller of that and amplified."""
    alone = [(z / SENSITIVITY[adjacency], steps, share) for z, steps, share in parts]
    if any(z == 0.0 for z, _, _ in alone):
        return math.inf
    mean = math.hypot(*(math.sqrt(steps) / z for z, steps, _ in alone))  # of one Gaussian mechanism of variance 1
    if mean > LARGEST_MEAN:
        return math.inf
    with np.errstate(divide="ignore"):  # of log 0, if δ alone suffices
        whole = float(_library().get_epsilon_gaussian(1.0 / max(mean, 1.0 / LARGEST_MEAN), delta))
    if all(share == 1.0 for _, _, share in alone) or any(z < AMPLIFIED[0] for z, _, _ in alone):
        return whole
    return min(whole, _amplified([(min(z, AMPLIFIED[1]), steps, share) for z, steps, share in alone], delta))


def _amplified(parts: Sequence[tuple[float, int, float]], delta: float) -> float:
    """Return ε by Rényi divergences of Gaussian mechanisms, on samples without replacement if the share is < 1."""
    dp = _library()
    accountant = dp.rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
    for z, steps, share in parts:
        noisy = dp.GaussianDpEvent(z)
        accountant.compose(
            noisy if share == 1.0 else dp.SampledWithoutReplacementDpEvent(1.0, share, noisy), steps
        )
    return float(accountant.get_epsilon(delta))


@lru_cache(maxsize=4096)
def _noise_for(wanted: float, delta: float, steps: int, share: float, adjacency: str) -> float:
    """Return the least noise multiplier for ε, by a search in its logarithm: log ε is nearly linear in it."""
    from scipy.optimize import brentq

    def excess(log_z: float) -> float:
        return math.log(_epsilon(((math.exp(log_z), steps, share),), delta, adjacency) / wanted)

    # noise that suffices for steps on all records, which is known, always suffices
    with np.errstate(divide="ignore"):
        enough = SENSITIVITY[adjacency] * math.sqrt(steps) * float(_library().get_sigma_gaussian(wanted, delta))
    highest = math.log(enough) + ENOUGH
    if share == 1.0:
        return math.exp(highest)
    lowest, above = highest, excess(highest)
    while above <= 0.0:
        lowest += 1.2 * above - 0.01
        above = excess(lowest)
    found = float(brentq(excess, lowest, highest, xtol=0.25 * ENOUGH))
    while excess(found) > 0.0:  # on the safe side of the root
        found += 0.25 * ENOUGH
    return math.exp(found)


def _library() -> Any:
    return load_optional("dp_accounting", "privacy budgets need dp-accounting", extra="privacy")
