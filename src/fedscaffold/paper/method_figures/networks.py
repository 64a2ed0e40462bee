"""Two small networks for images of 8 × 8 pixels, in plain JAX: a perceptron and a convolutional one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedscaffold.core.types import Array

SIDE, CLASSES = 8, 10
HIDDEN = 32
CHANNELS = (8, 16)


@dataclass(frozen=True)
class Network:
    """What a loss of it is, how it names classes, and where it starts.

    Attributes
    ----------
    initial
        Random parameters: weights of variance 1/(inputs), biases 0.
    scores
        (parameters, images (n, 64)) → (n, classes).
    """

    initial: Callable[[np.random.Generator], dict[str, Array]]
    scores: Callable[[Any, Any], Any]

    def loss(self, params: Any, batch: Any) -> Any:
        """Mean cross-entropy, the mean of log Σ exp(z) − z_label, for a batch (images, labels)."""
        import jax
        import jax.numpy as jnp

        images, labels = batch
        scores = self.scores(params, images)
        own = jnp.take_along_axis(scores, labels[:, None], axis=1)[:, 0]
        return jnp.mean(jax.nn.logsumexp(scores, axis=1) - own)


def perceptron_scores(params: Any, x: Any) -> Any:
    """Scores of the classes from a network with one hidden layer, (records, classes)."""
    import jax.numpy as jnp

    return jnp.tanh(x @ params["in"] + params["in_bias"]) @ params["out"] + params["out_bias"]


def perceptron_initial(rng: np.random.Generator) -> dict[str, Array]:
    """Random initial parameters of the network with one hidden layer, 2,410 numbers."""
    return {
        "in": rng.normal(size=(SIDE**2, HIDDEN)) / SIDE,
        "in_bias": np.zeros(HIDDEN),
        "out": rng.normal(size=(HIDDEN, CLASSES)) / np.sqrt(HIDDEN),
        "out_bias": np.zeros(CLASSES),
    }


def convolutional_scores(params: Any, x: Any) -> Any:
    """Two layers of 3 × 3 convolutions, each of which halves the sides, and one dense layer."""
    import jax
    from jax import lax

    image = x.reshape(-1, SIDE, SIDE, 1)
    for layer in ("first", "second"):
        image = lax.conv_general_dilated(
            image, params[layer], window_strides=(2, 2), padding="SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )  # fmt: skip
        image = jax.nn.relu(image + params[f"{layer}_bias"])
    return image.reshape(len(x), -1) @ params["out"] + params["out_bias"]


def convolutional_initial(rng: np.random.Generator) -> dict[str, Array]:
    """Random initial parameters of the convolutional network, 1,898 numbers."""
    one, two = CHANNELS
    left = (SIDE // 4) ** 2 * two
    return {
        "first": rng.normal(size=(3, 3, 1, one)) / 3.0,
        "first_bias": np.zeros(one),
        "second": rng.normal(size=(3, 3, one, two)) / np.sqrt(9 * one),
        "second_bias": np.zeros(two),
        "out": rng.normal(size=(left, CLASSES)) / np.sqrt(left),
        "out_bias": np.zeros(CLASSES),
    }


NETWORKS = {
    "perceptron": Network(perceptron_initial, perceptron_scores),
    "convolutional": Network(convolutional_initial, convolutional_scores),
}
