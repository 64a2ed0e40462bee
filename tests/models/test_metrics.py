"""Metrics against scikit-learn's."""

import numpy as np
import pyarrow as pa
import pytest
from sklearn import metrics as sk

from fedscaffold import InvalidInput, Model
from fedscaffold.data import Encoding
from fedscaffold.data.encoding import Number
from fedscaffold.models.metrics import classification_metrics, prediction_metrics, regression_metrics
from fedscaffold.models.model import Equation

RNG = np.random.default_rng(0)


def test_values() -> None:
    seen, predicted = RNG.normal(size=50), RNG.normal(size=50)
    found = regression_metrics(seen, predicted)
    assert found["rmse"] == pytest.approx(sk.root_mean_squared_error(seen, predicted))
    assert found["mae"] == pytest.approx(sk.mean_absolute_error(seen, predicted))
    assert found["r2"] == pytest.approx(sk.r2_score(seen, predicted))
    assert "r2" not in regression_metrics(np.ones(3), np.zeros(3))


def test_two_classes_with_ties() -> None:
    seen = RNG.integers(2, size=200)
    p = np.clip(np.round(0.3 * seen + RNG.random(200) * 0.7, 1), 0.01, 0.99)
    found = classification_metrics(seen, np.column_stack([1 - p, p]))
    assert found["accuracy"] == pytest.approx(sk.accuracy_score(seen, p > 0.5))
    assert found["log loss"] == pytest.approx(sk.log_loss(seen, p))
    assert found["AUC"] == pytest.approx(sk.roc_auc_score(seen, p), abs=1e-12)


def test_more_classes() -> None:
    seen = RNG.integers(3, size=100)
    shares = RNG.dirichlet(np.ones(3), size=100)
    found = classification_metrics(seen, shares)
    assert found["log loss"] == pytest.approx(sk.log_loss(seen, shares))
    assert set(found) == {"accuracy", "log loss"}


def model(classes: tuple[str, ...] | None) -> Model:
    encoding = Encoding(columns=(Number(name="x"),), target="y", client="c", classes=classes)
    return Model(encoding=encoding, equations=(Equation(0.0, (1.0,)),))


def test_rows_without_a_target_are_left_out() -> None:
    table = pa.table({"x": [1.0, 2.0, 3.0], "y": [1.0, None, 5.0]})
    assert prediction_metrics(model(None), table, np.array([1.0, 2.0, 3.0])) == (
        {"rmse": pytest.approx(np.sqrt(2.0)), "mae": 1.0, "r2": pytest.approx(0.5)},
        2,
    )


@pytest.mark.parametrize(
    ("classes", "targets", "message"),
    [
        (None, ["a", "b"], "should hold numbers"),
        (None, [None, float("nan")], "no values"),
        (("a", "b"), ["a", "z"], "'z' in row 1"),
        (("a", "b"), [1, 2], "holds int64"),
        (("a", "b"), pa.array([None, None], pa.string()), "no values"),
    ],
)
def test_targets_that_cannot_be_compared_are_refused(classes, targets, message: str) -> None:  # type: ignore[no-untyped-def]
    table = pa.table({"x": [1.0, 2.0], "y": targets})
    predicted = np.zeros(2) if classes is None else np.full((2, 2), 0.5)
    with pytest.raises(InvalidInput, match=message):
        prediction_metrics(model(classes), table, predicted)
