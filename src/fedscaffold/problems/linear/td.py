"""Federated TD(0) with linear features, on Garnet environments."""

from __future__ import annotations  # so that help() shows ArrayLike, not what it stands for

from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedscaffold.core.checks import choice, not_negative, seed_number, whole_number
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.random.batches import Batches
from fedscaffold.core.random.draws import Draws, MarkovChain, interval_ends
from fedscaffold.core.storage.memory_limit import check_memory
from fedscaffold.core.types import Array
from fedscaffold.problems.base import digest, freeze
from fedscaffold.problems.client_arrays import client_weights
from fedscaffold.problems.linear.garnet import MarkovChains, checked_chains, garnet, stationary
from fedscaffold.problems.linear.linear_sa import LinearSA
from fedscaffold.problems.linear.mean_system import LinearSystem

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
        """Mean over some transitions of ((φ(s) − λφ(s'))ᵀθ − r(s)) φ(s)."""
        at = self.offsets[client] + rows
        return (self.margins[at] @ theta - self.y[at]) @ self.x[at] / at.size

    def mean_field(self) -> LinearSA:
        """Ā_c θ − b̄_c as the only record of each client."""
        return LinearSA(self.client_matrices[:, None], self.client_vectors[:, None], weights=self.weights)

    def client_second_moments(self) -> Array:
        """E_c[‖φ(s)‖² m mᵀ], m = φ(s) − λφ(s'), (N, d, d)."""
        m = self.margins.reshape(self.n_clients, -1, self.dim)
        share = self.probabilities * np.square(self.x).sum(axis=1).reshape(self.n_clients, -1)
        return np.swapaxes(share[:, :, None] * m, 1, 2) @ m

    def noise_factor(self, batches: Batches, n: int) -> float:
        """1/B for independent transitions; 1 along a chain, where those of a batch may be nearly the same."""
        if batches.size is None:
            return 0.0
        return 1.0 / batches.size if self.sampling == "iid" else 1.0

    def describe(self) -> dict[str, Any]:
        """The kind, sizes and how the environments are made."""
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
        """SHA-256 of discount, sampling, weights and the environments."""
        words = f"{self.kind} {self.discount!r} {self.sampling}"
        return digest(words, self.weights, *self.chains)


def _records(chains: MarkovChains, discount: float) -> tuple[Array, Array, Array]:
    """φ(s), φ(s) − λφ(s') and r_c(s) of all transitions, client after client."""
    n_clients, _, branching = chains.kernel.shape
    now = np.repeat(chains.features, branching, axis=0)
    margins = now - discount * chains.features[chains.successors.reshape(-1)]
    x, m = (np.tile(table, (n_clients, 1)) for table in (now, margins))
    return x, m, np.repeat(chains.rewards.reshape(-1), branching)


def _draws(chains: MarkovChains, probabilities: Array, *, chain: bool) -> Draws:
    """Transitions by their probabilities, the first of a stretch or all; those that follow one start in its s'."""
    n_clients, _, branching = chains.kernel.shape
    ends = interval_ends(probabilities).reshape(-1)
    if not chain:
        return Draws(ends)
    follows = np.tile((branching * chains.successors.reshape(-1)).astype(np.int32), n_clients)
    return Draws(ends, MarkovChain(interval_ends(chains.kernel).reshape(-1), follows, branching))
