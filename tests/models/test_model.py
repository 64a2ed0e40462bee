"""`Model`: predictions from raw columns, and its file."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit, softmax

from fedscaffold import InvalidInput, Model
from fedscaffold.data import from_frame
from fedscaffold.models.model import Equation, in_own_units
from tests.hospitals import cancer, diabetes, wine


def of_problem(
    frame: pd.DataFrame, target: str, kind: str, theta_seed: int = 0
) -> tuple[Model, np.ndarray, np.ndarray]:
    """A model with random coefficients, and its margins from encoded rows, (rows, vectors)."""
    problem = from_frame(
        frame, target=target, client="hospital", kind=kind, l2=0.1, standardize=True, intercept=True,  # type: ignore[arg-type]
    )  # fmt: skip
    theta = np.random.default_rng(theta_seed).normal(size=(problem.vectors, problem.n_features))
    encoding, equations = in_own_units(problem.encoding, theta)
    return Model(encoding=encoding, equations=equations), problem.encoding.encode(frame) @ theta.T, theta


def test_ridge_predicts_from_raw_columns_what_it_does_from_encoded_ones() -> None:
    frame = diabetes()
    model, margins, _ = of_problem(frame, "target", "ridge")
    np.testing.assert_allclose(model.predict(frame), margins[:, 0], rtol=0, atol=1e-9)


def test_two_classes() -> None:
    frame = cancer()
    model, margins, _ = of_problem(frame, "diagnosis", "logistic")
    shares = model.predict_proba(frame)
    np.testing.assert_allclose(shares[:, 1], expit(margins[:, 0]), atol=1e-9)
    np.testing.assert_allclose(shares.sum(axis=1), 1.0, atol=1e-12)
    assert model.classes == ("benign", "malignant")
    assert (model.predict(frame) == np.where(margins[:, 0] > 0, "malignant", "benign")).all()


def test_three_classes() -> None:
    frame = wine()
    model, margins, _ = of_problem(frame, "target", "logistic")
    np.testing.assert_allclose(model.predict_proba(frame), softmax(margins, axis=1), atol=1e-9)
    assert (model.predict(frame) == margins.argmax(axis=1)).all()


def test_a_standardised_target_is_put_back() -> None:
    frame = diabetes()
    _, margins, theta = of_problem(frame, "target", "ridge")
    problem = from_frame(frame, target="target", client="hospital", standardize=True, intercept=True)
    encoding, equations = in_own_units(problem.encoding, theta, target_shift=7.0, target_scale=3.0)
    found = Model(encoding=encoding, equations=equations).predict(frame)
    np.testing.assert_allclose(found, 7.0 + 3.0 * margins[:, 0], atol=1e-9)


def test_one_can_compute_a_prediction_by_hand_from_the_file(tmp_path: Path) -> None:
    frame = cancer()
    model, _, _ = of_problem(frame, "diagnosis", "logistic")
    model.save(tmp_path / "model.json")
    equation = json.loads((tmp_path / "model.json").read_text())["equations"][0]
    row = frame.iloc[5]
    z = equation["intercept"] + equation["coefficients"].get(
        f"ward={row['ward']}", 0.0
    )  # 0 for the reference level
    z += sum(equation["coefficients"][name] * row[name] for name in frame.columns[:8])
    assert equation["class"] == "malignant"
    assert model.predict_proba(frame)[5, 1] == pytest.approx(1 / (1 + np.exp(-z)), rel=1e-9)


@pytest.mark.parametrize(
    ("make", "target", "kind"),
    [(cancer, "diagnosis", "logistic"), (diabetes, "target", "ridge"), (wine, "target", "logistic")],
)
def test_it_comes_back_equal_from_its_file(make, target: str, kind: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    model = replace(of_problem(make(), target, kind)[0], provenance={"seed": 3, "über": "ß"})
    model.save(tmp_path / "m.json")
    assert Model.load(tmp_path / "m.json") == model


def changed(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new, 1)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda text: changed(text, '"intercept": ', '"intercept": 0.5, "was": '),
            "changed after fedscaffold wrote it",
        ),
        (lambda text: changed(text, "benign", "Benign"), "changed after fedscaffold wrote it"),
        (lambda text: changed(text, "south", "South"), "changed after fedscaffold wrote it"),
        (lambda text: text[:-40], "not a model that fedscaffold wrote"),
        (lambda text: '{"format": "another"}', "not a model that fedscaffold wrote"),
        (lambda text: "[1, 2]", "not a model that fedscaffold wrote"),
        (lambda text: changed(text, '"digest"', '"other"'), "not a model that fedscaffold wrote"),
        (lambda text: "", "not a model that fedscaffold wrote"),
    ],
)
def test_tampered_and_foreign_files_are_refused(spoil, message: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    model, _, _ = of_problem(cancer(), "diagnosis", "logistic")
    file = tmp_path / "m.json"
    file.write_text(spoil(model.to_json()))
    with pytest.raises(InvalidInput, match=message) as caught:
        Model.load(file)
    assert "\n" not in str(caught.value)
    assert str(file) in str(caught.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="No such file"):
        Model.load(tmp_path / "none.json")


def test_what_cannot_be_a_model_is_refused() -> None:
    model, _, _ = of_problem(cancer(), "diagnosis", "logistic")
    equation = model.equations[0]
    problem = from_frame(cancer(), target="diagnosis", client="hospital", kind="logistic", standardize=True)
    for equations, message in (
        ((equation, equation), "1 equation"),
        ((Equation(0.0, equation.coefficients[1:]),), "9 coefficients"),
        ((Equation(float("nan"), equation.coefficients),), "finite"),
    ):
        with pytest.raises(InvalidInput, match=message):
            replace(model, equations=equations)
    with pytest.raises(InvalidInput, match="own units"):
        replace(model, encoding=problem.encoding)


def test_two_coordinates_of_one_name_are_refused() -> None:
    frame = pd.DataFrame(
        {"hospital": ["a", "a", "b", "b"], "w": ["A", "B", "A", "B"], "w=B": [1.0, 2, 3, 5], "y": [1.0, 2, 3, 4]}
    )
    with pytest.raises(InvalidInput, match="'w=B'"):
        of_problem(frame, "y", "ridge")


def test_probabilities_of_a_number_are_refused() -> None:
    model, _, _ = of_problem(diabetes(), "target", "ridge")
    with pytest.raises(InvalidInput, match="use predict"):
        model.predict_proba(diabetes())


def test_unknown_categories() -> None:
    frame = cancer()
    model, _, _ = of_problem(frame, "diagnosis", "logistic")
    new = frame.head(3).assign(ward=["north", "attic", "south"])
    with pytest.raises(InvalidInput, match=r"'attic' in row 1"):
        model.predict(new)
    shares = model.predict_proba(new, unknown="ignore")
    names = model.encoding.names
    assert "ward=south" in names
    assert "ward=north" not in names  # the reference level, as which an unknown one is taken
    np.testing.assert_array_equal(shares[1], model.predict_proba(new.assign(ward="north"))[1])
