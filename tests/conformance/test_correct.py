"""No correct implementation fails: ours, and two written down in NumPy."""

from functools import partial

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.conformance import NotSupported, Task, check
from tests.conformance.implementations import Array, Bug, OneVariate, TwoSided

CORRECT = [
    pytest.param(OneVariate, Bug(), id="one variate"),
    pytest.param(TwoSided, Bug(), id="option II"),
    pytest.param(TwoSided, Bug(option=1), id="option I"),
]


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 60))])
@pytest.mark.parametrize(("implementation", "bug"), CORRECT)
def test_correct_implementations_pass(
    implementation: type[OneVariate] | type[TwoSided], bug: Bug, seed: int
) -> None:
    report = check(partial(implementation, bug=bug), seed=seed)
    assert report.failures == ()
    assert report.count("passed") == 9
    for entry in report.entries:
        assert entry.measured is not None
        if entry.name == "differs from FedAvg":
            assert entry.measured > 0.5  # ten times what is asked for
        else:
            assert entry.measured <= 1e-9  # ten times better than asked for


@pytest.mark.parametrize(("implementation", "bug"), CORRECT)
def test_float32_passes_with_its_tolerance(implementation: type[OneVariate] | type[TwoSided], bug: Bug) -> None:
    single = Bug(option=bug.option, dtype=np.float32)
    assert check(partial(implementation, bug=single), tolerance=1e-4).count("passed") == 9
    assert not check(partial(implementation, bug=single)).passed


class Library:
    """The library's Scaffold, one round at a time, on records that give the task's quadratics."""

    def __init__(self, task: Task, engine: str) -> None:
        if not task.has_equal_local_steps:
            raise NotSupported("this method takes the same number of local steps on all clients")
        roots = np.sqrt(task.dim) * np.linalg.cholesky(task.hessians).transpose(0, 2, 1)
        targets = np.einsum("cij,cj->ci", roots, task.minimisers)
        self.problem = fs.problems.Ridge(roots, targets, weights=task.weights)
        self.method = fs.Scaffold(step_size=task.step_size, local_steps=task.local_steps[0])
        self.engine, self.theta, self.xi = engine, task.theta0, np.zeros((task.n_clients, task.dim))

    def round(self, cohort: tuple[int, ...]) -> None:
        if len(cohort) < self.problem.n_clients:
            raise NotSupported("all clients take part in every round")
        trace = fs.run(
            self.problem,
            self.method,
            rounds=1,
            engine=self.engine,
            theta0=self.theta,
            control_variates0=self.xi,
            progress=False,
        )
        self.theta, self.xi = trace.theta[0], trace.control_variates[0]

    def model(self) -> Array:
        return self.theta

    def correction(self, client: int) -> Array:
        return self.xi[client]


@pytest.mark.parametrize("engine", ["reference", "numba"])
def test_ours_pass(engine: str) -> None:
    report = check(partial(Library, engine=engine))
    verdicts = {entry.name: entry.verdict for entry in report.entries}
    unsupported = {"partial participation", "unequal local steps", "restart of a client"}
    assert verdicts == {name: "not supported" if name in unsupported else "passed" for name in verdicts}
    assert report.passed
