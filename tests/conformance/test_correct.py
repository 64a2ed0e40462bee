"""No correct implementation fails: ours, and two written down in NumPy."""

from functools import partial
from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.conformance import NotSupported, Task, check
from fedscaffold.conformance.checks import CHECKS
from fedscaffold.core.protocols import Engine
from fedscaffold.core.random.stream import Batches
from tests.conformance.implementations import Array, Bug, OneVariate, TwoSided

CORRECT = [
    pytest.param(OneVariate, Bug(), id="one variate"),
    pytest.param(TwoSided, Bug(), id="option II"),
    pytest.param(TwoSided, Bug(option=1), id="option I"),
]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 60))])
@pytest.mark.parametrize(("implementation", "bug"), CORRECT)
def test_correct_implementations_pass(
    implementation: type[OneVariate] | type[TwoSided], bug: Bug, seed: int
) -> None:
    report = check(partial(implementation, bug=bug), seed=seed)
    assert report.failures == ()
    assert report.count("passed") == len(CHECKS)
    for entry in report.entries:
        assert entry.measured is not None
        if entry.name == "differs from FedAvg":
            assert entry.measured > 0.5  # ten times what is asked for
        else:
            assert entry.measured <= 1e-9  # ten times better than asked for


@pytest.mark.parametrize(("implementation", "bug"), CORRECT)
def test_float32_passes_with_its_tolerance(implementation: type[OneVariate] | type[TwoSided], bug: Bug) -> None:
    single = Bug(option=bug.option, dtype=np.float32)
    assert check(partial(implementation, bug=single), tolerance=1e-4).count("passed") == len(CHECKS)


def test_float32_does_not_pass_with_the_tolerance_of_float64() -> None:
    assert not check(partial(OneVariate, bug=Bug(dtype=np.float32))).passed


class Library:
    """A method of the library as it would run at the ends of wires: a block of one for each client.

    Records are made such that clients have the task's quadratics.
    """

    def __init__(self, task: Task, method: type[fs.Scaffold | fs.TwoSidedScaffold], engine: Engine) -> None:
        self.make = method
        roots = np.sqrt(task.dim) * np.linalg.cholesky(task.hessians).transpose(0, 2, 1)
        targets = np.einsum("cij,cj->ci", roots, task.minimisers)
        self.problem = fs.problems.Ridge(roots, targets, weights=task.weights)
        self.engine = engine
        self.reconfigure(task)
        self.server = self.method.init_server(task.theta0[None])
        self.client_state = [self.method.init_clients(1, np.ones(1), task.dim, None) for _ in self.steps]

    def reconfigure(self, task: Task) -> None:
        equal = task.has_equal_local_steps
        if not equal and self.make is fs.TwoSidedScaffold:
            raise NotSupported("the two-sided method takes the same number of local steps on all clients")
        options: dict[str, Any] = {"server_step_size": 1.0} if self.make is fs.TwoSidedScaffold else {}
        self.steps: Any = task.local_steps
        steps: Any = task.local_steps[0] if equal else task.local_steps
        self.method: Any = self.make(step_size=task.step_size, local_steps=steps, **options)

    def round_with_lost_replies(self, cohort: tuple[int, ...], lost: tuple[int, ...]) -> None:
        self.round(tuple(c for c in cohort if c not in lost))  # a client changes its state when it is told so

    def save_server(self) -> Any:
        return tuple(array.copy() for array in self.server)

    def restart_server(self, saved: Any) -> None:
        self.server = type(self.server)(*(array.copy() for array in saved))

    def round(self, cohort: tuple[int, ...]) -> None:
        before, sent = self.server, {}
        with self.engine.open(self.problem, Batches(), seed=0) as local_sgd:
            for c in cohort:
                own = np.array([[self.steps[c]]])
                xi = self.method.correction(self.client_state[c], before, None)
                local = local_sgd(
                    before.theta, xi, step_size=self.method.step_size, local_steps=own, round=0,
                    clients=np.array([[c]]),
                )  # fmt: skip
                sent[c] = self.method.message(None, local, before, own)
        weights = self.problem.weights[list(cohort)]
        mean = sum(w * vector[:, 0] for w, vector in zip(weights, sent.values(), strict=True)) / weights.sum()
        self.server = self.method.aggregate(before, mean, np.array([weights.sum()]))
        for c, vector in sent.items():
            self.client_state[c] = self.method.update_clients(self.client_state[c], vector, before, self.server)

    def model(self) -> Array:
        return self.server.theta[0]

    def correction(self, client: int) -> Array:
        return self.method.correction(self.client_state[client], self.server, None)[0, 0]

    def save(self, client: int) -> Any:
        return tuple(array.tobytes() for array in self.client_state[client])

    def restart(self, client: int, saved: Any) -> None:
        shape = (1, 1, self.problem.dim)
        arrays = (np.frombuffer(each).reshape(shape) for each in saved)
        self.client_state[client] = type(self.client_state[client])(*arrays)


REFERENCE, NATIVE = fs.engines.Reference(), fs.engines.Native()


@pytest.mark.parametrize(
    ("method", "engine"),
    [
        (fs.Scaffold, NATIVE),
        (fs.TwoSidedScaffold, REFERENCE),
        pytest.param(fs.Scaffold, REFERENCE, marks=pytest.mark.slow),
        pytest.param(fs.TwoSidedScaffold, NATIVE, marks=pytest.mark.slow),
    ],
    ids=lambda each: getattr(each, "name", None),
)
def test_ours_pass(method: type[fs.Scaffold | fs.TwoSidedScaffold], engine: Engine) -> None:
    report = check(partial(Library, method=method, engine=engine))
    verdicts = {entry.name: entry.verdict for entry in report.entries}
    unsupported = {"unequal local steps"} if method is fs.TwoSidedScaffold else set()
    assert verdicts == {name: "not supported" if name in unsupported else "passed" for name in verdicts}
    assert report.passed


def test_fedavg_is_found_out() -> None:
    report = check(partial(Library, method=fs.FedAvg, engine=fs.engines.Native()))  # type: ignore[arg-type]
    assert "differs from FedAvg" in report.failures
