"""What a run leaves: arrays, and where they came from."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core import npz
from fedscaffold.core.errors import InvalidInput, MissingDependency
from fedscaffold.core.types import Array
from fedscaffold.simulation import stationarity
from fedscaffold.simulation.stationarity import Plateau

if TYPE_CHECKING:
    import pandas as pd

ARRAYS = ("theta", "control_variates", "gradients_per_client", "vectors_per_client")


@dataclass(frozen=True, kw_only=True)
class Trace:
    """The result of `fedscaffold.run`.

    Attributes
    ----------
    theta
        Final models, (repetitions, dim).
    control_variates
        Final ξ_c, (repetitions, n_clients, dim); zero for methods without them.
    metrics
        What the observers recorded, by name: (repetitions, rounds + 1, ...) or, for averages, (repetitions, dim).
    rounds
        How many rounds were run.
    gradients_per_client
        Stochastic gradients computed up to each round, on average over clients, (repetitions, rounds + 1). A full
        gradient counts as as many as cover the client's records.
    vectors_per_client
        Vectors of θ's length received and sent up to each round, on average over clients, (rounds + 1,).
    provenance
        Versions, seed, method, problem, machine.
    """

    theta: Array
    control_variates: Array
    metrics: Mapping[str, Array]
    rounds: int
    gradients_per_client: Array
    vectors_per_client: Array
    provenance: dict[str, Any]

    @property
    def mse(self) -> Array:
        """‖θ_t − θ*‖², (repetitions, rounds + 1)."""
        return self._recorded("mse")

    @property
    def loss(self) -> Array:
        """f(θ_t), (repetitions, rounds + 1); recorded on request."""
        return self._recorded("loss")

    @property
    def average(self) -> Array:
        """The averaged iterate, (repetitions, dim); recorded on request."""
        return self._recorded("average")

    def stationary_from(self, name: str = "mse") -> int | None:
        """The round from which a recorded series is statistically stationary; None if it is not, yet."""
        return stationarity.stationary_from(self._recorded(name))

    def plateau(self, name: str = "mse") -> Plateau | None:
        """Mean of a recorded series once it is stationary, with a standard error; None if it is not, yet."""
        from_round = self.stationary_from(name)
        return None if from_round is None else stationarity.plateau(self._recorded(name), from_round)

    def _recorded(self, name: str) -> Array:
        if name not in self.metrics:
            kept = ", ".join(map(repr, self.metrics)) or "nothing"
            raise InvalidInput(f"{name} was not recorded (this run kept {kept}); run with record=({name!r},)")
        return self.metrics[name]

    def to_frame(self) -> "pd.DataFrame":
        """One row per repetition and round, with costs so far and every series recorded."""
        try:
            import pandas as pd
        except ImportError as error:
            raise MissingDependency("to_frame needs pandas; pip install 'fedscaffold[reproduce]'") from error
        repetitions = len(self.theta)
        rounds = np.tile(np.arange(self.rounds + 1), repetitions)
        columns: dict[str, NDArray[Any]] = {
            "repetition": np.repeat(np.arange(repetitions), self.rounds + 1),
            "round": rounds,
            "gradients_per_client": self.gradients_per_client.reshape(-1),
            "vectors_per_client": np.tile(self.vectors_per_client, repetitions),
        }
        for name, values in self.metrics.items():
            if values.shape == (repetitions, self.rounds + 1):
                columns[name] = values.reshape(-1)
        return pd.DataFrame(columns)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to one npz file, in one go."""
        description = {
            "what": "fedscaffold trace",
            "rounds": self.rounds,
            "provenance": self.provenance,
        }
        metrics = {f"metric/{name}": values for name, values in self.metrics.items()}
        own = {name: getattr(self, name) for name in ARRAYS}
        npz.write(path, {**own, **metrics}, description)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Trace":
        """Read what `save` wrote; nothing in the file is executed."""
        try:
            stored, description = npz.read(path)
        except (OSError, ValueError) as error:
            raise InvalidInput(f"cannot read a trace from {os.fspath(path)}: {error}") from None
        if description.pop("what", None) != "fedscaffold trace":
            raise InvalidInput(f"{os.fspath(path)} is not a trace")
        try:
            own: dict[str, Any] = {name: stored.pop(name) for name in ARRAYS}
            return cls(
                **own,
                metrics={name.removeprefix("metric/"): values for name, values in stored.items()},
                **description,
            )
        except (KeyError, TypeError) as error:
            raise InvalidInput(f"{os.fspath(path)} is not a trace of this version: {error}") from None
