"""A fitted model: equations in the table's own units, kept as readable JSON."""

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax

from fedscaffold.core.display import Summarised
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.files import json_value, read_text, write_text
from fedscaffold.core.types import Array
from fedscaffold.data.encoding import Encoding, Number, Unknown, check_records
from fedscaffold.data.tables import Label, blocks, by_name, frame_source, pick_all
from fedscaffold.inference import Coordinates, Summary
from fedscaffold.inference.summary import summary_from_plain
from fedscaffold.inference.sums import own_intercept, record_columns
from fedscaffold.problems.families import Kind

FORMAT = "fedscaffold model 1"


@dataclass(frozen=True)
class Equation:
    """z = intercept + Σ_j coefficient_j · value_j, the value of a number or 0/1 for a category."""

    intercept: float
    coefficients: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, repr=False)
class Model(Summarised):
    """A linear model in the table's own units: ŷ = z or e^z, P(second class) = 1/(1 + e^{−z}), or softmax.

    Of Cox regression e^z is the hazard over that of a row whose numbers are the means of the fitted table.

    z is an intercept plus a weighted sum of the row's numbers and of a 0/1 for each category. If the model was
    fitted with offsets or exposures, a row's offset or the logarithm of its exposure is added.

    Parameters
    ----------
    encoding
        Columns that the model reads; numbers are in the table's own units.
    equations
        One, or one per class if there are more than two.
    provenance
        Origin of the model: trainer, sizes, versions.
    standard_errors
        Standard errors of the coefficients and what belongs to them, as plain values; None if there are none.
    client_intercepts
        Whether each client has an intercept, which is not in the model: a client gets predictions from
        `with_intercept_of`, with its rows.

    Examples
    --------
    >>> import numpy as np
    >>> import pandas as pd
    >>> import fedscaffold as fs
    >>> table = pd.DataFrame({"x": np.arange(40.0), "y": 3.0 * np.arange(40.0) + 1.0, "site": ["a", "b"] * 20})
    >>> model = fs.fit(table, target="y", client="site").model
    >>> model
    <Model of 'y' | kind: ridge, features: 1, equations: 1>
    >>> fs.Model.from_json(model.to_json()) == model
    True
    """

    encoding: Encoding
    equations: tuple[Equation, ...]
    provenance: Mapping[str, Any] = field(default_factory=dict)
    standard_errors: Mapping[str, Any] | None = None
    client_intercepts: bool = False

    def __post_init__(self) -> None:
        classes = self.encoding.classes
        wanted = len(classes) if classes is not None and len(classes) > 2 else 1
        names = self.encoding.names
        if self.encoding.intercept or any(
            isinstance(column, Number) and (column.shift, column.scale) != (0.0, 1.0)
            for column in self.encoding.columns
        ):
            raise InvalidInput("a model's encoding must be in the table's own units and without an intercept")
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise InvalidInput(f"two coordinates would be called {twice!r}; rename that column")
        if len(self.equations) != wanted or any(len(e.coefficients) != len(names) for e in self.equations):
            raise InvalidInput(f"the model needs {wanted} equation(s) of {len(names)} coefficients")
        numbers = [value for e in self.equations for value in (e.intercept, *e.coefficients)]
        if not all(math.isfinite(value) for value in numbers):
            raise InvalidInput("intercepts and coefficients must be finite numbers")

    def _facts(self) -> dict[str, object]:
        facts: dict[str, object] = {
            "kind": self.kind,
            "features": len(self.encoding.names),
            "equations": len(self.equations),
        }
        return facts if self.classes is None else {**facts, "classes": len(self.classes)}

    def _title(self) -> str:
        return f"Model of {self.encoding.target!r}"

    @property
    def kind(self) -> Kind:
        """Kind of model: "ridge", "logistic", "poisson", "gamma" or "cox"."""
        return self.encoding.family.kind

    @property
    def classes(self) -> tuple[Label, ...] | None:
        """Classes of the target; None for a numeric target."""
        return self.encoding.classes

    @property
    def named_coefficients(self) -> list[tuple[str, float]]:
        """Name and value of each coefficient, the intercept last; of several classes one after another."""
        several = self.classes if len(self.equations) > 1 else None
        found = []
        for k, equation in enumerate(self.equations):
            label = "" if several is None else f"{several[k]}: "
            pairs = list(zip(self.encoding.names, equation.coefficients, strict=True))
            pairs += [] if self.encoding.family.baseline else [("intercept", equation.intercept)]
            found += [(label + name, value) for name, value in pairs]
        return found

    def summary(self) -> Summary:
        """Return coefficients with the standard errors, tests and intervals that were kept with the model."""
        if self.standard_errors is None:
            raise InvalidInput("this model has no standard errors; fit it again")
        return summary_from_plain(self.standard_errors)

    def predict(self, frame: Any, *, unknown: Unknown = "error") -> NDArray[Any]:
        """Return the predicted mean or most probable class of each row.

        Parameters
        ----------
        frame
            A table of any kind that `fedscaffold.data.from_frame` takes, with the columns that were fitted.
        unknown
            "error" to reject categories that the fitted table did not have, "ignore" to accept them.
        """
        if self.classes is None:
            return self.encoding.family.mean(self._margins(frame, unknown)[:, 0])
        return self.most_probable(self.predict_proba(frame, unknown=unknown))

    def predict_proba(self, frame: Any, *, unknown: Unknown = "error") -> Array:
        """Return the probability of each class for each row, (rows, classes); parameters as for `predict`."""
        if self.classes is None:
            raise InvalidInput(f"a {self.kind} model predicts values, not probabilities; use predict")
        margins = self._margins(frame, unknown)
        if len(self.classes) == 2:
            return np.column_stack([expit(-margins[:, 0]), expit(margins[:, 0])])
        return softmax(margins, axis=1)

    def most_probable(self, probabilities: Array) -> NDArray[Any]:
        """Return the class with the largest of the probabilities (rows, classes), for each row."""
        return np.array(self.classes)[probabilities.argmax(axis=1)]

    def _margins(self, frame: Any, unknown: Unknown, *, without_intercepts: bool = False) -> Array:
        if self.client_intercepts and not without_intercepts:
            raise InvalidInput(
                "the model does not hold the clients' intercepts; fit one to a client's rows with "
                "with_intercept_of"
            )
        x = self.encoding.encode(frame, unknown=unknown)
        slopes = np.array([equation.coefficients for equation in self.equations])
        margins = x @ slopes.T + np.array([equation.intercept for equation in self.equations])
        return margins + np.reshape(self.encoding.offsets(frame), (-1, 1))

    def with_intercept_of(self, frame: Any) -> "Model":
        """Return the model of one client: the same slopes, and the intercept that fits the client's rows best.

        Parameters
        ----------
        frame
            The client's rows, with the target; a table as for `predict`.
        """
        source = frame_source(frame)
        wanted = pick_all(source.names, self.encoding.record_columns)
        parts = [self.encoding.targets(by_name(block)) for block in blocks(source.read(wanted))]
        y = np.concatenate(parts) if parts else np.empty(0)
        if not len(y) or len(self.equations) > 1:
            raise InvalidInput("an intercept is fitted to rows, of a target with at most two classes")
        check_records(y, self.encoding)
        targets, _, weights = record_columns(y)
        z = self._margins(frame, "error", without_intercepts=True)[:, 0]
        alpha = own_intercept(self.encoding.family.problem, z, targets, weights)
        if alpha is None:
            raise InvalidInput(
                f"the target {self.encoding.target!r} is the same in all of these rows, so no intercept fits best"
            )
        equation = replace(self.equations[0], intercept=self.equations[0].intercept + alpha)
        return replace(self, equations=(equation,), client_intercepts=False)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a JSON file, which is replaced only once the new one is complete."""
        write_text(path, self.to_json())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a model that `save` wrote; nothing in the file is executed."""
        text = read_text(path, "the model")
        try:
            return cls.from_json(text)
        except InvalidInput as error:
            raise InvalidInput(f"cannot read the model {path}: {error}") from None

    def to_json(self) -> str:
        """Return the model as JSON text, from which `from_json` makes an equal model."""
        encoding = json.loads(self.encoding.to_json())
        classes = self.classes or ()
        predicted = [None] if self.classes is None else list(classes[-1:] if len(classes) == 2 else classes)
        content = {
            "format": FORMAT,
            "kind": self.kind,
            "target": self.encoding.target,
            "client": self.encoding.client,
            "classes": encoding["classes"],
            "equations": [
                {
                    **({} if label is None else {"class": label}),
                    "intercept": equation.intercept,
                    "coefficients": dict(zip(self.encoding.names, equation.coefficients, strict=True)),
                }
                for label, equation in zip(predicted, self.equations, strict=True)
            ],
            "columns": encoding["columns"],
            **({"client_intercepts": True} if self.client_intercepts else {}),
            **({"dates": encoding["dates"]} if self.encoding.dates else {}),
            **{name: value for name, value in self.encoding.further_fields().items() if name != "kind"},
            **({} if self.standard_errors is None else {"standard_errors": dict(self.standard_errors)}),
            "provenance": dict(self.provenance),
        }
        return json.dumps({**content, "digest": _digest(content)}, indent=1, allow_nan=False, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read a model from the text that `to_json` made; raise if it was changed."""
        try:
            found = json_value(text)
            if not isinstance(found, dict) or found.get("format") != FORMAT:
                raise InvalidInput(f"it is not a model that fedscaffold wrote (format {FORMAT!r})")
            if found.pop("digest") != _digest(found):
                raise InvalidInput("it was changed after fedscaffold wrote it; fit again")
            whole = {
                "format": "fedscaffold encoding 1",
                **{name: found[name] for name in ("target", "client", "classes", "columns", "kind")},
                **{name: found[name] for name in ("exposure", "offset", "weight", "status") if name in found},
                "intercept": False,
                "dates": found.get("dates", {}),
            }
            encoding = Encoding.from_json(json.dumps(whole))
            equations = tuple(
                Equation(item["intercept"], tuple(item["coefficients"][name] for name in encoding.names))
                for item in found["equations"]
            )
            errors = found.get("standard_errors")
            if errors is not None:
                summary_from_plain(errors)  # raises unless it can be read
            return cls(
                encoding=encoding,
                equations=equations,
                provenance=found["provenance"],
                standard_errors=errors,
                client_intercepts=found.get("client_intercepts") is True,
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            if isinstance(error, InvalidInput):
                raise
            raise InvalidInput(f"it is not a model that fedscaffold wrote: {error}") from None


def column_scales(encoding: Encoding) -> tuple[Array, Array]:
    """Return the shift and scale of each feature, (dim,): 0 and 1 for categories and the intercept."""
    shift, scale = np.zeros(encoding.dim), np.ones(encoding.dim)
    for column, place in zip(encoding.columns, encoding.places, strict=True):
        if isinstance(column, Number):
            shift[place], scale[place] = column.shift, column.scale
    return shift, scale


def in_own_units(
    encoding: Encoding, theta: Array, *, target_shift: float = 0.0, target_scale: float = 1.0
) -> tuple[Encoding, tuple[Equation, ...]]:
    """Return the equations for columns as they are: θ_j/scale_j, and θ_0 − Σ_j θ_j shift_j/scale_j.

    `theta` is (vectors, dim) for encoded rows. With a target that was standardised as well, the equation gives
    target_shift + target_scale · z.
    """
    shift, scale = column_scales(encoding)
    slopes = target_scale * theta / scale
    intercepts = target_shift - slopes @ shift
    if encoding.intercept:
        intercepts = intercepts + slopes[:, -1]
        slopes = slopes[:, :-1]
    columns = tuple(
        replace(column, shift=0.0, scale=1.0) if isinstance(column, Number) else column
        for column in encoding.columns
    )
    equations = tuple(
        Equation(float(intercept), tuple(map(float, row)))
        for intercept, row in zip(intercepts, slopes, strict=True)
    )
    return replace(encoding, columns=columns, intercept=False), equations


def own_units(encoding: Encoding, *, target_shift: float = 0.0, target_scale: float = 1.0) -> Coordinates:
    """Return coefficients of columns as they are; with more than two classes, of each class against the first."""
    shift, scale = column_scales(encoding)
    return Coordinates.of_features(
        encoding.names, n_intercepts=int(encoding.intercept), shift=shift, scale=scale,
        classes=encoding.classes if encoding.n_vectors > 1 else None, target_shift=target_shift,
        target_scale=target_scale,
    )  # fmt: skip


def column_spread(summary: Summary, encoding: Encoding) -> Array:
    """Return the standard deviation of each coefficient's column, (k,): 1 for a category, NaN for an intercept.

    A coefficient times this is the effect of one standard deviation, or of a category against its reference.
    """
    names, (_, spread) = own_units(encoding).names, column_scales(encoding)
    known = dict(zip(names, np.tile(spread, len(names) // encoding.dim), strict=True))
    return np.where(summary.intercepts, np.nan, [known[name] for name in summary.names])


def _digest(content: Mapping[str, Any]) -> str:
    plain = json.dumps(content, sort_keys=True, allow_nan=False, ensure_ascii=False)
    return hashlib.sha256(plain.encode("utf-8")).hexdigest()
