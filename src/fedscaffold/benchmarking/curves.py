"""Squared error and costs by round of the candidates of a comparison."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedscaffold.core.types import Array

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Curve:
    """Squared error and costs of one candidate by round, from round 0 to the round in which it stopped.

    Attributes
    ----------
    name
        The name under which the method was given to `compare`.
    method
        Its type and fields, as plain data.
    n_clients
        N.
    mse
        ‖θ_t − θ*‖², (repetitions, rounds + 1).
    gradients
        Stochastic gradients per client up to each round, mean over repetitions, (rounds + 1,).
    vectors
        Vectors received and sent per client up to each round, (rounds + 1,).
    bits
        Bits received and sent per client up to each round, (rounds + 1,).
    diverged
        Whether the run ended because θ left every bound.

    Examples
    --------
    >>> import numpy as np
    >>> from fedscaffold.benchmarking import Curve
    >>> curve = Curve(name="FedAvg", method={}, n_clients=4, mse=np.array([[4.0, 1.0], [2.0, 1.0]]),
    ...               gradients=np.array([0.0, 10.0]), vectors=np.array([0.0, 2.0]),
    ...               bits=np.array([0.0, 384.0]))
    >>> curve
    Curve(FedAvg, N = 4, rounds 0 to 1, final mse 1)
    >>> curve.mean
    array([3., 1.])
    >>> curve.cost("gradients")
    array([ 0., 10.])
    """

    name: str
    method: dict[str, Any]
    n_clients: int
    mse: Array
    gradients: Array
    vectors: Array
    bits: Array
    diverged: bool = False

    def __repr__(self) -> str:
        rounds = self.mse.shape[1] - 1
        end = "diverged" if self.diverged else f"final mse {self.mean[-1]:.3g}"
        return f"Curve({self.name}, N = {self.n_clients:,}, rounds 0 to {rounds:,}, {end})"

    @property
    def mean(self) -> Array:
        """Mean squared error over the repetitions, (rounds + 1,)."""
        return self.mse.mean(axis=0)

    def cost(self, measure: str) -> Array:
        """Cost up to each round, (rounds + 1,), `measure` one of "rounds", "gradients", "vectors" and "bits"."""
        rounds = np.arange(self.mse.shape[1], dtype=np.float64)
        measures = {"rounds": rounds, "gradients": self.gradients, "vectors": self.vectors, "bits": self.bits}
        return measures[measure]


def curves_to_frame(curves: Sequence[Curve]) -> "pd.DataFrame":
    """Curves as a DataFrame with one row per curve, repetition and round.

    Parameters
    ----------
    curves
        From `compare`.

    Examples
    --------
    >>> import numpy as np
    >>> from fedscaffold.benchmarking import Curve, curves_to_frame
    >>> curve = Curve(name="FedAvg", method={}, n_clients=4, mse=np.array([[4.0, 1.0]]),
    ...               gradients=np.array([0.0, 10.0]), vectors=np.array([0.0, 2.0]),
    ...               bits=np.array([0.0, 384.0]))
    >>> curves_to_frame([curve])[["method", "n_clients", "round", "gradients_per_client", "mse"]]
       method  n_clients  round  gradients_per_client  mse
    0  FedAvg          4      0                   0.0  4.0
    1  FedAvg          4      1                  10.0  1.0
    """
    import pandas as pd

    parts = []
    for curve in curves:
        repetitions, length = curve.mse.shape
        parts.append(
            pd.DataFrame(
                {
                    "method": curve.name,
                    "settings": json.dumps(curve.method),
                    "n_clients": curve.n_clients,
                    "repetition": np.repeat(np.arange(repetitions), length),
                    "round": np.tile(np.arange(length), repetitions),
                    "gradients_per_client": np.tile(curve.gradients, repetitions),
                    "vectors_per_client": np.tile(curve.vectors, repetitions),
                    "bits_per_client": np.tile(curve.bits, repetitions),
                    "mse": curve.mse.reshape(-1),
                }
            )
        )
    return pd.concat(parts, ignore_index=True)
