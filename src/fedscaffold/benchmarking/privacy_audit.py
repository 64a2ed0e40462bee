"""An audit of privacy by attack: one run with many canaries, of which the attacker sees every message.

Client c's records are canaries, one for each coordinate of θ: its gradient points along that coordinate alone and
is always clipped, which no record can exceed. Each canary is in or, by a coin, an empty record. From the messages
the attacker computes every client's noisy gradients, control variates included, and adds them up: the best score
possible. So the bound is near the accountant's ε, and above it if clipping, noise or counting is at fault.

If clients are protected, each client is a canary: its message points along one coordinate and is always clipped.
The attacker sees the noisy sums and adds them up. Client state plays no part, since these clients would send the
same whatever they remember.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.checks import choice, positive, seed_number, whole_number
from fedscaffold.core.display import Summarised
from fedscaffold.core.errors import Collector, InvalidInput
from fedscaffold.core.imports import load_optional
from fedscaffold.core.privacy import ClientLevel, Privacy, RecordLevel
from fedscaffold.core.protocols import Engine, Method
from fedscaffold.core.types import Array
from fedscaffold.engines import choose_engine
from fedscaffold.methods import GradientScaffold, Scaffold
from fedscaffold.privacy import epsilon
from fedscaffold.problems import Ridge
from fedscaffold.simulation.rounds import State, open_rounds
from fedscaffold.simulation.setup import RunSetup

Protect = Literal["records", "clients"]
LARGEST = 50.0  # of ε in the search; e⁻⁵⁰ is below the rounding errors of probabilities near 1
FAR = 1e6  # targets that no model comes near, so that every canary is clipped in every step


@dataclass(frozen=True, kw_only=True, repr=False)
class Audit(Summarised):
    """Result of an attack on a private run, from `fedscaffold.benchmarking.audit_privacy`.

    Attributes
    ----------
    accounted
        ε by the accountant, of a record or client that is removed.
    attacked
        Lower bound on ε from the number of canaries that the attacker guessed right, for noise of any kind.
    attacked_gaussian
        The same for noise that is known to be Gaussian, a much tighter bound.
    delta, confidence
        δ, and the confidence of the lower bounds.
    canaries
        Number of canaries, of all clients together.
    protect
        Kind of the canaries: "records" or "clients".

    Examples
    --------
    >>> from fedscaffold.benchmarking import Audit
    >>> found = {"attacked": 0.7, "attacked_gaussian": 2.2, "delta": 1e-5, "confidence": 0.95, "canaries": 1000}
    >>> Audit(accounted=2.0, **found).passed
    False
    """

    accounted: float
    attacked: float
    attacked_gaussian: float
    delta: float
    confidence: float
    canaries: int
    protect: str = "records"

    @property
    def passed(self) -> bool:
        """Whether both lower bounds stay below the accountant's ε."""
        return max(self.attacked, self.attacked_gaussian) <= self.accounted

    def _facts(self) -> dict[str, object]:
        return {
            "accounted ε": f"{self.accounted:.4g}",
            "ε by attack, any noise": f"at least {self.attacked:.4g}",
            "ε by attack, Gaussian noise": f"at least {self.attacked_gaussian:.4g}",
            "canaries": self.canaries,
            "verdict": "passed" if self.passed else "FAILED: the run leaks more than is accounted for",
        }

    def _title(self) -> str:
        return f"Audit of privacy at the level of {self.protect}"


def audit_privacy(
    *,
    noise_multiplier: float = 20.0,
    local_steps: int = 5,
    rounds: int = 20,
    canaries: int = 1000,
    delta: float = 1e-5,
    confidence: float = 0.95,
    engine: str | Engine = "auto",
    seed: int = 0,
    protect: Protect = "records",
    privacy: Privacy | None = None,
) -> Audit:
    """Attack a private run of Scaffold and compare the lower bound on ε with the accountant's ε.

    Parameters
    ----------
    noise_multiplier, local_steps, rounds
        Settings of the run that is attacked, with which the accountant counts.
    canaries
        Number of records that the attacker looks for, over two clients, or of clients; a multiple of four.
    delta, confidence
        δ of the bounds, and their confidence.
    engine, seed
        As in `fedscaffold.run`.
    protect
        "records", by noise in every local step; or "clients", by noise in parts in the sum of their messages.
    privacy
        Clipping and noise of the run, if they are not those that are accounted for: a `RecordLevel` or a
        `ClientLevel` with summed=True.

    Returns
    -------
    Both lower bounds and the accountant's ε.

    Raises
    ------
    InvalidInput
        If a setting cannot be used, or the noise is too small to protect anything.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> found = fs.benchmarking.audit_privacy(canaries=200, rounds=5, engine="reference")
    >>> found.passed
    True
    """
    checks: tuple[Callable[[], Any], ...] = (
        lambda: whole_number("canaries", canaries, least=40),
        lambda: whole_number("rounds", rounds, least=1, most=10**6),
        lambda: whole_number("local_steps", local_steps, least=1, most=10**6),
        lambda: seed_number("seed", seed),
        lambda: choice("protect", protect, get_args(Protect)),
        lambda: epsilon(noise_multiplier=positive("noise_multiplier", noise_multiplier), delta=delta, steps=1),
    )
    found = Collector("the audit")
    for check in checks:
        with found.catching():
            check()
    found.raise_any()
    canaries = 4 * (int(canaries) // 4)
    clients = protect == "clients"
    steps = rounds if clients else local_steps * rounds
    accounted = epsilon(noise_multiplier=noise_multiplier, delta=delta, steps=steps, adjacency="remove")
    if not math.isfinite(accounted):
        raise InvalidInput("noise_multiplier is too small to protect anything")
    inside = np.random.default_rng(seed).random(canaries) < 0.5
    run = {"engine": choose_engine(engine), "seed": seed}
    if clients:
        usual: Privacy = ClientLevel(clip=1.0, noise_multiplier=noise_multiplier, summed=True)
        by_sums = GradientScaffold(step_size=1.0, local_steps=local_steps)
        scores = _scores_of_clients(inside, by_sums, rounds, privacy=privacy or usual, **run)
    else:
        usual = RecordLevel(clip=1.0, noise_multiplier=noise_multiplier)
        method = Scaffold(step_size=1.0, local_steps=local_steps)
        scores = _scores(inside.reshape(2, -1), method, rounds, privacy=privacy or usual, **run)  # two clients
    mu = gaussian_bound(scores, inside, confidence=confidence)
    guesses = int(0.1 * canaries) // 2 * 2  # the tenth of the canaries that the attacker is surest of
    return Audit(
        accounted=accounted,
        attacked=guessing_bound(
            scores, inside, delta=delta, guesses=guesses, confidence=confidence
        ),
        attacked_gaussian=0.0 if mu == 0.0 else epsilon(
            noise_multiplier=1.0 / mu, delta=delta, steps=1, adjacency="remove"
        ),
        delta=delta, confidence=confidence, canaries=canaries, protect=protect,
    )  # fmt: skip


def _scores(inside: NDArray[np.bool_], method: Scaffold, rounds: int, **run: Any) -> Array:
    """Return the attacker's scores from the messages: each client's noisy gradients, added up, (canaries,)."""
    problem = Ridge(inside[:, :, None] * np.eye(inside.shape[1]), np.full(inside.shape, FAR))
    H, gamma = method.uniform_local_steps, method.step_size
    total = np.zeros(inside.shape)
    for before, after in _states(problem, method, rounds, **run):
        old, new = (method.correction(one.client_state, one.server, None)[0] for one in (before, after))
        sent = after.theta[0] + gamma * H * (new - old)
        total -= (before.theta[0] - sent) / gamma - H * old
    return total.ravel()


def _scores_of_clients(inside: NDArray[np.bool_], method: GradientScaffold, rounds: int, **run: Any) -> Array:
    """Return the attacker's scores from the sums of all rounds: how far θ went along each client's coordinate."""
    problem = Ridge((inside[:, None] * np.eye(inside.size))[:, None, :], np.full((inside.size, 1), FAR))
    *_, (_, last) = _states(problem, method, rounds, **run)
    return last.theta[0]


def _states(problem: Ridge, method: Method, rounds: int, **run: Any) -> Iterator[tuple[State, State]]:
    """Yield the states before and after each round."""
    setup = RunSetup(problem=problem, method=method, theta=np.zeros((1, problem.dim)), **run)
    with open_rounds(setup) as step:
        state = step.initial_state()
        for _ in range(rounds):
            before = step.gather(state)
            state = step(state)
            yield before, step.gather(state)


# how well an attacker with a score for each canary, higher if it believes it was in, recognises them


def guessing_bound(
    scores: Array, inside: NDArray[np.bool_], *, delta: float, guesses: int, confidence: float
) -> float:
    """Return a lower bound on ε for any mechanism (Steinke, Nasr & Jagielski 2023).

    The attacker guesses that the canaries with the highest scores were in and those with the lowest were not,
    `guesses` in all; (ε, δ) bounds how many of these can be right.

    Examples
    --------
    >>> import numpy as np
    >>> from fedscaffold.benchmarking.privacy_audit import guessing_bound
    >>> inside = np.arange(100) % 2 == 0
    >>> round(guessing_bound(1.0 * inside, inside, delta=1e-5, guesses=100, confidence=0.95), 2)
    3.49
    """
    stats = _stats()
    m, k = scores.size, guesses // 2
    order = np.argsort(scores, kind="stable")
    right = int((~inside[order[:k]]).sum() + inside[order[m - k :]].sum())

    def chance(epsilon: float) -> float:
        """Return the largest probability of this many right guesses."""
        p = 1.0 / (1.0 + math.exp(-epsilon))
        i = np.arange(1, right + 1)
        excess = float((np.cumsum(stats.binom.pmf(right - i, 2 * k, p)) / i).max()) if right else 0.0
        return float(stats.binom.sf(right - 1, 2 * k, p)) + 2.0 * m * delta * excess

    return _largest(lambda epsilon: chance(epsilon) < 1.0 - confidence)


def gaussian_bound(scores: Array, inside: NDArray[np.bool_], *, confidence: float) -> float:
    """Return a lower bound on μ for Gaussian noise (Nasr et al. 2023).

    If attacks do no better than telling N(0, 1) from N(μ, 1), their errors a and b of both kinds have
    Φ⁻¹(1 − a) − Φ⁻¹(b) ≤ μ. The threshold is the middle between the mean scores of one half of the canaries;
    errors are counted on the other half, with upper confidence limits (Clopper & Pearson).

    Examples
    --------
    >>> import numpy as np
    >>> from fedscaffold.benchmarking.privacy_audit import gaussian_bound
    >>> rng = np.random.default_rng(0)
    >>> inside = rng.random(4000) < 0.5
    >>> 0.8 < gaussian_bound(rng.normal(size=4000) + inside, inside, confidence=0.95) < 1.0
    True
    """
    stats = _stats()
    half = np.arange(scores.size) % 2 == 0
    middle = 0.5 * (scores[half & inside].mean() + scores[half & ~inside].mean())
    wrong_in, wrong_out = scores[~half & inside] <= middle, scores[~half & ~inside] > middle
    limit = 1.0 - (1.0 - confidence) / 2.0
    errors = [(one.sum() + 1, max(1, one.size - one.sum())) for one in (wrong_out, wrong_in)]
    a, b = (float(stats.beta.ppf(limit, *each)) for each in errors)
    return max(0.0, float(stats.norm.ppf(1.0 - a) - stats.norm.ppf(b)))


def _stats() -> Any:
    return load_optional("scipy.stats", "bounds by attack need SciPy", extra="privacy")


def _largest(rejected: Callable[[float], bool]) -> float:
    """Return the largest ε that is rejected, to 1e-6; 0 if none is."""
    low, high = 0.0, LARGEST
    if not rejected(low):
        return 0.0
    while high - low > 1e-6:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if rejected(middle) else (low, middle)
    return low
