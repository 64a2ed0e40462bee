"""The audit by attack: below the accountant on this code, above it with planted faults."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from fedscaffold.benchmarking import audit_privacy
from fedscaffold.benchmarking.privacy_audit import gaussian_bound, guessing_bound
from fedscaffold.cli.main import app
from fedscaffold.core.random.noise import step_noise
from fedscaffold.privacy import ClientLevel, RecordLevel, epsilon


@dataclass(frozen=True, kw_only=True)
class HalfTheNoise(RecordLevel):
    """A planted fault."""

    @property
    def noise(self) -> float:
        return 0.5 * super().noise


def test_an_honest_run_passes_and_half_the_noise_does_not() -> None:
    setting: dict[str, Any] = {"noise_multiplier": 9.0, "rounds": 4, "canaries": 800, "engine": "reference"}
    honest = audit_privacy(**setting)
    assert honest.passed
    assert 0.0 < honest.attacked_gaussian < honest.accounted
    fault = audit_privacy(privacy=HalfTheNoise(clip=1.0, noise_multiplier=9.0), **setting)
    assert not fault.passed
    assert fault.attacked_gaussian > fault.accounted


def test_twice_the_clip_is_noticed() -> None:
    setting: dict[str, Any] = {"noise_multiplier": 9.0, "rounds": 4, "canaries": 800, "engine": "reference"}
    assert not audit_privacy(privacy=RecordLevel(clip=2.0, noise_multiplier=4.5), **setting).passed


class HalfTheParts(ClientLevel):
    """A planted fault."""

    def noise_scales(self, *args: Any) -> Any:
        return 0.5 * super().noise_scales(*args)


CLIENTS: dict[str, Any] = {
    "protect": "clients", "noise_multiplier": 3.0, "rounds": 4, "local_steps": 2, "canaries": 600,
    "engine": "reference",
}  # fmt: skip


def test_clients_in_sums_pass_and_half_the_noise_does_not() -> None:
    honest = audit_privacy(**CLIENTS)
    assert honest.passed
    assert 0.0 < honest.attacked_gaussian < honest.accounted
    fault = HalfTheParts(clip=1.0, noise_multiplier=3.0, summed=True)
    assert not audit_privacy(privacy=fault, **CLIENTS).passed
    wide = ClientLevel(clip=2.0, noise_multiplier=1.5, summed=True)
    assert not audit_privacy(privacy=wide, **CLIENTS).passed


@pytest.mark.slow
def test_clients_in_sums_over_seeds() -> None:
    """Twenty seeds: the bounds are 95 % sure, so that more than four failures come by chance once in 400 times."""
    found = [audit_privacy(**{**CLIENTS, "canaries": 1000, "seed": seed}) for seed in range(20)]
    assert sum(not one.passed for one in found) <= 4
    fault = HalfTheParts(clip=1.0, noise_multiplier=3.0, summed=True)
    assert not any(
        audit_privacy(**{**CLIENTS, "canaries": 1000, "seed": seed}, privacy=fault).passed for seed in range(20)
    )


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["native", "jax"])
@pytest.mark.parametrize("noise", [8.0, 20.0, 40.0])
def test_the_audit_on_every_engine(engine: str, noise: float) -> None:
    """Ten seeds each: an honest run fails by chance in 1 of 20 at most, since the bounds are 95 % sure.

    To see a fault takes canaries as the square of the noise: with 2,000 it is seen in 6 of 10 at a noise of 40.
    """
    canaries = 2000 * max(1, round(noise / 20.0)) ** 2
    honest = [
        audit_privacy(noise_multiplier=noise, engine=engine, seed=seed, canaries=canaries) for seed in range(10)
    ]
    assert sum(not one.passed for one in honest) <= 1
    half = HalfTheNoise(clip=1.0, noise_multiplier=noise)
    faults = [
        audit_privacy(noise_multiplier=noise, engine=engine, seed=seed, canaries=canaries, privacy=half)
        for seed in range(10)
    ]
    assert all(not one.passed for one in faults)


def test_bounds_are_zero_for_blind_guesses_and_grow_with_what_is_seen() -> None:
    rng = np.random.default_rng(0)
    inside = rng.random(2000) < 0.5
    blind, seen = rng.normal(size=2000), rng.normal(size=2000) + 2.0 * inside
    more: dict[str, Any] = {"delta": 1e-6, "guesses": 200, "confidence": 0.95}
    assert guessing_bound(blind, inside, **more) < 0.2
    assert guessing_bound(seen, inside, **more) > 2.0
    assert gaussian_bound(blind, inside, confidence=0.95) == 0.0
    assert 1.7 < gaussian_bound(seen, inside, confidence=0.95) < 2.0


def test_the_command() -> None:
    result = CliRunner().invoke(app, ["audit", "--canaries", "40", "--rounds", "2"])
    assert result.exit_code == 0, result.output
    assert "passed" in result.output
    clients = CliRunner().invoke(app, ["audit", "--protect", "clients", "--canaries", "40", "--rounds", "2"])
    assert clients.exit_code == 0, clients.output
    assert "at the level of clients" in clients.output
    wrong = CliRunner().invoke(app, ["audit", "--protect", "phones"])
    assert wrong.exit_code == 2
    assert "--protect must be one of" in " ".join(wrong.output.split())
    wrong = CliRunner().invoke(app, ["audit", "--canaries", "3"])
    assert wrong.exit_code == 2
    assert "--canaries must be" in " ".join(wrong.output.split())


def test_wrong_options_are_named_all_at_once() -> None:
    given = ["--noise-multiplier", "0", "--canaries", "3", "--rounds", "0"]
    wrong = CliRunner().invoke(app, ["audit", *given])
    assert wrong.exit_code == 2
    for flag in ("--noise-multiplier", "--canaries", "--rounds"):
        assert f"{flag} must be" in " ".join(wrong.output.split())
    nothing = CliRunner().invoke(app, ["audit", "--noise-multiplier", "1e-300"])
    assert nothing.exit_code == 2
    assert "too small to protect" in nothing.output


@pytest.mark.parametrize("fault", ["no clip", "one number for all coordinates", "rounds not counted"])
def test_planted_faults_are_noticed(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fewer(*, steps: int, **more: Any) -> float:
        return epsilon(steps=max(1, steps // 6), **more)

    place, wrong = {
        "no clip": ("fedscaffold.problems.base.clipped_slopes", lambda slopes, x, clip: slopes),
        "one number for all coordinates": (
            "fedscaffold.engines.reference.step_noise",
            lambda stream, step, dim: np.repeat(step_noise(stream, step, 1), dim),
        ),
        "rounds not counted": ("fedscaffold.benchmarking.privacy_audit.epsilon", fewer),
    }[fault]
    monkeypatch.setattr(place, wrong)
    assert not audit_privacy(noise_multiplier=5.0, rounds=6, canaries=800, engine="reference").passed


def test_what_the_audit_does_not_see(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise that is used twice has the right size: the attacker here adds messages up, and subtracts none."""

    def again(stream: Any, step: int, dim: int) -> Any:
        return step_noise(stream._replace(client=0), step, dim)

    monkeypatch.setattr("fedscaffold.engines.reference.step_noise", again)
    assert audit_privacy(noise_multiplier=9.0, rounds=4, canaries=400, engine="reference").passed
