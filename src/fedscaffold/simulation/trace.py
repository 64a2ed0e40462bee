"""The result of a run: final models, recorded metrics, costs and provenance."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core import npz
from fedscaffold.core.checks import choice, shown
from fedscaffold.core.display import Summarised, new_axes, plain_grid
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.files import Fields, check_writable, path_of, remove_abandoned
from fedscaffold.core.imports import load_optional
from fedscaffold.core.types import Array
from fedscaffold.simulation.stages import stationarity
from fedscaffold.simulation.stages.stationarity import MeanEstimate, Plateau

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

WHAT = "fedscaffold trace"
PER_ROUND = ("vectors_per_client", "bits_sent_per_client", "bits_received_per_client")
ARRAYS = ("theta", "control_variates", "gradients_per_client", *PER_ROUND)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Trace(Summarised):
    """The result of `fedscaffold.run`: final models, recorded metrics, costs and provenance.

    Attributes
    ----------
    theta
        Final models, (repetitions, dim).
    control_variates
        Final ξ_c, (repetitions, n_clients, dim); zero for methods without them.
    metrics
        What the observers recorded, by name: (repetitions, rounds + 1, ...) or, for averages, (repetitions, dim).
    rounds
        Number of rounds that were run.
    gradients_per_client
        Stochastic gradients computed up to each round, on average over clients, (repetitions, rounds + 1). A full
        gradient counts as as many as cover the client's records.
    vectors_per_client
        Vectors of θ's length received and sent up to each round, on average over clients, (rounds + 1,). One that
        a compressor shortens counts as one.
    bits_sent_per_client, bits_received_per_client
        Bits up to each round, on average over clients, (rounds + 1,), 64 for a number that is not compressed.
    provenance
        Method, problem and its fingerprint, theta0 ("zero" or a digest), seed, engine, versions, machine, when the
        run finished, and elapsed_seconds of the call.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> problem = fs.problems.paper("regression", n_clients=4)
    >>> trace = fs.run(problem, fs.Scaffold(step_size=0.05, local_steps=5), rounds=20, batch_size=10)
    >>> trace
    <Trace | method: Scaffold, problem: ridge, clients: 4, rounds: 20, repetitions:
      1, recorded: mse>
    >>> trace.mse.shape
    (1, 21)
    >>> trace.to_frame().columns.tolist()[:4]
    ['repetition', 'round', 'gradients_per_client', 'vectors_per_client']
    """

    theta: Array
    control_variates: Array
    metrics: Mapping[str, Array]
    rounds: int
    gradients_per_client: Array
    vectors_per_client: Array
    bits_sent_per_client: Array
    bits_received_per_client: Array
    provenance: dict[str, Any]

    @property
    def mse(self) -> Array:
        """‖θ_t − θ*‖² after each round, (repetitions, rounds + 1); recorded by default."""
        return self._recorded("mse")

    @property
    def loss(self) -> Array:
        """f(θ_t) after each round, (repetitions, rounds + 1); recorded with record=("loss",)."""
        return self._recorded("loss")

    @property
    def accuracy(self) -> Array:
        """Share of records whose class θ_t predicts, (repetitions, rounds + 1); with record=("accuracy",)."""
        return self._recorded("accuracy")

    @property
    def average(self) -> Array:
        """Average of the iterates, (repetitions, dim); recorded with record=("average",)."""
        return self._recorded("average")

    def stationary_from(self, name: str = "mse") -> int | None:
        """Return the round from which a recorded series is statistically stationary; None if it is not yet."""
        return stationarity.stationary_from(self._recorded(name))

    def plateau(self, name: str = "mse") -> Plateau | None:
        """Return the mean of the stationary part of a recorded series and its standard error; None without one."""
        from_round = self.stationary_from(name)
        return None if from_round is None else stationarity.plateau(self._recorded(name), from_round)

    def final(self, name: str = "mse") -> MeanEstimate:
        """Return the mean over repetitions of a series after the last round, with its standard error."""
        last = self._recorded(name)[:, -1]
        return MeanEstimate(float(last.mean()), float(last.std() / np.sqrt(last.size)))

    def plot(
        self,
        ax: "Axes | None" = None,
        *,
        name: str = "mse",
        x: Literal["rounds", "vectors", "gradients", "bits"] = "rounds",
        label: str | None = None,
    ) -> "Axes":
        """Draw a recorded series, its mean and, with several repetitions, their spread; return the axes.

        The vertical scale is logarithmic if all values are positive, except for accuracies.

        Parameters
        ----------
        ax
            matplotlib axes to draw on; by default a new figure's.
        name
            Which series: "mse", "loss" or "accuracy", or the name of an observer that records a number per round.
        x
            The horizontal axis: rounds, or costs per client up to each round: vectors sent and received,
            stochastic gradients (on average over the repetitions), or bits sent and received.
        label
            Name in the legend; by default the method's.

        Raises
        ------
        InvalidInput
            If the series was not recorded, or is not a number per round.
        """
        series = self._recorded(name)
        axes: dict[str, tuple[str, Array]] = {
            "rounds": ("round", np.arange(self.rounds + 1.0)),
            "vectors": ("vectors sent and received per client", self.vectors_per_client),
            "gradients": ("gradients per client", self.gradients_per_client.mean(axis=0)),
            "bits": (
                "bits sent and received per client",
                self.bits_sent_per_client + self.bits_received_per_client,
            ),
        }
        horizontal, at = axes[choice("x", x, tuple(axes))]
        if series.ndim != 2:
            raise InvalidInput(f"{name} is not a number per round; plot a series such as 'mse' or 'loss'")
        ax = new_axes(ax)
        (line,) = ax.plot(at, series.mean(axis=0), lw=1.6, label=label or self._method())
        if len(series) > 1:
            spread = (series.min(axis=0), series.max(axis=0))
            ax.fill_between(at, *spread, color=line.get_color(), alpha=0.2, lw=0)
        if name != "accuracy" and (series > 0).all():
            ax.set_yscale("log")
        ax.locator_params(axis="x", integer=True)
        ax.set_xlabel(horizontal)
        ax.set_ylabel({"mse": "$\\|\\theta_t-\\theta^*\\|^2$", "loss": "$f(\\theta_t)$"}.get(name, name))
        ax.margins(x=0)
        plain_grid(ax)
        ax.legend(frameon=False)
        return ax

    def _method(self) -> str:
        return str(self.provenance.get("method", {}).get("name", "unknown"))

    def _facts(self) -> dict[str, object]:
        problem = self.provenance.get("problem", {})
        return {
            "method": self._method(),
            "problem": problem.get("kind", "unknown"),
            "clients": f"{self.control_variates.shape[1]:,}",
            "rounds": f"{self.rounds:,}",
            "repetitions": len(self.theta),
            "recorded": ", ".join(self.metrics) or "nothing",
        }

    def _recorded(self, name: str) -> Array:
        if name not in self.metrics:
            recorded = ", ".join(map(repr, self.metrics)) or "nothing"
            raise InvalidInput(
                f"{name} was not recorded (this run recorded {recorded}); run with record=({name!r},)"
            )
        return self.metrics[name]

    def to_frame(self) -> "pd.DataFrame":
        """Return a pandas DataFrame with a row per repetition and round: costs and recorded series."""
        pd = load_optional("pandas", "to_frame needs pandas", extra="reproduce")
        repetitions = len(self.theta)
        rounds = np.tile(np.arange(self.rounds + 1), repetitions)
        columns: dict[str, NDArray[Any]] = {
            "repetition": np.repeat(np.arange(repetitions), self.rounds + 1),
            "round": rounds,
            "gradients_per_client": self.gradients_per_client.reshape(-1),
            **{name: np.tile(getattr(self, name), repetitions) for name in PER_ROUND},
        }
        for name, values in self.metrics.items():
            if values.shape == (repetitions, self.rounds + 1):
                columns[name] = values.reshape(-1)
        return pd.DataFrame(columns)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trace to one .npz file, which is replaced only once the new one is complete."""
        description = {
            "what": WHAT,
            "rounds": self.rounds,
            "provenance": self.provenance,
        }
        metrics = {f"metric/{name}": values for name, values in self.metrics.items()}
        own = {name: getattr(self, name) for name in ARRAYS}
        check_writable(path)
        remove_abandoned(path)
        npz.write(path, {**own, **metrics}, description)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Trace":
        """Read a trace that `save` wrote; nothing in the file is executed, and other files are rejected."""
        name = str(path_of(path))
        try:
            stored, description = npz.read(path)
        except (OSError, ValueError) as error:
            raise InvalidInput(f"cannot read a trace from {name}: {error}") from None
        found, arrays = Fields(description, name), Fields(stored, name)
        if "what" not in found or found.value("what") != WHAT:
            raise InvalidInput(f"{name} is not a trace")
        found.only("what", "rounds", "provenance")
        rounds, provenance = found.integer("rounds", least=0), found.fields("provenance")
        for part in ("method", "problem"):  # which `repr` reads
            if part in provenance:
                provenance.fields(part)
        repetitions, dim = arrays.array("theta", (None, None)).shape
        return cls(
            theta=arrays.array("theta", (repetitions, dim)),
            control_variates=arrays.array("control_variates", (repetitions, None, dim)),
            metrics={
                key.removeprefix("metric/"): _metric(arrays, key, repetitions)
                for key in arrays.names()
                if key not in ARRAYS
            },
            rounds=rounds,
            gradients_per_client=arrays.array("gradients_per_client", (repetitions, rounds + 1)),
            **{name: arrays.array(name, (rounds + 1,)) for name in PER_ROUND},
            provenance=description["provenance"],
        )


def _metric(arrays: Fields, key: str, repetitions: int) -> Array:
    """Return a recorded array, whose first axis is the repetitions."""
    values = arrays.value(key)
    if not key.startswith("metric/") or values.dtype.kind not in "biuf" or values.shape[:1] != (repetitions,):
        raise InvalidInput(f"{arrays.source}: {shown(key)} is not a series of {repetitions} repetitions")
    return values
