"""Scaffold, Algorithm 1 of "Scaffold with Stochastic Gradients: New Analysis with Linear Speed-Up".

The lines of the algorithm, and on the right the function below that does each of them:

     1  θ_0 is given, ξ_c = 0 for every client c                          init_server, init_clients
     2  for each round t = 0, ..., T − 1
     3      for each client c, in parallel
     4          θ_c ← θ_t
     5          for each local step h = 0, ..., H − 1                     local_step_counts
     6              θ_c ← θ_c − γ(g_c(θ_c) + ξ_c)                         correction (the engine does the step)
     7          end for
     8          send θ_c                                                  message
     9      the server computes θ_{t+1} = Σ_c w_c θ_c and sends it        aggregate
    10      each client: ξ_c ← ξ_c + (θ_c − θ_{t+1})/(γH)                 update_clients
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedscaffold.core.checks import set_fields, whole_number
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array, IntArray, ServerState
from fedscaffold.methods.base import (
    MOST_LOCAL_STEPS,
    CohortMethod,
    ControlVariates,
    KeepsControlVariates,
    same_for_all,
)


@dataclass(frozen=True, kw_only=True)
class Scaffold(KeepsControlVariates, CohortMethod):
    """θ_c ← θ_c − γ(g_c(θ_c) + ξ_c), H times; θ⁺ = Σ w_c θ_c; ξ_c ← ξ_c + (θ_c − θ⁺)/(γH).

    With this rule a client needs only θ⁺ to update its ξ_c, so control variates are never sent. Clients that do
    not take part in a round keep their ξ_c, and Σ w_c ξ_c = 0 still holds. Clients may take different numbers of
    steps H_c: then client c sends where H̄ steps would have led, θ + (θ_c − θ) H̄/H_c, with H̄ the mean of the H_c.

    Parameters
    ----------
    step_size
        γ > 0, the step size of the local steps.
    local_steps
        H ≥ 1, the number of local steps in a round, or a sequence with one number per client.
    participation
        Share of the clients that takes part in a round, in (0, 1].
    cohort
        Number of clients that take part in a round, instead of a share.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> method = fs.Scaffold(step_size=0.05, local_steps=10)
    >>> problem = fs.problems.RidgeStream(n_clients=4, dim=2)
    >>> trace = fs.run(problem, method, rounds=50, batch_size=5, engine="reference")
    >>> bool(trace.mse[0, -1] < 0.1 * trace.mse[0, 0])
    True
    """

    kind: ClassVar[str] = "scaffold"

    local_steps: int | Sequence[int]

    def __post_init__(self) -> None:
        super().__post_init__()
        given: Any = self.local_steps
        several = isinstance(given, Sequence) and not isinstance(given, str | bytes)
        if several or (isinstance(given, np.ndarray) and given.ndim == 1):
            each = tuple(_checked(steps) for steps in given)
            if not each:
                raise InvalidInput("local_steps must be a number, or one number per client, and not empty")
            set_fields(self, local_steps=each)
        else:
            set_fields(self, local_steps=_checked(self.local_steps))

    def participants(self, n_clients: int) -> int:
        """Return the number of clients in a round, at least two: one alone would keep its ξ_c."""
        count = super().participants(n_clients)
        if count == 1 < n_clients:
            raise InvalidInput("Scaffold needs two clients or more in a round; use TwoSidedScaffold for one")
        return count

    @property
    def mean_local_steps(self) -> float:
        """H̄, the mean number of local steps over clients."""
        return float(self.local_steps if isinstance(self.local_steps, int) else np.mean(self.local_steps))

    @property
    def uniform_local_steps(self) -> int:
        """H, if all clients take the same number of local steps; raises if they do not."""
        if isinstance(self.local_steps, Sequence):
            raise InvalidInput(f"one number of local steps is needed, but local_steps is {self.local_steps!r}")
        return int(self.local_steps)

    def local_step_counts(self, n_clients: int, round_uniform: Array) -> IntArray:
        """Line 5: H, shape (1, 1), or the clients' own H_c, shape (1, n_clients)."""
        if isinstance(self.local_steps, int):
            return same_for_all(self.local_steps)
        if len(self.local_steps) != n_clients:
            raise InvalidInput(
                f"local_steps has {len(self.local_steps)} numbers, but there are {n_clients} clients"
            )
        return np.array([self.local_steps], dtype=np.int64)

    def message(
        self, client_state: ControlVariates, local: Array, server: ServerState, step_counts: IntArray
    ) -> Array:
        """Line 8: θ_c, or θ + (θ_c − θ) H̄/H_c where clients take different numbers of steps."""
        if isinstance(self.local_steps, int):
            return local
        theta = server.theta[:, None, :]
        return theta + (local - theta) * (self.mean_local_steps / step_counts)[:, :, None]

    def update_clients(
        self, client_state: ControlVariates, sent: Array, before: ServerState, after: ServerState
    ) -> ControlVariates:
        """Line 10: ξ_c ← ξ_c + (θ_c − θ⁺)/(γH)."""
        change = sent - after.theta[:, None, :]
        change /= self.step_size * self.mean_local_steps
        change += client_state.xi
        return ControlVariates(xi=change)

    def safe_step_size(self, smoothness: float, strong_convexity: float) -> float:
        """min{1/(2L), 1/(H(L+μ))}: Lemma 4.1's conditions, under which a round with all clients contracts."""
        longest = float(np.max(self.local_steps))
        return min(0.5 / smoothness, 1.0 / (longest * (smoothness + strong_convexity)))


def _checked(local_steps: Any) -> int:
    return whole_number("local_steps", local_steps, least=1, most=MOST_LOCAL_STEPS)


ScaffLSA = Scaffold  # what Mangold et al. (2024) call it on linear stochastic approximation
