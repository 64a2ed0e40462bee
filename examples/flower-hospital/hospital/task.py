"""The settings that server and hospitals share: columns, their scales, the model, the method."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import fedscaffold as fs
from fedscaffold.core.types import Array
from fedscaffold.data.encoding import Encoding, Number
from fedscaffold.federation import Agreement
from fedscaffold.models.model import in_own_units

# A typical value and a typical deviation, in round numbers. Means and deviations of the tables would be slightly
# better, but hospitals would have to disclose them.
COLUMNS = {
    "mean radius": (14.0, 3.5),
    "mean texture": (19.0, 4.0),
    "mean smoothness": (0.1, 0.015),
    "mean compactness": (0.1, 0.05),
    "mean concavity": (0.1, 0.08),
    "mean concave points": (0.05, 0.04),
    "mean symmetry": (0.18, 0.03),
    "mean fractal dimension": (0.06, 0.007),
}
AGREEMENT = Agreement(
    encoding=Encoding(
        columns=tuple(Number(name=name, shift=usual, scale=spread) for name, (usual, spread) in COLUMNS.items()),
        target="diagnosis",
        client="hospital",
        classes=("benign", "malignant"),
        intercept=True,
    ),
    l2=0.01,
)


def method(config: Mapping[str, Any]) -> fs.Scaffold:
    """Return the method, the same object in a simulation and on Flower."""
    return fs.Scaffold(step_size=config["step-size"], local_steps=config["local-steps"])


def model(theta: Array) -> fs.Model:
    """Return θ as a model of the columns in their units."""
    encoding, equations = in_own_units(AGREEMENT.encoding, theta[None, :])
    return fs.Model(encoding=encoding, equations=equations, provenance={"app": "flower-hospital"})


def pooled(tables: Sequence[Path]) -> fs.problems.Logistic:
    """Return the problem of all hospitals, for a simulation only."""
    parts = [AGREEMENT.read(table) for table in tables]
    return fs.problems.Logistic(
        [part.x for part in parts], [part.y for part in parts], l2=AGREEMENT.l2,
        weights=[len(part.y) for part in parts], n_unpenalised=1,
    )  # fmt: skip
