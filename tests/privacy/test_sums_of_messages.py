"""Sums of clients' messages with noise in parts: what all of them together tell, and which methods send them."""

from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.privacy import ClientLevel
from fedscaffold.simulation.protection import MessageProtection
from tests import naive
from tests.samples import make, tables

N, T, GAMMA, H = 4, 6, 0.3, 3
PRIVACY = ClientLevel(clip=1.0, noise_multiplier=2.0, summed=True)
METHODS = {
    name: getattr(fs.methods, name)(step_size=GAMMA, local_steps=H) for name in ("GradientScaffold", "FedAvg")
}


def federation(sign: float) -> Any:
    """Client 0 wants to go so far in one direction or the other that it is always clipped; the others do not."""
    X = np.ones((N, 3, 1))
    y = np.zeros((N, 3))
    y[0] = sign * 1e6
    return fs.problems.Ridge(X, y, l2=0.1)


def seen(method: Any, sign: float, noise: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """θ after each round, (T,), with given numbers (T, N) in place of normal ones."""

    def drawn(seed: int, first: int, round: int, clients: Any, dim: int) -> Any:
        return noise[round][clients][..., None]

    monkeypatch.setattr("fedscaffold.simulation.clients.message_noise", drawn)
    run: dict[str, Any] = {"privacy": PRIVACY, "engine": "reference", "record": ()}
    return np.array([fs.run(federation(sign), method, rounds=t, **run).theta[0, 0] for t in range(1, T + 1)])


def told(method: Any, monkeypatch: pytest.MonkeyPatch) -> float:
    """How well all rounds together tell the two tables of client 0 apart: μ of N(0, 1) against N(μ, 1).

    With client 0 clipped in every round and the others never, everything is an affine function of the noise, so
    that what the server sees has a normal law, of which unit impulses of noise give the covariance.
    """
    still = np.zeros((T, N))
    begin = [seen(method, sign, still, monkeypatch) for sign in (1.0, -1.0)]
    impulses = []
    for t in range(T):
        for c in range(N):
            one = still.copy()
            one[t, c] = 1e-3
            impulses.append((seen(method, 1.0, one, monkeypatch) - begin[0]) / 1e-3)
    apart = begin[0] - begin[1]
    factors = np.array(impulses).T
    return float(np.sqrt(apart @ np.linalg.solve(factors @ factors.T, apart)))


@pytest.mark.parametrize("name", METHODS)
def test_all_sums_together_tell_what_the_accountant_says(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """T Gaussian mechanisms of sensitivity 2 · clip: μ = 2 √T / z, which this table reaches."""
    assert told(METHODS[name], monkeypatch) == pytest.approx(2.0 * np.sqrt(T) / PRIVACY.noise_multiplier, rel=1e-6)


def test_noise_that_clients_remember_would_tell_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scaffold's messages take back what was sent before: with its part of the noise, sums tell more and more."""
    usual = MessageProtection.__call__

    def remembering(self: Any, *args: Any) -> Any:
        sent, _ = usual(self, *args)
        return sent, sent

    monkeypatch.setattr(MessageProtection, "__call__", remembering)
    monkeypatch.setattr("fedscaffold.simulation.setup.check_privacy", lambda *args: None)
    scaffold = fs.Scaffold(step_size=GAMMA, local_steps=H)
    assert told(scaffold, monkeypatch) > 1.5 * (2.0 * np.sqrt(T) / PRIVACY.noise_multiplier)


@pytest.mark.parametrize("method", [
    fs.Scaffold(step_size=0.1, local_steps=2),
    fs.ProxSkip(step_size=0.1, communication_probability=0.5),
], ids=lambda method: method.kind)  # fmt: skip
def test_methods_that_remember_more_are_refused(method: Any) -> None:
    with pytest.raises(fs.InvalidInput, match=r"remember more than their last message.*GradientScaffold"):
        fs.run(make("ridge", (4, 5), 2), method, rounds=1, privacy=PRIVACY)


def test_more_honest_clients_than_there_are_is_refused() -> None:
    privacy = ClientLevel(clip=1.0, noise_multiplier=1.0, summed=True, honest_clients=3)
    with pytest.raises(fs.InvalidInput, match="at most the 2 clients"):
        fs.run(make("ridge", (4, 5), 2), METHODS["FedAvg"], rounds=1, privacy=privacy)
    with pytest.raises(fs.InvalidInput, match="noise that clients add in parts"):
        ClientLevel(clip=1.0, noise_multiplier=1.0, honest_clients=2)


def test_parts_of_the_honest_clients_suffice() -> None:
    weights = np.array([0.1, 0.2, 0.3, 0.4])
    privacy = ClientLevel(clip=2.0, noise_multiplier=3.0, summed=True, honest_clients=2)
    scales = privacy.noise_scales(weights, 0.4, 4)
    for pair in ([0, 1], [1, 3]):
        assert np.sqrt(np.sum((weights * scales)[pair] ** 2)) == pytest.approx(3.0 * 2.0 * 0.4)


@pytest.mark.parametrize("kind", ["ridge", "logistic"])
def test_a_run_is_the_pseudo_code(kind: str) -> None:
    sizes, seed, privacy = (5, 9, 6), 2**40 + 17, ClientLevel(clip=0.2, noise_multiplier=0.5, summed=True)
    X, y = tables("ridge" if kind == "ridge" else "logistic", sizes, 3, seed=3)
    problem: Any = {"ridge": fs.problems.Ridge, "logistic": fs.problems.Logistic}[kind]
    problem = problem(X, y, l2=0.2, weights=(1.0, 2.0, 0.5))
    w = problem.weights
    clients = naive.Clients(kind, [x.tolist() for x in X], [t.tolist() for t in y], 0.2, w.tolist())
    trace = fs.run(
        problem, METHODS["GradientScaffold"], rounds=T, batch_size=4, seed=seed, engine="reference",
        theta0=[1.0, 0.0, -1.0], privacy=privacy, record=("loss",),
    )  # fmt: skip
    scales = privacy.noise_scales(w, float(w.max()), 3)
    expected = naive.gradient_scaffold_in_sums(
        clients, naive.drawing(seed, sizes, 4, "with_replacement"), gamma=GAMMA, H=H, T=T, theta=[1.0, 0.0, -1.0],
        seed=seed, clip=privacy.clip, scales=scales.tolist(),
    )  # fmt: skip
    np.testing.assert_allclose(trace.theta[0], expected.theta, rtol=0, atol=1e-12)
    np.testing.assert_allclose(trace.control_variates[0], expected.control_variates, rtol=0, atol=1e-11)


@pytest.mark.parametrize("summed", [False, True])
@pytest.mark.parametrize("noise", [-1.8, -0.5, 0.4, 1.2])
def test_noise_is_not_lost_beside_a_large_model(summed: bool, noise: float) -> None:
    """Whoever chooses θ could otherwise have the clipped change rounded, here up to 4, before noise is added."""
    theta = np.full((1, 1), 2.0**53)  # beside which numbers are multiples of 2
    privacy = ClientLevel(clip=3.2, noise_multiplier=1.0, summed=summed)
    protect = MessageProtection(privacy, np.ones(1), lambda *_: np.full((1, 1, 1), noise))
    sent, _ = protect(theta[:, None] + 4.0, theta, 0, None)
    assert sent[0, 0, 0] - theta[0, 0] == 2.0 * round((3.2 + noise) / 2.0)


@pytest.mark.parametrize("values", [[np.nan, 1.0], [np.inf, 0.0], [1e300, 1e300], [-1e308, 1.0], [1e-320, 0.0]])
def test_no_message_is_longer_than_the_clip_or_not_finite(values: list[float]) -> None:
    protect = MessageProtection(PRIVACY, np.ones(1), lambda *_: np.zeros((1, 1, 2)))
    sent, known = protect(np.array([[values]]), np.zeros((1, 2)), 0, None)
    assert np.linalg.norm(sent) <= PRIVACY.clip * (1.0 + 1e-12)
    assert np.isfinite(known).all()
