"""The benchmark beside Flower's FedAvg: what can be tested without processes."""

import pickle
from pathlib import Path

from benchmarks import flower_overhead, flower_share
from fedscaffold.federation import TrainRequest


def test_the_protocol_alone_is_timed(tmp_path: Path) -> None:
    found = flower_overhead.own_cost(tmp_path, dim=10, nodes=2, rounds=2)
    assert list(found) == ["clients", "server"]
    assert all(seconds > 0 for seconds in found.values())


def test_imports_are_timed() -> None:
    assert 0 < flower_overhead.import_cost(turns=1) < 60


def test_the_apps_are_programs() -> None:
    for text in (flower_overhead.FLOWER_APP, flower_overhead.OUR_APP):
        compile(text, "app", "exec")


def test_a_client_of_its_own_process_gets_the_request_of_a_first_round(tmp_path: Path) -> None:
    request = pickle.loads(flower_share.first_request(tmp_path / "server"))
    assert isinstance(request, TrainRequest)
    assert request.client == 0
    compile(flower_share.CLIENT, "client", "exec")
