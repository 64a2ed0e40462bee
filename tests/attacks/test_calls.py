"""Random calls with hostile values: a good result or one of fedscaffold's own errors, in one short text.

The rule: when all parameters have names that exist, whatever their values are, only `FedScaffoldError` is raised,
nothing hangs and no memory is corrupted. (Wrong names of parameters are Python's TypeError.)
"""

import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.core.checks import given as given_text
from tests.attacks.hostile import calls, hostile

SECONDS = 60  # of processor time for one call, after which it hangs; compiling a kernel takes some
FAST, SLOW = 400, 20_000


@contextmanager
def alarm(seconds: int) -> Iterator[None]:
    def hangs(*_: Any) -> None:
        raise TimeoutError(f"no answer after {seconds} s")

    before = signal.signal(signal.SIGPROF, hangs)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def attack(count: int, folder: Path, seed: int, only: tuple[str, ...] = ()) -> list[str]:
    """Calls with one to three arguments replaced; what went wrong, a line for each kind."""
    rng = np.random.default_rng(seed)
    targets = calls(folder)
    names = list(only or targets)
    wrong: dict[str, str] = {}
    for _ in range(count):
        name = names[rng.integers(len(names))]
        function, good = targets[name]
        values = hostile(folder)
        chosen = rng.choice(list(good), size=min(len(good), int(rng.integers(1, 4))), replace=False)
        given = {str(key): values[rng.integers(len(values))] for key in chosen}
        try:
            with alarm(SECONDS), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                function(**{**good, **given})
        except fs.FedScaffoldError as error:
            if len(str(error)) > 2000 or "\0" in str(error):
                wrong[f"{name}: long text"] = str(error)[:200]
        except Exception as error:
            if name.startswith("Federated") and isinstance(error, ValueError | TypeError | OverflowError):
                continue  # as scikit-learn's own estimators raise them
            told = {key: given_text(value) for key, value in given.items()}
            wrong[f"{name}: {type(error).__name__}"] = f"{str(error)[:150]!r} with {told}"
    return [f"{key}: {text}" for key, text in sorted(wrong.items())]


@pytest.mark.parametrize("seed", range(2))
def test_random_calls(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where a text that is taken for a path leads
    assert attack(FAST // 2, tmp_path, seed) == []


@pytest.mark.slow
def test_twenty_thousand_random_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert attack(SLOW, tmp_path, 12345) == []
