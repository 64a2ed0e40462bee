"""Linear stochastic approximation, Σ w_c (A_c θ − b_c) = 0: clients hold linear systems or Markov chains.

Random Markov chains are Garnet environments (Archibald, McKinnon and Thomas, "On the generation of Markov decision
processes", J. Oper. Res. Soc. 46, 1995) with the policy fixed: states, and a few successors of each.
"""

from __future__ import annotations  # so that help() shows ArrayLike, not what it stands for

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedscaffold.core.checks import choice, not_negative, numbers, seed_number, whole_number
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.machine import check_memory
from fedscaffold.core.random.draws import Draws, MarkovChain, interval_ends
from fedscaffold.core.random.stream import Batches
from fedscaffold.core.types import Array
from fedscaffold.problems.base import (
    RecordsProblem,
    client_weights,
    digest,
    flatten_systems,
    freeze,
    record_probabilities,
)


class LinearSystem(RecordsProblem):
    """Find θ* with Σ_c w_c (Ā_c θ* − b̄_c) = 0; a "gradient" of client c has mean Ā_c θ − b̄_c."""

    client_matrices: Array  # Ā_c, (N, d, d)
    client_vectors: Array  # b̄_c, (N, d)

    @abstractmethod
    def client_second_moments(self) -> Array:
        """Return E[A_c(z)ᵀ A_c(z)] of one record, (N, d, d)."""

    @abstractmethod
    def noise_factor(self, batches: Batches, n: int) -> float:
        """Return v, such that a batch of a client with n records has E[AᵀA] ≤ v E[A(z)ᵀA(z)] + (1 − v) ĀᵀĀ."""

    @property
    def matrix(self) -> Array:
        """Ā = Σ w_c Ā_c, (d, d)."""
        return np.einsum("c,cij->ij", self.weights, self.client_matrices)

    @property
    def vector(self) -> Array:
        """b̄ = Σ w_c b̄_c, (d,)."""
        return np.einsum("c,ci->i", self.weights, self.client_vectors)

    def _solve_optimum(self) -> Array:
        """Return θ* = Ā⁻¹ b̄, where the clients' mean gradient vanishes."""
        return np.asarray(np.linalg.solve(self.matrix, self.vector), dtype=np.float64)

    def loss(self, theta: Array) -> float:
        """Return ½‖Āθ − b̄‖².

        Its gradient is not the one that methods follow: Āθ − b̄ has no potential when Ā is not symmetric.
        """
        return 0.5 * float(np.square(self.gradient(theta)).sum())

    def gradient(self, theta: Array) -> Array:
        """Return Āθ − b̄, what the clients' gradients are on average."""
        return self.matrix @ theta - self.vector

    def client_gradients(self, theta: Array) -> Array:
        """Return Ā_c θ − b̄_c, shape (N, d)."""
        return self.client_matrices @ theta - self.client_vectors

    def mean_field(self) -> LinearSA:
        """Return the problem whose only record of each client is Ā_c, b̄_c: its gradients are the full ones."""
        return LinearSA(self.client_matrices[:, None], self.client_vectors[:, None], weights=self.weights)

    def smoothness(self, batches: Batches) -> float:
        """Return the least L with E‖g_c(θ) − g_c(θ')‖² ≤ L⟨Ā_c(θ − θ'), θ − θ'⟩ for every client.

        L = max_c λ_max(S_c^{-1/2} M_c S_c^{-1/2}), S_c = (Ā_c + Ā_cᵀ)/2, M_c = v E[AᵀA] + (1 − v) Ā_cᵀĀ_c, with v
        the batch's noise factor. Infinite if some S_c is not positive definite: then no such L exists, the
        methods' rules vouch for no step size but 0, and whether a small one converges is seen by trying it.
        """
        A = self.client_matrices
        if self._smallest_symmetric() <= 0.0:
            return math.inf
        v = np.array([self.noise_factor(batches, int(n)) for n in self.sizes])[:, None, None]
        moments = v * self.client_second_moments() + (1.0 - v) * np.swapaxes(A, 1, 2) @ A
        root = np.linalg.cholesky(0.5 * (A + np.swapaxes(A, 1, 2)))
        half = np.linalg.solve(root, moments)
        whole = np.linalg.solve(root, np.swapaxes(half, 1, 2))
        return float(np.linalg.eigvalsh(0.5 * (whole + np.swapaxes(whole, 1, 2)))[:, -1].max())

    def strong_convexity(self) -> float:
        """Return μ with ⟨Ā_c u, u⟩ ≥ μ‖u‖² for every client: the smallest eigenvalue of (Ā_c + Ā_cᵀ)/2, or 0."""
        return max(0.0, self._smallest_symmetric())

    def _smallest_symmetric(self) -> float:
        A = self.client_matrices
        return float(np.linalg.eigvalsh(0.5 * (A + np.swapaxes(A, 1, 2)))[:, 0].min())

    def _check_stable(self) -> None:
        """Raise if local steps would run away from the mean system's solution."""
        eigenvalues = np.linalg.eigvals(self.matrix)
        least = float(eigenvalues.real.min())
        if least <= 1e-13 * float(np.abs(eigenvalues).max()):
            raise InvalidInput(
                "the clients' mean matrix must have eigenvalues with positive real parts only, so that steps "
                f"θ − γ(Aθ − b) settle; it has one with real part {least:.3g}: check the sign of A (and of b)"
            )


class LinearSA(LinearSystem):
    """g_c(θ; i) = A_{c,i} θ − b_{c,i}, i one of client c's records; θ* = (Σ w_c Ā_c)⁻¹ Σ w_c b̄_c.

    Matrices need not be symmetric. All eigenvalues of Ā = Σ w_c Ā_c must have positive real parts (−Ā is Hurwitz);
    anything else is rejected. A single client's Ā_c may have others.

    Parameters
    ----------
    A
        Matrices: an array of shape (N, n, d, d), or a sequence of N arrays of shape (n_c, d, d), one per client.
    b
        Right-hand sides: an array of shape (N, n, d), or a sequence of N arrays of shape (n_c, d).
    weights
        One positive weight per client, scaled to sum to one; uniform by default.
    probabilities
        With which probability a step draws each record: an array of shape (N, n), or a sequence of N arrays of
        shape (n_c,), not negative, scaled to sum to one for each client; uniform by default. A batch then has
        independent draws.

    Examples
    --------
    >>> import numpy as np
    >>> import fedscaffold as fs
    >>> A = np.array([[[[2.0, 1.0], [-1.0, 2.0]]], [[[1.0, 0.0], [0.0, 1.0]]]])  # 2 clients, one record each
    >>> problem = fs.problems.LinearSA(A, np.array([[[3.0, 0.0]], [[0.0, 0.0]]]))
    >>> problem.optimum()
    array([0.9, 0.3])
    """

    kind = "linear_sa"

    def __init__(
        self,
        A: ArrayLike | Sequence[ArrayLike],
        b: ArrayLike | Sequence[ArrayLike],
        *,
        weights: ArrayLike | None = None,
        probabilities: ArrayLike | Sequence[ArrayLike] | None = None,
    ) -> None:
        self.A, self.b, self.offsets = flatten_systems(A, b)
        self.sizes: NDArray[np.int64] = np.diff(self.offsets)
        self.n_clients, self.dim = self.sizes.size, self.b.shape[1]
        self.weights = client_weights(weights, self.n_clients)
        self.probabilities = None
        if probabilities is not None:
            self.probabilities = record_probabilities(probabilities, self.sizes)
            each = (interval_ends(own) for own in self._each(self.probabilities))
            self.draws = Draws(np.concatenate(list(each)))
            freeze(self.probabilities, self.draws.ends)
        self.client_matrices = self._means(self.A)
        self.client_vectors = self._means(self.b)
        self._check_stable()
        freeze(
            self.A, self.b, self.offsets, self.sizes, self.weights, self.client_matrices, self.client_vectors
        )  # fmt: skip

    def batch_gradient(self, client: int, theta: Array, rows: NDArray[np.int64]) -> Array:
        """Return the mean of A_i θ − b_i over some of a client's records."""
        at = self.offsets[client] + rows
        return (self.A[at] @ theta - self.b[at]).mean(axis=0)

    def client_second_moments(self) -> Array:
        """Return the mean of A_iᵀA_i over each client's records, (N, d, d)."""
        if self.probabilities is not None:
            return self._means(np.swapaxes(self.A, 1, 2) @ self.A)
        squares = [np.tensordot(A, A, axes=((0, 1), (0, 1))) / len(A) for A in self._each(self.A)]
        return np.stack(squares)

    def noise_factor(self, batches: Batches, n: int) -> float:
        """Return 1/B, times (n − B)/(n − 1) without replacement."""
        if self.probabilities is not None:
            return 0.0 if batches.size is None else 1.0 / batches.size
        return batches.noise_factor(n)

    def _compute_fingerprint(self) -> str:
        """Return the SHA-256 of weights and every record."""
        drawn = () if self.probabilities is None else (self.probabilities,)
        return digest(f"{self.kind} {self.dim}", self.offsets, self.weights, self.b, self.A, *drawn)

    def _means(self, records: Array) -> Array:
        """Return the mean over each client's records, as they are drawn, (N, ...)."""
        if self.probabilities is None:
            return np.stack([each.mean(axis=0) for each in self._each(records)])
        pairs = zip(self._each(self.probabilities), self._each(records), strict=True)
        return np.stack([np.tensordot(own, each, axes=1) for own, each in pairs])

    def _each(self, records: Array) -> Iterator[Array]:
        """Yield the records of one client after another."""
        for begin, end in pairwise(self.offsets):
            yield records[begin:end]


class MarkovChains(NamedTuple):
    """One Markov chain with rewards per client, on a common graph and with common features.

    Attributes
    ----------
    successors
        The states that may follow a state, (states, branching).
    kernel
        P_c(s, k), with which probability the k-th of them does, (N, states, branching).
    rewards
        r_c(s), (N, states).
    features
        φ(s), (states, d).

    Examples
    --------
    >>> import numpy as np
    >>> import fedscaffold as fs
    >>> sticky, restless = np.array([[0.9, 0.1], [0.1, 0.9]]), np.array([[0.5, 0.5], [0.5, 0.5]])
    >>> chains = fs.problems.MarkovChains.from_transitions(
    ...     [sticky, restless], rewards=[[0.0, 1.0], [0.0, 1.0]], features=np.eye(2))
    >>> fs.problems.GarnetTD(environments=chains, discount=0.5)
    GarnetTD(n_clients=2, dim=2, n_records=8)
    """

    successors: NDArray[np.int64]
    kernel: Array
    rewards: Array
    features: Array

    @classmethod
    def from_transitions(cls, transitions: ArrayLike, rewards: ArrayLike, features: ArrayLike) -> MarkovChains:
        """Build chains from P_c(s, s'), (N, states, states), rewards (N, states) and features (states, d)."""
        kernel = table("transitions", transitions, 3)
        states = kernel.shape[1]
        successors = np.tile(np.arange(states), (states, 1))
        return cls(successors, kernel, table("rewards", rewards, 2), table("features", features, 2))


def checked_chains(chains: MarkovChains) -> MarkovChains:
    """Return a copy of given chains; raise if they are not chains or have several stationary laws."""
    kernel, rewards = table("kernel", chains.kernel, 3), table("rewards", chains.rewards, 2)
    features, successors = table("features", chains.features, 2), table("successors", chains.successors, 2)
    n_clients, states, branching = kernel.shape
    wanted = {"rewards": (n_clients, states), "successors": (states, branching)}
    found = {"rewards": rewards.shape, "successors": successors.shape}
    wrong = [
        f"{name} must have shape {shape}, got {found[name]}"
        for name, shape in wanted.items()
        if found[name] != shape
    ]
    if features.shape[0] != states or not 1 <= features.shape[1] <= states:
        wrong.append(f"features must have {states} rows, one per state, and at most as many columns")
    if wrong:
        raise InvalidInput(f"environments do not fit a kernel of shape {kernel.shape}: {'; '.join(wrong)}")
    if (kernel < 0.0).any() or np.abs(kernel.sum(axis=2) - 1.0).max() > 1e-6:  # written with six digits
        raise InvalidInput("transition probabilities must not be negative, and sum to one from each state")
    whole = successors.astype(np.int64)
    if (whole != successors).any() or whole.min() < 0 or whole.max() >= states:
        raise InvalidInput(f"successors must be states, whole numbers from 0 to {states - 1}")
    own = MarkovChains(whole, kernel / kernel.sum(axis=2, keepdims=True), rewards, features)
    worst = np.linalg.cond(_balance(own))
    if not worst.max() < 1e13:  # beyond it no digit of the stationary law is right
        raise InvalidInput(
            f"the chain of client {int(np.argmax(worst))} has no single stationary law: all its states must lead "
            "to one group of states that lead to each other"
        )
    return own


def table(name: str, value: ArrayLike, axes: int) -> Array:
    """Return a new array of finite numbers with this number of axes, none of them empty."""
    try:
        array = np.array(numbers(value))
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{name} must be numbers: {error}") from None
    if array.ndim != axes or array.size == 0 or not np.isfinite(array).all():
        raise InvalidInput(f"{name} must be finite numbers with {axes} axes, got shape {array.shape}")
    return array


def garnet(
    *, n_clients: int, states: int, branching: int, dim: int, heterogeneity: float, environments: int, seed: int
) -> MarkovChains:
    """Return P_c = (1 − ε)P + ε Q_c and r_c = (1 − ε)r + ε q_c, with P, Q_c and r, q_c drawn alike.

    Each state's first successor is its next one on a random cycle through all states, so that every state is
    visited; the others are drawn without replacement. Probabilities are the pieces into which uniform points
    cut [0, 1], rewards are uniform in [0, 1], features Gaussian, scaled to norm one. Client c lives in environment
    c mod `environments`, whose own part depends on the seed and its number alone.
    """
    rng = np.random.default_rng([seed, 0])
    successors = _graph(rng, states, branching)
    features = rng.normal(size=(states, dim))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    common_kernel, common_rewards = _pieces(rng, states, branching), rng.uniform(size=states)
    kernel = np.empty((environments, states, branching))
    rewards = np.empty((environments, states))
    for c in range(environments):
        own = np.random.default_rng([seed, 1 + c])
        kernel[c] = (1.0 - heterogeneity) * common_kernel + heterogeneity * _pieces(own, states, branching)
        rewards[c] = (1.0 - heterogeneity) * common_rewards + heterogeneity * own.uniform(size=states)
    lives_in = np.arange(n_clients) % environments
    return MarkovChains(successors, kernel[lives_in], rewards[lives_in], features)


def _graph(rng: np.random.Generator, states: int, branching: int) -> NDArray[np.int64]:
    cycle = rng.permutation(states)
    successors = np.empty((states, branching), dtype=np.int64)
    for s, following in zip(cycle, np.roll(cycle, -1), strict=True):
        others = np.delete(np.arange(states), following)
        successors[s, 0] = following
        successors[s, 1:] = rng.choice(others, branching - 1, replace=False)
    return successors


def _pieces(rng: np.random.Generator, states: int, branching: int) -> Array:
    """Return the lengths of the pieces of [0, 1] between uniform points, one row per state."""
    cuts = np.sort(rng.uniform(size=(states, branching - 1)), axis=1)
    return np.diff(cuts, axis=1, prepend=0.0, append=1.0)


def matrices(chains: MarkovChains) -> Array:
    """Return P_c as full matrices, (N, states, states)."""
    n_clients, states, branching = chains.kernel.shape
    full = np.zeros((n_clients, states, states))
    for k in range(branching):
        full[:, np.arange(states), chains.successors[:, k]] += chains.kernel[:, :, k]
    return full


def stationary(chains: MarkovChains) -> Array:
    """Return μ_c with μ_cᵀP_c = μ_cᵀ and Σ_s μ_c(s) = 1, (N, states)."""
    system = _balance(chains)
    n_clients, states, _ = system.shape
    right = np.zeros((states, 1))
    right[-1] = 1.0
    law = np.maximum(np.linalg.solve(system, np.broadcast_to(right, (n_clients, states, 1)))[:, :, 0], 0.0)
    return law / law.sum(axis=1, keepdims=True)


def _balance(chains: MarkovChains) -> Array:
    """Return P_cᵀ − I with its last row replaced by ones, since one balance equation follows from the others."""
    full = matrices(chains)
    system = np.swapaxes(full, 1, 2) - np.eye(full.shape[1])
    system[:, -1, :] = 1.0
    return system


Observing = Literal["iid", "markov"]


class GarnetTD(LinearSystem):
    """A_c(s, s') = φ(s)(φ(s) − λφ(s'))ᵀ, b_c(s) = r_c(s)φ(s): TD(0) for the value of each client's chain.

    θ* solves Σ_c w_c E_c[A_c θ − b_c] = 0, s from client c's stationary law μ_c and s' from its kernel P_c; λ is
    the discount. A client's records are all transitions (s, k), k < branching, with probabilities μ_c(s)P_c(s, k).

    With sampling="iid" each transition is drawn by itself. With sampling="markov" a client follows its chain: in
    each round one stretch, whose first state is drawn from μ_c, with as many consecutive transitions as the
    round's steps use; a step takes batch_size of them. Stretches of different rounds are independent, so that a
    draw is a function of (seed, repetition, round, client, position) alone. batch_size=None takes the exact mean
    Ā_c θ − b̄_c, whatever the sampling.

    Parameters
    ----------
    n_clients
        N, the number of clients.
    states, branching
        Number of states, and number of successors of each.
    dim
        d, the number of features; at most the number of states.
    discount
        λ, at least 0 and below 1.
    heterogeneity
        ε from 0 to 1, the part of the transition probabilities and rewards that is the client's own.
    environments
        Number of different environments: client c has number c mod `environments`; by default every client has its
        own. Numbers of clients that are multiples of it share θ*, and more clients only reduce noise. Or the
        environments themselves, as `MarkovChains`: then n_clients, states, branching and dim are theirs, and
        heterogeneity and seed have no meaning.
    sampling
        "iid" or "markov".
    weights
        One positive weight per client, scaled to sum to one; uniform by default.
    seed
        Chooses the environments; the first clients are the same for any n_clients.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> problem = fs.problems.GarnetTD(n_clients=4, states=10, dim=3, sampling="markov")
    >>> problem
    GarnetTD(n_clients=4, dim=3, n_records=80)
    >>> bool(abs(problem.gradient(problem.optimum())).max() < 1e-12)
    True
    """

    kind = "td"
    l2 = 0.0

    def __init__(
        self,
        *,
        n_clients: int | None = None,
        states: int = 30,
        branching: int = 2,
        dim: int = 8,
        discount: float = 0.9,
        heterogeneity: float = 0.5,
        environments: int | MarkovChains | None = None,
        sampling: Observing = "iid",
        weights: ArrayLike | None = None,
        seed: int = 0,
    ) -> None:
        given = None
        if isinstance(environments, MarkovChains):
            given = checked_chains(environments)
            if n_clients not in (None, given.kernel.shape[0]):
                raise InvalidInput(f"environments are those of {given.kernel.shape[0]} clients, not {n_clients}")
            n_clients, states, branching = given.kernel.shape
            dim, environments = given.features.shape[1], None
        self.n_clients = n_clients = whole_number("n_clients", n_clients, least=1)
        self.dim = dim = whole_number("dim", dim, least=1)
        states, branching = whole_number("states", states, least=1), whole_number("branching", branching, least=1)
        self.environments = self.n_clients
        if environments is not None:
            self.environments = whole_number("environments", environments, least=1)
        if self.environments > self.n_clients:
            raise InvalidInput(f"environments={environments} can be at most n_clients={n_clients}")
        if branching > states or dim > states:
            raise InvalidInput(f"branching={branching} and dim={dim} can be at most states={states}")
        self.discount = not_negative("discount", discount)
        if self.discount >= 1.0:
            raise InvalidInput(f"discount must be below 1, got {self.discount!r}")
        self.heterogeneity = not_negative("heterogeneity", heterogeneity)
        if self.heterogeneity > 1.0:
            raise InvalidInput(f"heterogeneity must be at most 1, got {self.heterogeneity!r}")
        self.sampling, self.seed = choice("sampling", sampling, get_args(Observing)), seed_number("seed", seed)
        size = n_clients * states * (2 * branching * (dim + 2) + states)
        check_memory(f"{n_clients:,} clients with {states:,} states and branching={branching:,}", 8 * size)
        self.weights = client_weights(weights, self.n_clients)
        self.chains = given or garnet(
            n_clients=n_clients,
            states=states,
            branching=branching,
            dim=dim,
            heterogeneity=self.heterogeneity,
            environments=self.environments,
            seed=self.seed,
        )
        self._made_with: dict[str, Any] = {"environments": "given"}
        if given is None:
            self._made_with = {
                "heterogeneity": self.heterogeneity, "environments": self.environments, "seed": self.seed,
            }  # fmt: skip
        self.stationary = stationary(self.chains)
        records = states * branching
        self.sizes: NDArray[np.int64] = np.full(n_clients, records, dtype=np.int64)
        self.offsets: NDArray[np.int64] = records * np.arange(n_clients + 1, dtype=np.int64)
        self.x, self.margins, self.y = _records(self.chains, self.discount)
        joint = self.stationary[:, :, None] * self.chains.kernel
        self.probabilities = joint.reshape(n_clients, records)
        self.draws = _draws(self.chains, self.probabilities, chain=sampling == "markov")
        x, m = (table.reshape(n_clients, records, dim) for table in (self.x, self.margins))
        weighted = self.probabilities[:, :, None] * x
        self.client_matrices = np.swapaxes(weighted, 1, 2) @ m
        self.client_vectors = np.einsum("cid,ci->cd", weighted, self.y.reshape(n_clients, records))
        self._check_stable()
        freeze(
            *self.chains, self.stationary, self.sizes, self.offsets, self.x, self.margins, self.y, self.weights,
            self.probabilities, self.client_matrices, self.client_vectors, self.draws.ends,
            *(() if self.draws.chain is None else self.draws.chain[:2]),
        )  # fmt: skip

    def batch_gradient(self, client: int, theta: Array, rows: NDArray[np.int64]) -> Array:
        """Return the mean over some transitions of ((φ(s) − λφ(s'))ᵀθ − r(s)) φ(s)."""
        at = self.offsets[client] + rows
        return (self.margins[at] @ theta - self.y[at]) @ self.x[at] / at.size

    def client_second_moments(self) -> Array:
        """Return E_c[‖φ(s)‖² m mᵀ], m = φ(s) − λφ(s'), (N, d, d)."""
        m = self.margins.reshape(self.n_clients, -1, self.dim)
        share = self.probabilities * np.square(self.x).sum(axis=1).reshape(self.n_clients, -1)
        return np.swapaxes(share[:, :, None] * m, 1, 2) @ m

    def noise_factor(self, batches: Batches, n: int) -> float:
        """Return 1/B for independent transitions; 1 along a chain, whose transitions may be nearly the same."""
        if batches.size is None:
            return 0.0
        return 1.0 / batches.size if self.sampling == "iid" else 1.0

    def describe(self) -> dict[str, Any]:
        """Return the kind, sizes and how the environments are made."""
        return {
            "kind": self.kind,
            "n_clients": self.n_clients,
            "dim": self.dim,
            "states": int(self.chains.features.shape[0]),
            "branching": int(self.chains.successors.shape[1]),
            "discount": self.discount,
            **self._made_with,
            "sampling": self.sampling,
            "weights": self.weighting,
        }

    def _compute_fingerprint(self) -> str:
        """Return the SHA-256 of discount, sampling, weights and the environments."""
        words = f"{self.kind} {self.discount!r} {self.sampling}"
        return digest(words, self.weights, *self.chains)


def _records(chains: MarkovChains, discount: float) -> tuple[Array, Array, Array]:
    """Return φ(s), φ(s) − λφ(s') and r_c(s) of all transitions, client after client."""
    n_clients, _, branching = chains.kernel.shape
    now = np.repeat(chains.features, branching, axis=0)
    margins = now - discount * chains.features[chains.successors.reshape(-1)]
    x, m = (np.tile(table, (n_clients, 1)) for table in (now, margins))
    return x, m, np.repeat(chains.rewards.reshape(-1), branching)


def _draws(chains: MarkovChains, probabilities: Array, *, chain: bool) -> Draws:
    """Draw transitions by their probabilities, the first of a stretch or all; others start in the s' before."""
    n_clients, _, branching = chains.kernel.shape
    ends = interval_ends(probabilities).reshape(-1)
    if not chain:
        return Draws(ends)
    follows = np.tile((branching * chains.successors.reshape(-1)).astype(np.int32), n_clients)
    return Draws(ends, MarkovChain(interval_ends(chains.kernel).reshape(-1), follows, branching))
