"""Networks on handwritten digits: the tables and figures of docs/how-to/jax.md.

`python -m benchmarks.digits [--quick]`, some minutes. It needs JAX and scikit-learn.
"""

from typing import Any

from benchmarks import measured
from fedscaffold.paper.method_figures.digits import draw, figures, simulate

IMAGES = {"perceptron": "digits.png", "convolutional": "digits-convolutional.png"}


def main() -> None:
    """Train, print, draw and save."""
    options = measured.parser(__doc__).parse_args()
    less: dict[str, Any] = {"seeds": 1, "rounds": 2} if options.quick else {}
    numbers = {}
    for network, image in IMAGES.items():
        curves = simulate(network=network, **less)
        short = simulate(network=network, alphas=(0.1,), local_steps=2, **less)
        numbers[network] = {"steps_50": figures(curves), "steps_2": figures(short)}
        for setting, row in numbers[network].items():
            print(network, setting, row)
        if not options.quick:
            draw(curves, measured.ROOT / "docs" / "images" / image)
    note = "Rounds of five seeds, each with a split, a first network and batches of its own."
    measured.save("digits", numbers, options, note=note)


if __name__ == "__main__":
    main()
