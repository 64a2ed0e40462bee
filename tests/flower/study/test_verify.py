"""`verify`: the result again from the coordinator's folder alone, and what it says about changes."""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedscaffold.core import npz
from fedscaffold.core.errors import InvalidInput
from fedscaffold.federation.study.study import conduct
from fedscaffold.federation.verify import begin_bundle, save_result, signed_log, verify
from tests.flower.study.studies import SITES, Deployment


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Path]]:
    """The folder of a finished study, and the files that its sites publish."""
    folder = tmp_path_factory.mktemp("study")
    deployed = Deployment(folder, evaluate=0.2)
    with deployed.answering(folder / "share"):
        deployed.conduct(folder / "share")
    files = []
    for site, joined in deployed.joined.items():
        files.append(folder / f"{site}.log.json")
        files[-1].write_text(json.dumps(signed_log(joined.open())))
        files.append(joined.folder / "result.json")
    return deployed.out, files


@pytest.fixture
def bundle(finished: tuple[Path, list[Path]], tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished[0], tmp_path / "out"))


def test_an_honest_study(finished: tuple[Path, list[Path]], bundle: Path) -> None:
    before = {path: path.read_bytes() for path in bundle.rglob("*") if path.is_file()}
    found = verify(bundle, finished[1])
    assert found.problems == ()
    assert len(found.agreed) >= 1 + 2 * len(SITES)
    assert {path: path.read_bytes() for path in bundle.rglob("*") if path.is_file()} == before


def test_another_model(bundle: Path) -> None:
    file = bundle / "for-sites.json"
    values = json.loads(file.read_text())
    values["theta"][0] += 1e-9
    file.write_text(json.dumps(values))
    assert "the model with its certificate differs" in verify(bundle).problems[0]


def test_another_answer_of_a_site(finished: tuple[Path, list[Path]], bundle: Path) -> None:
    """A coordinator that changes one number of one message after the fact."""
    file = sorted((bundle / "exchanges").glob("exchange-*.npz"))[-2]
    arrays, description = npz.read(file)
    name = next(name for name in arrays if arrays[name].dtype == np.uint64)
    arrays[name] = arrays[name].copy()
    arrays[name][0] ^= np.uint64(1)
    npz.write(file, arrays, description)
    problems = verify(bundle, finished[1]).problems
    assert problems


def test_a_log_that_was_changed_or_is_of_a_stranger(
    finished: tuple[Path, list[Path]], bundle: Path, tmp_path: Path
) -> None:
    values = json.loads(finished[1][0].read_text())
    file = tmp_path / "log.json"
    file.write_text(json.dumps({**values, "sent": {}}))
    assert "was not signed by the key of site bonn" in verify(bundle, [file]).problems[0]
    file.write_text(json.dumps({**values, "site": "ulm\x1b[2J"}))
    (problem,) = verify(bundle, [file]).problems
    assert "does not have: ulm\\x1b[2J" in problem
    file.write_text("rubbish")
    assert "is not JSON" in verify(bundle, [file]).problems[0]


def test_a_result_that_a_site_was_told(finished: tuple[Path, list[Path]], bundle: Path, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    file.write_text(json.dumps({**json.loads(finished[1][1].read_text()), "reached": "maybe"}))
    assert f"the result in {file} differs" in verify(bundle, [file]).problems[0]


def test_a_study_that_is_not_complete(bundle: Path, tmp_path: Path) -> None:
    sorted((bundle / "exchanges").glob("exchange-*.npz"))[-1].unlink()
    assert "an answer is missing" in verify(bundle).problems[0]
    with pytest.raises(InvalidInput, match="cannot read the plan"):
        verify(tmp_path / "none")


def test_a_training_that_was_planned_by_the_duration_of_exchanges(tmp_path: Path) -> None:
    """The number of local steps depends on how long an exchange took, which is kept with it."""
    deployed = Deployment(tmp_path, trainer="scaffold", tolerance=0.2)
    transport = deployed.post(tmp_path / "share")
    with deployed.answering(tmp_path / "share"):
        begin_bundle(deployed.out, deployed.plan, deployed.keys)
        save = partial(save_result, deployed.out)
        usual = transport.exchange

        def slow(requests: Any) -> Any:
            found = usual(requests)
            transport.last_seconds = 30.0
            return found

        transport.exchange = slow  # type: ignore[method-assign]
        conduct(deployed.plan, transport, keys=deployed.keys, folder=deployed.out, save=save)
    assert verify(deployed.out).problems == ()


def test_a_study_under_a_privacy_budget(tmp_path: Path) -> None:
    """Noise is the sites', and kept with their messages: the same model comes again."""
    columns = {"age": {"range": (0, 100)}, "dose": {"range": (0, 40)}, "ill": {"levels": ("no", "yes")}}
    private: dict[str, Any] = {"epsilon": 8.0, "delta": 1e-3, "l2": 0.1, "kind": "logistic", "columns": columns}
    deployed = Deployment(tmp_path, **private)
    with deployed.answering(tmp_path / "share"):
        deployed.conduct(tmp_path / "share")
    files = [joined.folder / "result.json" for joined in deployed.joined.values()]
    assert verify(deployed.out, files).problems == ()
