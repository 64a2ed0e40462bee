"""Every bad input is refused as InvalidInput, before any work, in words that say what was wrong."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.core.random.stream import Batches
from fedscaffold.engines import Native
from fedscaffold.problems import Logistic, Ridge
from fedscaffold.simulation import TailAverage

X = [np.arange(8.0).reshape(4, 2), np.ones((3, 2))]
Y = [np.arange(4.0), np.arange(3.0)]
LABELS = [np.array([1.0, -1, 1, 1]), np.array([-1.0, -1, 1])]
NONE: Any = [[[1.0, None]]]
METHOD = fs.Scaffold(step_size=0.1, local_steps=2)


def changed(tables: list[np.ndarray[Any, Any]], client: int, place: Any, value: float) -> list[Any]:
    copies = [table.copy() for table in tables]
    copies[client][place] = value
    return copies


def run(**kwargs: Any) -> Callable[[], Any]:
    """A run with one argument wrong; its problem fails the test if it is ever asked for anything costly."""

    class Untouched(Ridge):
        def optimum(self) -> Any:
            raise AssertionError("work was done before the refusal")

        def batch_gradient(self, *args: Any) -> Any:
            raise AssertionError("work was done before the refusal")

    return lambda: fs.run(Untouched(X, Y, l2=0.1), **{"method": METHOD, "rounds": 2, **kwargs})


BAD_DATA: dict[str, tuple[Callable[[], Any], str]] = {
    "NaN in X": (lambda: Ridge(changed(X, 1, (2, 0), np.nan), Y), "X holds NaN or infinity: client 1, record 2"),
    "inf in X": (lambda: Ridge(changed(X, 0, (3, 1), np.inf), Y), "X holds NaN or infinity: client 0, record 3"),
    "-inf in y": (lambda: Ridge(X, changed(Y, 1, 0, -np.inf)), "y holds NaN or infinity: client 1, record 0"),
    "NaN label": (
        lambda: Logistic(X, changed(LABELS, 0, 1, np.nan)),
        "y holds NaN or infinity: client 0, record 1",
    ),
    "NaN in a block": (lambda: Ridge(np.full((2, 3, 2), np.nan), np.ones((2, 3))), "client 0, record 0"),
    "None in X": (lambda: Ridge(NONE, [[1.0]]), "client 0, record 0"),
    "empty client": (lambda: Ridge([X[0], np.ones((0, 2))], [Y[0], np.ones(0)]), "client 1 has no records"),
    "empty block": (lambda: Ridge(np.ones((2, 0, 3)), np.ones((2, 0))), "client 0 has no records"),
    "no clients": (lambda: Ridge([], []), "no clients"),
    "no clients in a block": (lambda: Ridge(np.ones((0, 3, 2)), np.ones((0, 3))), "no clients"),
    "no features": (lambda: Ridge(np.ones((2, 3, 0)), np.ones((2, 3))), "0 features"),
    "one table": (lambda: Ridge(X[0], Y[0]), r"X must be \(N, n, d\)"),
    "four dimensions": (lambda: Ridge(np.ones((2, 3, 4, 5)), np.ones((2, 3))), r"X must be \(N, n, d\)"),
    "vector": (lambda: Ridge(np.ones(4), np.ones(4)), r"X must be \(N, n, d\)"),
    "y too deep": (lambda: Ridge(X, X), r"y must be \(N, n\)"),
    "a number": (lambda: Ridge(3.0, Y), "X must"),
    "a number in an array": (lambda: Ridge(np.array(3.0), Y), "X must"),
    "None": (lambda: Ridge(X, None), "y must"),  # type: ignore[arg-type]
    "clients differ in number": (lambda: Ridge(X, Y[:1]), "X has 2 clients but y has 1"),
    "rows differ": (lambda: Ridge(X, [Y[0], Y[0]]), "client 1 has 3 rows in X but 4 in y"),
    "features differ": (lambda: Ridge([X[0], np.ones((3, 5))], Y), "client 1 has 5 features, client 0 has 2"),
    "labels of three kinds": (
        lambda: Logistic(X, changed(LABELS, 1, 1, 0.0)),
        "labels must be 0 and 1, or -1 and 1",
    ),
    "a label of 2": (lambda: Logistic(X, changed(LABELS, 1, 2, 2.0)), "client 1, record 2 has 2"),
    "half labels": (lambda: Logistic(X, changed(LABELS, 0, 0, 0.5)), "client 0, record 0 has 0.5"),
    "words": (lambda: Ridge([[["a", "b"]]], [[1.0]]), "X must hold numbers"),
    "words in an array": (lambda: Ridge(np.array([[["a", "b"]]]), np.ones((1, 1))), "X must hold numbers"),
    "numbers as text": (lambda: Ridge(np.array([[["1", "2"]]]), np.ones((1, 1))), "X must hold numbers"),
    "complex numbers": (lambda: Ridge(np.ones((1, 3, 2)) + 1j, np.ones((1, 3))), "X must hold numbers"),
    "dates": (lambda: Ridge(np.ones((1, 3, 2)).astype("M8[s]"), np.ones((1, 3))), "X must hold numbers"),
    "masked": (lambda: Ridge(np.ma.masked_equal(np.ones((1, 3, 2)), 1.0), np.ones((1, 3))), "mask"),
    "ragged": (lambda: Ridge([[[1.0, 2.0], [3.0]]], [[1.0, 2.0]]), "X must hold numbers"),
    "negative l2": (lambda: Ridge(X, Y, l2=-0.1), "l2 must be a number of at least 0, got -0.1"),
    "NaN l2": (lambda: Ridge(X, Y, l2=np.nan), "l2 must be"),
    "infinite l2": (lambda: Ridge(X, Y, l2=np.inf), "l2 must be"),
    "l2 as text": (lambda: Ridge(X, Y, l2="1"), "l2 must be"),  # type: ignore[arg-type]
    "too few weights": (lambda: Ridge(X, Y, weights=[1.0]), r"weights must be 2 numbers, .* got shape \(1,\)"),
    "one weight": (lambda: Ridge(X, Y, weights=1.0), "weights must be 2 numbers"),
    "weight of zero": (lambda: Ridge(X, Y, weights=[1.0, 0.0]), "weights must be positive and finite"),
    "negative weight": (lambda: Ridge(X, Y, weights=[1.0, -1.0]), "weights must be positive and finite"),
    "NaN weight": (lambda: Ridge(X, Y, weights=[1.0, np.nan]), "weights must be positive and finite"),
    "infinite weight": (lambda: Ridge(X, Y, weights=[1.0, np.inf]), "weights must be positive and finite"),
    "words as weights": (lambda: Ridge(X, Y, weights=["a", "b"]), "weights must be 2 numbers"),
}

BAD_NUMBERS: dict[str, tuple[Any, ...]] = {
    "step_size": (0.0, -1.0, np.nan, np.inf, True, "0.1", None, 1j),
    "local_steps": (0, -1, 1.5, 2.0, True, "2", None),
}
BAD_METHODS: dict[str, tuple[Callable[[], Any], str]] = {
    f"{kind.__name__}, {name}={value!r}": (
        partial(kind, **{"step_size": 0.1, "local_steps": 2, name: value}),
        f"{name} must be",
    )
    for kind in (fs.Scaffold, fs.FedAvg)
    for name, values in BAD_NUMBERS.items()
    for value in values
}

BAD_RUNS: dict[str, tuple[Callable[[], Any], str]] = {
    "rounds beyond memory": (run(rounds=10**12), "would take .* GiB"),
    "repetitions beyond memory": (run(repetitions=10**14), "would take"),
    "rounds beyond 64 bits": (run(rounds=10**400), r"at most 2\*\*63 - 1, got a huge number"),
    "a batch beyond the stream": (
        run(batch_size=2**31 - 1, method=fs.FedAvg(step_size=0.1, local_steps=1000)),
        "take fewer",
    ),
    "a path with a NUL": (run(checkpoint="a\0b"), "a path must be text"),
    "a path too long": (run(checkpoint="x" * 300), "File name too long"),
    "a path that is a number": (run(checkpoint=3), "a path must be text"),
    "an array as engine": (run(engine=np.ones(3)), "engine must be one of"),
    "an array as sampling": (run(sampling=np.ones(3)), "sampling must be one of"),
    "a class as engine": (run(engine=Native), "engine must be one of"),
    "a masked start": (run(theta0=np.ma.masked_equal([1.0, 2.0], 2.0)), "masked"),
    "a complex start": (run(theta0=[1.0, 1j]), "theta0 must hold numbers"),
    "complex control variates": (
        run(control_variates0=np.ones((2, 2)) * 1j),
        "control_variates0 must hold numbers",
    ),
    "no rounds": (run(rounds=0), "rounds must be a whole number of at least 1, got 0"),
    "half rounds": (run(rounds=1.5), "rounds must be"),
    "true rounds": (run(rounds=True), "rounds must be"),
    "no repetitions": (run(repetitions=0), "repetitions must be"),
    "negative seed": (run(seed=-1), "seed must be a whole number of at least 0"),
    "huge seed": (run(seed=2**64), r"seed must be below 2\*\*64"),
    "no seed": (run(seed=None), "seed must be"),
    "empty batch": (run(batch_size=0), "batch_size must be a whole number of at least 1"),
    "half batch": (run(batch_size=0.5), "batch_size must be"),
    "batch larger than a client": (
        run(batch_size=4, sampling="without_replacement"),
        "batch_size=4 without replacement, but client 1 has 3 records",
    ),
    "unknown sampling": (run(sampling="shuffled"), "sampling must be one of"),
    "unknown engine": (run(engine="cuda"), "engine must be one of 'auto'"),
    "no engine": (run(engine=None), "engine"),
    "unknown observer": (run(record=("error",)), "unknown observer 'error'; choose among"),
    "no classes": (
        run(record=("accuracy",)),
        "accuracy is known for Logistic, Multinomial and Torch",
    ),
    "an observer by itself": (run(record="mse"), r"for example \('mse',\)"),
    "no observers at all": (run(record=None), "record must be"),
    "a number as observer": (run(record=(5,)), "observer"),
    "an observer twice": (run(record=("mse", "mse")), "recorded once"),
    "averages twice": (run(record=("average", TailAverage(after=3))), "recorded once"),
    "theta0 of the wrong shape": (
        run(theta0=np.zeros(3)),
        r"theta0 must have shape \(2,\) or \(1, 2\), got \(3,\)",
    ),
    "theta0 for other repetitions": (run(theta0=np.zeros((3, 2)), repetitions=2), "theta0 must have shape"),
    "scalar theta0": (run(theta0=0.0), "theta0 must have shape"),
    "NaN in theta0": (run(theta0=[0.0, np.nan]), "theta0 holds NaN"),
    "words in theta0": (run(theta0=["a", "b"]), "theta0 must"),
    "unbalanced control variates": (run(control_variates0=np.ones((2, 2))), "sum to zero"),
    "NaN control variates": (run(control_variates0=np.full((2, 2), np.nan)), "control_variates0 holds NaN"),
    "wrong control variates": (
        run(control_variates0=np.zeros((3, 2))),
        r"must have shape \(2, 2\) or \(1, 2, 2\)",
    ),
    "control variates for FedAvg": (
        run(method=fs.FedAvg(step_size=0.1, local_steps=2), control_variates0=np.zeros((2, 2))),
        "FedAvg has no control variates",
    ),
    "never a checkpoint": (run(checkpoint_every=0), "checkpoint_every must be"),
    "checkpoint in no folder": (run(checkpoint="/nonexistent/folder/file"), "there is no folder"),
    "checkpoint in a file": (run(checkpoint=Path(__file__) / "file"), "there is no folder"),
    "checkpoint is a folder": (run(checkpoint=Path(__file__).parent), "it is a folder"),
    "no threads": (lambda: Native(threads=0), "threads must be a whole number of at least 1"),
    "half precision": (lambda: Native(dtype="float16"), "dtype must be one of"),  # type: ignore[arg-type]
    "average after less than nothing": (lambda: TailAverage(after=-1), "after must be"),
    "batches by themselves": (lambda: Batches(-3), "batch_size must be"),
}
EVERY = {**BAD_DATA, **BAD_METHODS, **BAD_RUNS}


@pytest.mark.parametrize("name", EVERY)
def test_refused(name: str) -> None:
    call, message = EVERY[name]
    with pytest.raises(fs.InvalidInput, match=message) as caught:
        call()
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, fs.FedScaffoldError)


def test_the_good_values_beside_them_are_accepted() -> None:
    """So that no refusal above is for the wrong reason."""
    assert Ridge(X, Y, l2=0, weights=[1, 2]).n_clients == 2
    assert Logistic(X, LABELS).n_clients == 2
    problem = Ridge(X, Y, l2=0.1)
    trace = fs.run(
        problem, METHOD, rounds=2, batch_size=3, sampling="without_replacement", seed=2**64 - 1, repetitions=2,
        theta0=np.zeros((2, 2)), control_variates0=[[1.0, 2.0], [-1.0, -2.0]], engine="reference",
    )  # fmt: skip
    assert np.isfinite(trace.theta).all()
