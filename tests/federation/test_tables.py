"""Tables of single clients under an agreement are the clients of the pooled table."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedscaffold.core.errors import InvalidInput
from fedscaffold.data import from_frame
from fedscaffold.data.encoding import Encoding, Number
from fedscaffold.flower.study.run import site_files
from fedscaffold.models.coding import Coding, standardize_target
from tests.hospitals import cancer, diabetes, wine, written


def agreed(frame: pd.DataFrame, target: str, kind: Any) -> tuple[Any, Coding]:
    problem = from_frame(
        frame, target=target, client="hospital", kind=kind, l2=0.01, standardize=True, intercept=True
    )
    standardized, shift, scale = standardize_target(problem)
    return standardized, Coding.of_problem(standardized, target_shift=shift, target_scale=scale)


@pytest.mark.parametrize(
    ("make", "target", "kind"),
    [(cancer, "diagnosis", "logistic"), (diabetes, "target", "ridge"), (wine, "target", "logistic")],
    ids=["two classes", "numbers", "three classes"],
)
def test_a_clients_problem_is_its_part_of_the_pooled_one(
    make: Callable[[], pd.DataFrame], target: str, kind: str, tmp_path: Path
) -> None:
    frame = make()
    whole, agreement = agreed(frame, target, kind)
    agreement.save(tmp_path / "agreement.json")
    assert Coding.load(tmp_path / "agreement.json") == agreement
    assert agreement.dim == whole.dim
    for c, name in enumerate(whole.client_names):
        own = frame[frame.hospital == name].drop(columns="hospital")
        for part in (agreement.problem(own), agreement.read(written(own, tmp_path / "own.parquet"))):
            same = whole.subset([c])
            np.testing.assert_array_equal(part.x, same.x)
            np.testing.assert_array_equal(part.y, same.y)
            assert part.kind == same.kind
            assert part.dim == same.dim
            np.testing.assert_array_equal(part.penalty, same.penalty)


def test_rows_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    frame = cancer()
    _, agreement = agreed(frame, "diagnosis", "logistic")
    with pytest.raises(InvalidInput, match="the target 'diagnosis' has the values 'unclear', but its classes are"):
        agreement.problem(frame.assign(diagnosis="unclear"))
    with pytest.raises(InvalidInput, match="no rows"):
        agreement.problem(frame.head(0))
    with pytest.raises(InvalidInput, match="no column 'ward'"):
        agreement.problem(frame.drop(columns="ward"))
    with pytest.raises(InvalidInput, match=r"own\.csv: the table has no column 'diagnosis'"):
        agreement.read(written(frame.drop(columns="diagnosis"), tmp_path / "own.csv"))
    numbers = diabetes()
    _, agreement = agreed(numbers, "target", "ridge")
    numbers.loc[3, "target"] = np.nan
    with pytest.raises(InvalidInput, match="missing or infinite"):
        agreement.problem(numbers)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"format": "fedscaffold agreement 1"}'])
def test_files_that_are_no_agreement(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(InvalidInput, match="is not an agreement"):
        Coding.load(tmp_path / "a.json")


def test_one_table_is_split_into_files(tmp_path: Path) -> None:
    frame = cancer()
    parts = site_files([written(frame, tmp_path / "all.csv")], "hospital", lambda: tmp_path)
    assert list(parts) == sorted(frame.hospital.unique())
    for name, file in parts.items():
        own = frame[frame.hospital == name].drop(columns="hospital").reset_index(drop=True)
        pd.testing.assert_frame_equal(pd.read_parquet(file), own)
    files = [written(frame[frame.hospital == name], tmp_path / f"{name}.csv") for name in reversed(parts)]
    assert site_files(files, None, lambda: tmp_path) == {f.stem: f.resolve() for f in reversed(files)}


def test_a_penalty_must_be_agreed_on() -> None:
    encoding = Encoding(columns=(Number(name="age", shift=0.0, scale=1.0),), target="dose", client="site")
    with pytest.raises(TypeError, match="l2"):
        Coding(encoding=encoding)  # type: ignore[call-arg]
