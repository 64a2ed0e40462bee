"""An optimiser on the server (Reddi et al. 2021, "Adaptive Federated Optimization"), around any method."""

from collections import namedtuple
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedscaffold.core.checks import choice, given, positive, set_fields
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.imports import load_optional
from fedscaffold.core.protocols import Compressor, Method
from fedscaffold.core.types import Array, Exchange, ExchangedGradients, IntArray

Optimizer = Literal["adagrad", "adam", "amsgrad", "rmsprop", "sgd", "yogi"]


@dataclass(frozen=True, kw_only=True)
class ServerOptimizer:
    """θ⁺ = θ + update(θ − θ̄), with θ̄ the θ⁺ of the wrapped method: for most Σ w_c θ_c, the mean of what was sent.

    θ − θ̄ takes the gradient's place in an optimiser. Local steps, corrections and messages are the wrapped
    method's own. Its clients update their state from θ̄ and not from the optimiser's θ⁺, so that Scaffold's
    Σ w_c ξ_c = 0 still holds; they receive both, one vector more. "sgd" with a learning rate of 1 is the method
    itself. `theory.predict` and plans cover "sgd". All other optimisers are optax's, which must be installed.

    Parameters
    ----------
    method
        The method to wrap, for example `Scaffold(step_size=0.05, local_steps=100)`.
    optimizer
        "sgd" (options: momentum, nesterov), or of optax "adam", "adagrad", "amsgrad", "rmsprop" or "yogi".
    learning_rate
        The learning rate of the server's optimiser, positive.
    options
        More arguments of the optimiser, as optax names them: {"momentum": 0.9}, {"b1": 0.9, "eps": 1e-3}. Kept as
        (name, value) pairs in the order of the names.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> method = fs.ServerOptimizer(
    ...     method=fs.Scaffold(step_size=0.05, local_steps=10), optimizer="adam", learning_rate=0.1
    ... )
    >>> method.kind, method.vectors_per_round
    ('scaffold with adam on the server', 3)
    """

    method: Method
    optimizer: Optimizer
    learning_rate: float
    options: Any = ()  # a mapping when given, pairs once kept

    def __post_init__(self) -> None:
        if isinstance(self.method, ServerOptimizer) or not hasattr(self.method, "update_clients"):
            raise InvalidInput(f"method must be a method such as Scaffold, got {given(self.method)}")
        choice("optimizer", self.optimizer, get_args(Optimizer))
        set_fields(self, learning_rate=positive("learning_rate", self.learning_rate), options=_pairs(self.options))
        _ = self._rule  # raises if the optimiser does not take the options

    @property
    def kind(self) -> str:
        """Name of the wrapped method and of the optimiser, for example "scaffold with adam on the server"."""
        return f"{self.method.kind} with {self.optimizer} on the server"

    @property
    def step_size(self) -> float:
        """γ, the step size of the wrapped method's local steps."""
        return self.method.step_size

    @property
    def vectors_per_round(self) -> int:
        """The wrapped method's, and one more, θ̄, where its clients update their state from it."""
        return self.method.vectors_per_round + int(getattr(self.method, "clients_receive_new_theta", True))

    @property
    def exchange(self) -> Exchange | None:
        """Which gradients the wrapped method exchanges."""
        return self.method.exchange

    def participants(self, n_clients: int) -> int:
        """Return the number of clients in a round of the wrapped method."""
        return self.method.participants(n_clients)

    def local_step_counts(self, n_clients: int, round_uniform: Array) -> IntArray:
        """Return the local steps of the wrapped method."""
        return self.method.local_step_counts(n_clients, round_uniform)

    def init_clients(self, repetitions: int, weights: Array, dim: int, control_variates: ArrayLike | None) -> Any:
        """Return the client state of the wrapped method."""
        return self.method.init_clients(repetitions, weights, dim, control_variates)

    def init_server(self, theta: Array) -> Any:
        """θ, θ̄, the other fields of the wrapped method's server state, and the arrays of the optimiser's state."""
        own = self.method.init_server(theta)
        state = self._rule.begin(theta)
        names = [f"optimizer_{k}" for k in range(len(state))]
        make: Any = namedtuple  # its fields depend on the optimiser
        return make("ServerOptimizerState", ["theta", "mean", *own._fields[1:], *names])(
            theta, theta, *own[1:], *state
        )

    @property
    def compressor(self) -> Compressor | None:
        """The wrapped method's compressor."""
        return self.method.compressor

    @property
    def download(self) -> None:
        """None: clients receive θ⁺ and θ̄ as vectors."""
        return None

    @property
    def pull(self) -> float:
        """The wrapped method's λ."""
        return self.method.pull

    def start(self, client_state: Any, server: Any) -> Array:
        """Return the start of the wrapped method's local steps."""
        return self.method.start(client_state, self._own(server, server.theta))

    def anchor(self, client_state: Any, server: Any) -> Array | None:
        """Return the wrapped method's anchor."""
        return self.method.anchor(client_state, self._own(server, server.theta))

    def correction(self, client_state: Any, server: Any, exchanged: ExchangedGradients | None) -> Array:
        """Return the wrapped method's ξ_c."""
        return self.method.correction(client_state, self._own(server, server.theta), exchanged)

    def message(self, client_state: Any, local: Array, server: Any, step_counts: IntArray) -> Array:
        """Return the wrapped method's message."""
        return self.method.message(client_state, local, self._own(server, server.theta), step_counts)

    def aggregate(self, server: Any, mean: Array, share: Array) -> Any:
        """θ⁺ = θ̄ + (update + (θ − θ̄)), which is θ̄ to the last bit where the update is θ̄ − θ."""
        own = self.method.aggregate(self._own(server, server.theta), mean, share)
        gradient = server.theta - own.theta
        names = [name for name in server._fields if name.startswith("optimizer_")]
        update, state = self._rule.step(gradient, [getattr(server, name) for name in names])
        return server._replace(
            theta=own.theta + (update + gradient),
            mean=own.theta,
            **{name: getattr(own, name) for name in own._fields[1:]},
            **dict(zip(names, state, strict=True)),
        )

    def update_clients(self, client_state: Any, sent: Array, before: Any, after: Any) -> Any:
        """Return the next client state of the wrapped method, as if θ⁺ were θ̄."""
        return self.method.update_clients(
            client_state, sent, self._own(before, before.theta), self._own(after, after.mean)
        )

    def safe_step_size(self, smoothness: float, strong_convexity: float) -> float:
        """Return the wrapped method's if θ⁺ lies between θ and θ̄; 0 otherwise, as none is known."""
        if self.optimizer == "sgd" and not self.options and self.learning_rate <= 1.0:
            return self.method.safe_step_size(smoothness, strong_convexity)
        return 0.0

    @property
    def _rule(self) -> Any:
        """The optimiser: `begin(theta)` returns a state, `step(gradient, state)` the update and the next state."""
        if self.optimizer == "sgd":
            unknown = dict(self.options).keys() - {"momentum", "nesterov"}
            if unknown:
                raise InvalidInput(f"sgd takes the options momentum and nesterov, got {sorted(unknown)}")
            return _Sgd(self.learning_rate, **dict(self.options))
        load_optional("optax", f"ServerOptimizer with {self.optimizer!r} needs optax", extra="jax")
        from fedscaffold.methods.optax_ import OptimizerChoice

        return OptimizerChoice(self.optimizer, self.learning_rate, self.options).checked()

    def _own(self, server: Any, theta: Array) -> Any:
        """Return the server state of the wrapped method, with this θ."""
        own = self.method.init_server(theta)
        return own._replace(**{name: getattr(server, name) for name in own._fields[1:]})


class _Sgd(NamedTuple):
    """Gradient descent with (Nesterov's) momentum: v ← mv + g, update −ηv, or −η(mv + g) with the new v."""

    learning_rate: float
    momentum: float | None = None
    nesterov: bool = False

    def begin(self, theta: Array) -> list[NDArray[Any]]:
        """Return the state before the first step: v = 0, or nothing without momentum."""
        return [] if self.momentum is None else [np.zeros_like(theta)]

    def step(self, gradient: Array, state: list[NDArray[Any]]) -> tuple[Array, list[NDArray[Any]]]:
        """Return the update to add to θ and the next state."""
        if self.momentum is None:
            return -self.learning_rate * gradient, []
        velocity = self.momentum * state[0] + gradient
        ahead = self.momentum * velocity + gradient if self.nesterov else velocity
        return -self.learning_rate * ahead, [velocity]


def _pairs(options: Any) -> tuple[tuple[str, float | bool], ...]:
    """Return the options as (name, value) pairs in the order of the names."""
    refused = InvalidInput(f"options must map names to numbers, such as {{'momentum': 0.9}}; got {given(options)}")
    try:
        found = dict(options)
    except (TypeError, ValueError):
        raise refused from None
    if not all(isinstance(name, str) and isinstance(value, bool | Real) for name, value in found.items()):
        raise refused
    return tuple((name, _plain(value)) for name, value in sorted(found.items()))


def _plain(value: Any) -> bool | float:
    """Convert a number to Python's int or float; keep a truth value."""
    if isinstance(value, bool):
        return value
    try:
        return int(value) if isinstance(value, Integral) else float(value)
    except OverflowError:
        raise InvalidInput(f"options must map names to finite numbers, got {given(value)}") from None
