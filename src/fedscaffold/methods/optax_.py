"""Optimisers of optax by name: their state and their steps, as NumPy arrays with one row per repetition."""

from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from numpy.typing import NDArray

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array


class OptimizerChoice(NamedTuple):
    """An optimiser of optax and its arguments; hashable, so that runs with the same one share compiled code."""

    name: str
    learning_rate: float
    options: tuple[tuple[str, float | bool], ...]

    def checked(self) -> "OptimizerChoice":
        """Return itself; raise if optax does not take the options."""
        self._built()
        return self

    def begin(self, theta: Array) -> list[NDArray[Any]]:
        """Return the arrays of the state before the first step, each with the repetitions on its first axis."""
        with jax.enable_x64(True):
            return _on_host(jax.vmap(self._built().init)(theta))

    def step(self, gradient: Array, state: list[NDArray[Any]]) -> tuple[Array, list[NDArray[Any]]]:
        """Return the update to add to θ and the next state, each repetition by itself."""
        with jax.enable_x64(True):
            update, after = _stepped(self, gradient, state)
            return np.array(update), _on_host(after)

    def _built(self) -> Any:
        """Return optax's pair of functions (init, update)."""
        try:
            return getattr(optax, self.name)(self.learning_rate, **dict(self.options))
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"optax.{self.name} does not take these options: {error}") from None


@partial(jax.jit, static_argnums=0)
def _stepped(choice: OptimizerChoice, gradient: Any, state: list[Any]) -> tuple[Any, Any]:
    optimizer = choice._built()
    structure = jax.tree.structure(jax.eval_shape(optimizer.init, gradient[0]))
    return jax.vmap(optimizer.update)(gradient, jax.tree.unflatten(structure, state))


def _on_host(state: Any) -> list[NDArray[Any]]:
    return [np.array(leaf) for leaf in jax.tree.leaves(state)]
