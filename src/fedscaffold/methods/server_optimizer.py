"""An optimiser on the server (Reddi et al. 2021, "Adaptive Federated Optimization"), around any method."""

from collections import namedtuple
from dataclasses import dataclass
from typing import Any, Literal, get_args

from numpy.typing import ArrayLike

from fedscaffold.core.checks import positive
from fedscaffold.core.errors import InvalidInput, MissingDependency
from fedscaffold.core.protocols import Method
from fedscaffold.core.types import Array, ExchangedGradients, GradientKind, IntArray

Optimizer = Literal["adagrad", "adam", "amsgrad", "rmsprop", "sgd", "yogi"]


@dataclass(frozen=True, kw_only=True)
class ServerOptimizer:
    """θ⁺ = θ + update(θ − θ̄), with θ̄ the θ⁺ of the wrapped method: for most Σ w_c θ_c, the mean of what was sent.

    θ − θ̄ takes the gradient's place in an optimiser of optax. Local steps, corrections and what is sent are the
    wrapped method's own. Its clients remember θ̄ and not the optimiser's θ⁺, so that Scaffold's Σ w_c ξ_c = 0 holds
    all the same; they are told both, one vector more. "sgd" with a learning rate of 1 is the method itself.

    No theory speaks about it: simulate it.

    Parameters
    ----------
    method
        What clients do, for example `Scaffold(step_size=0.05, local_steps=100)`.
    optimizer
        "sgd" (with momentum, if options say so), "adam", "adagrad", "amsgrad", "rmsprop" or "yogi".
    learning_rate
        The server's, positive.
    options
        More numbers for the optimiser, as optax names them: {"momentum": 0.9}, {"b1": 0.9, "eps": 1e-3}. Kept as
        pairs in the order of their names.
    """

    method: Method
    optimizer: Optimizer
    learning_rate: float
    options: Any = ()  # a mapping when given, pairs once kept

    def __post_init__(self) -> None:
        if isinstance(self.method, ServerOptimizer) or not hasattr(self.method, "update_clients"):
            raise InvalidInput(f"method must be a method such as Scaffold, got {self.method!r}")
        if self.optimizer not in get_args(Optimizer):
            raise InvalidInput(f"optimizer must be one of {get_args(Optimizer)}, got {self.optimizer!r}")
        positive("learning_rate", self.learning_rate)
        object.__setattr__(self, "options", _pairs(self.options))
        self._choice.built()

    @property
    def kind(self) -> str:
        """In words, as no theory knows it."""
        return f"{self.method.kind} with {self.optimizer} on the server"

    @property
    def step_size(self) -> float:
        """γ, of the local steps."""
        return self.method.step_size

    @property
    def vectors_per_round(self) -> int:
        """One more than the wrapped method's, θ̄, where clients remember with the help of it."""
        return self.method.vectors_per_round + int(getattr(self.method, "remembers_theta", True))

    @property
    def exchange(self) -> GradientKind | None:
        """The wrapped method's."""
        return self.method.exchange

    def participants(self, n_clients: int) -> int:
        """The wrapped method's."""
        return self.method.participants(n_clients)

    def local_step_counts(self, n_clients: int, round_uniform: Array) -> IntArray:
        """The wrapped method's."""
        return self.method.local_step_counts(n_clients, round_uniform)

    def init_clients(self, repetitions: int, weights: Array, dim: int, control_variates: ArrayLike | None) -> Any:
        """The wrapped method's memory."""
        return self.method.init_clients(repetitions, weights, dim, control_variates)

    def init_server(self, theta: Array) -> Any:
        """θ, θ̄, what else the wrapped method's server knows, and the arrays of the optimiser's state."""
        own = self.method.init_server(theta)
        state = _optax().begin(self._choice, theta)
        names = [f"optimizer_{k}" for k in range(len(state))]
        make: Any = namedtuple  # its fields depend on the optimiser
        return make("Server", ["theta", "mean", *own._fields[1:], *names])(theta, theta, *own[1:], *state)

    def correction(self, client_state: Any, server: Any, exchanged: ExchangedGradients | None) -> Array:
        """The wrapped method's ξ_c."""
        return self.method.correction(client_state, self._own(server, server.theta), exchanged)

    def message(self, local: Array, server: Any, step_counts: IntArray) -> Array:
        """What the wrapped method sends."""
        return self.method.message(local, self._own(server, server.theta), step_counts)

    def aggregate(self, server: Any, mean: Array, share: Array) -> Any:
        """θ⁺ = θ̄ + (update + (θ − θ̄)), which is θ̄ to the last bit where the update is θ̄ − θ."""
        own = self.method.aggregate(self._own(server, server.theta), mean, share)
        gradient = server.theta - own.theta
        names = [name for name in server._fields if name.startswith("optimizer_")]
        update, state = _optax().step(self._choice, gradient, [getattr(server, name) for name in names])
        return server._replace(
            theta=own.theta + (update + gradient),
            mean=own.theta,
            **{name: getattr(own, name) for name in own._fields[1:]},
            **dict(zip(names, state, strict=True)),
        )

    def update_clients(self, client_state: Any, sent: Array, before: Any, after: Any) -> Any:
        """What the wrapped method would if θ⁺ were θ̄."""
        return self.method.update_clients(
            client_state, sent, self._own(before, before.theta), self._own(after, after.mean)
        )

    def safe_step_size(self, smoothness: float, strong_convexity: float) -> float:
        """The wrapped method's where θ⁺ lies between θ and θ̄; otherwise nothing is known, 0."""
        if self.optimizer == "sgd" and not self.options and self.learning_rate <= 1.0:
            return self.method.safe_step_size(smoothness, strong_convexity)
        return 0.0

    @property
    def _choice(self) -> Any:
        return _optax().Choice(self.optimizer, float(self.learning_rate), self.options)

    def _own(self, server: Any, theta: Array) -> Any:
        """The wrapped method's server, with this θ."""
        own = self.method.init_server(theta)
        return own._replace(**{name: getattr(server, name) for name in own._fields[1:]})


def _pairs(options: Any) -> tuple[tuple[str, float | bool], ...]:
    """Names and numbers in the order of the names."""
    refused = InvalidInput(f"options must map names to numbers, such as {{'momentum': 0.9}}; got {options!r}")
    try:
        given = dict(options)
    except (TypeError, ValueError):
        raise refused from None
    if not all(isinstance(name, str) and isinstance(value, bool | int | float) for name, value in given.items()):
        raise refused
    return tuple(sorted(given.items()))


def _optax() -> Any:
    try:
        from fedscaffold.methods import optax_
    except ImportError as error:
        raise MissingDependency("ServerOptimizer needs optax; pip install 'fedscaffold[jax]'") from error
    return optax_
