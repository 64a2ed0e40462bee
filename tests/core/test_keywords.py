"""Unknown keyword arguments of public functions and classes are answered with the name that was probably meant."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.sklearn import FederatedLogisticRegression, FederatedRidge

RIDGE: Any = fs.problems.Ridge
PROBLEM = RIDGE(np.ones((2, 3, 2)), np.ones((2, 3)), l2=0.1)
METHOD = fs.Scaffold(step_size=0.1, local_steps=2)
CASES: list[tuple[Callable[..., Any], tuple[Any, ...], str, str]] = [
    (fs.run, (PROBLEM, METHOD), "n_rounds", "rounds"),
    (fs.run, (PROBLEM, METHOD), "random_state", "seed"),
    (fs.run, (PROBLEM, METHOD), "bach_size", "batch_size"),
    (fs.Scaffold, (), "lr", "step_size"),
    (fs.FedAvg, (), "learning_rate", "step_size"),
    (fs.FedProx, (), "local_epochs", "local_steps"),
    (fs.Tamuna, (), "gamma", "step_size"),
    (fs.problems.Ridge, (), "alpha", "l2"),
    (fs.problems.RidgeStream, (), "num_clients", "n_clients"),
    (fs.plan, (PROBLEM,), "n_rounds", "max_rounds"),
    (fs.fit, (None,), "alpha", "l2"),
    (FederatedRidge, (), "l2", "alpha"),
    (FederatedLogisticRegression, (), "tolerence", "tolerance"),
]


@pytest.mark.parametrize(("function", "args", "wrong", "meant"), CASES)
def test_the_name_that_was_meant_is_suggested(
    function: Callable[..., Any], args: tuple[Any, ...], wrong: str, meant: str
) -> None:
    with pytest.raises(TypeError, match=rf"unexpected keyword argument '{wrong}'; did you mean '{meant}'\?"):
        function(*args, **{wrong: 1})
    assert meant in inspect.signature(function).parameters


def test_names_like_no_other_get_no_suggestion() -> None:
    with pytest.raises(TypeError, match=r"Scaffold\(\) got an unexpected keyword argument 'zzz'$"):
        fs.Scaffold(zzz=1)  # type: ignore[call-arg]
