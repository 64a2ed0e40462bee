"""Methods that the library does not have: where their classes may come from, and what nodes refuse."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array, GradientKind, IntArray, ServerState
from fedscaffold.federation import RunConfig
from fedscaffold.methods.base import BaseMethod, CohortMethod
from tests.federation.federation import Federation
from tests.samples import make


@dataclass(frozen=True, kw_only=True)
class HeavyBall(CohortMethod):
    """FedAvg whose server adds a multiple of its last change: θ⁺ = mean + β(mean − θ)."""

    kind: ClassVar[str] = "heavy ball"
    local_steps: int
    beta: float = 0.5

    def local_step_counts(self, n_clients: int, round_uniform: Array) -> IntArray:
        return np.array([[self.local_steps]])

    def safe_step_size(self, smoothness: float, strong_convexity: float) -> float:
        return 0.0

    def aggregate(self, server: ServerState, mean: Array, share: Array) -> ServerState:
        return ServerState(mean + self.beta * (mean - server.theta))


@dataclass(frozen=True, kw_only=True)
class UnequalFedLin(BaseMethod):
    """FedLin with minibatches, in which client c takes c + 1 local steps: draws must not depend on the block."""

    kind: ClassVar[str] = "unequal"
    exchange: ClassVar[GradientKind | None] = "minibatch"

    def local_step_counts(self, n_clients: int, round_uniform: Array) -> IntArray:
        return np.arange(1, n_clients + 1)[None, :]

    def safe_step_size(self, smoothness: float, strong_convexity: float) -> float:
        return 0.0

    def correction(self, client_state: Any, server: Any, exchanged: Any) -> Array:
        if exchanged is None:
            return np.zeros((1, 1, server.theta.shape[-1]))
        return exchanged.mean[:, None, :] - exchanged.own


@dataclass(frozen=True, kw_only=True)
class Scaffold(HeavyBall):
    """A class with the name of one of the library's methods."""


@dataclass(frozen=True, kw_only=True)
class WithArray(HeavyBall):
    """A method with a setting that JSON cannot hold."""

    direction: Any = None


OWN = HeavyBall(step_size=0.1, local_steps=4)


def problem() -> Any:
    return make("ridge", (6, 9, 4, 7), 3)


@pytest.mark.parametrize("method", [OWN, UnequalFedLin(step_size=0.05)], ids=lambda method: type(method).__name__)
def test_a_method_of_one_file_has_the_bits_of_the_simulation(tmp_path: Path, method: Any) -> None:
    federation = Federation(tmp_path, problem(), method, known=[type(method)])
    np.testing.assert_array_equal(federation.run(5).server.theta, federation.simulated(5).theta)


def test_a_node_without_the_method_refuses(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"the method HeavyBall is not known here: .*methods=\[HeavyBall\]"):
        Federation(tmp_path, problem(), OWN).run(1)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (Scaffold(step_size=0.1, local_steps=4), "fedscaffold has a method called Scaffold"),
        (WithArray(step_size=0.1, local_steps=4, direction=np.ones(3)), "clients cannot build it from JSON"),
        (WithArray(step_size=0.1, local_steps=4, direction=(1.0, 2.0)), "clients cannot build it from JSON"),
        (WithArray(step_size=0.1, local_steps=4, direction=OWN), "clients cannot build it from JSON"),
        (object(), "method must be a dataclass"),
    ],
)
def test_methods_that_cannot_be_announced(method: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        RunConfig(name="run", method=method, n_clients=4, dim=3)


@pytest.mark.slow
def test_server_optimizers_do_not_run_on_federations_yet() -> None:
    """Their settings hold another method; building one imports JAX."""
    method = fs.ServerOptimizer(method=fs.FedAvg(step_size=0.1, local_steps=2), optimizer="sgd", learning_rate=1.0)
    with pytest.raises(InvalidInput, match="clients cannot build it from JSON"):
        RunConfig(name="run", method=method, n_clients=4, dim=3)


@pytest.mark.parametrize(
    "name", ["marker:Method", "marker", "marker.Method", "os:system", "np", "BaseMethod", 5, None]
)
def test_nothing_is_imported_because_a_server_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: Any
) -> None:
    (tmp_path / "marker.py").write_text("class Method: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    config = RunConfig(name="run", method=fs.FedAvg(step_size=0.1, local_steps=2), n_clients=2, dim=1)
    text = json.loads(config.to_json())
    text["method"]["name"] = name
    with pytest.raises(InvalidInput, match=r"is not known here|not the configuration of a run"):
        RunConfig.from_json(json.dumps(text))
    assert "marker" not in sys.modules


ADVERTISED = """
from dataclasses import dataclass
from fedscaffold.methods import FedAvg

@dataclass(frozen=True, kw_only=True)
class Advertised(FedAvg):
    kind = "advertised"
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed distribution that advertises one method, and one that is missing."""
    (tmp_path / "own_methods.py").write_text(ADVERTISED)
    about = tmp_path / "own_methods-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: own-methods\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[fedscaffold.methods]\nAdvertised = own_methods:Advertised\nMissing = own_methods:Missing\n"
    )
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("installed")
def test_installed_distributions_advertise_methods(tmp_path: Path) -> None:
    import own_methods  # type: ignore[import-not-found]

    method = own_methods.Advertised(step_size=0.1, local_steps=4)
    federation = Federation(tmp_path / "run", problem(), method)
    np.testing.assert_array_equal(federation.run(3).server.theta, federation.simulated(3).theta)
    text = federation.config.to_json().replace('"Advertised"', '"Missing"')
    with pytest.raises(InvalidInput, match="Missing is advertised as 'own_methods:Missing', but"):
        RunConfig.from_json(text)
