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
from tests.attacks.hostile import calls, hostile, nested

SECONDS = 60  # of processor time for one call, after which it hangs; compiling a kernel takes some
FAST, SLOW = 200, 20_000


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


def attack(count: int, folder: Path, seed: int) -> tuple[int, int, list[str]]:
    """Calls with one to three arguments replaced: (accepted, refused, what went wrong, a line for each kind)."""
    rng = np.random.default_rng(seed)
    targets = calls(folder)
    names = list(targets)
    accepted, refused, wrong = 0, 0, dict[str, str]()
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
                accepted += 1
        except fs.FedScaffoldError as error:
            refused += 1
            if len(str(error)) > 2000 or "\0" in str(error):
                wrong[f"{name}: long text"] = str(error)[:200]
        except Exception as error:
            if name.startswith("Federated") and isinstance(error, ValueError | TypeError | OverflowError):
                refused += 1
                continue  # as scikit-learn's own estimators raise them
            told = {key: given_text(value) for key, value in given.items()}
            wrong[f"{name}: {type(error).__name__}"] = f"{str(error)[:150]!r} with {told}"
    return accepted, refused, [f"{key}: {text}" for key, text in sorted(wrong.items())]


@pytest.mark.parametrize("seed", range(2))
def test_random_calls(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where a text that is taken for a path leads
    assert attack(FAST // 2, tmp_path, seed)[2] == []


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("Gamma", {"offset": [10**5000]}),
        ("SitePolicy", {"methods": nested(900)}),
        ("SitePolicy", {"min_rows": iter([1])}),
        ("SitePolicy", {"draws": [10**5000]}),
        ("StudySettings", {"classes": 1e308}),
        ("StudySettings", {"classes": nested(40)}),
        ("StudySettings", {"features": np.ones(3)}),
        ("StudySettings", {"batch_size": np.array(["a", "b"])}),
        ("StudySettings", {"client_intercepts": np.zeros((0, 0))}),
        ("run", {"progress": fs.Scaffold}),
        ("plan", {"sampling": np.ones(3)}),
        ("FitSettings", {"tolerance": "../" * 2000}),
        ("FitSettings", {"dispersion": "x" * 5000}),
        ("fit", {"dates": np.array("x")}),
        ("fit", {"kind": np.array([1.0, None], dtype=object)}),
    ],
)
def test_calls_that_once_ended_in_a_raw_error(name: str, given: dict[str, Any], tmp_path: Path) -> None:
    function, good = calls(tmp_path)[name]
    (parameter,) = given
    with pytest.raises(fs.InvalidInput, match=parameter):
        function(**{**good, **given})


def test_a_reader_s_own_words_are_tamed(tmp_path: Path) -> None:
    """pyarrow's text holds the row that it could not read."""
    (tmp_path / "t.csv").write_text("a,b\n1,2\n" + "\0," * 3000 + "\n")
    with pytest.raises(fs.InvalidInput, match="cannot read") as refused:
        fs.data.from_file(tmp_path / "t.csv", target="a", client="b")
    assert "\0" not in str(refused.value)
    assert len(str(refused.value)) < 1000


@pytest.mark.slow
def test_twenty_thousand_random_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert attack(SLOW, tmp_path, 12345)[2] == []
