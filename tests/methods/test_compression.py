"""Compressors: bias, variance and bits, masks, and what a run counts."""

from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.core.random.draws import MessageDraws
from fedscaffold.core.types import Array
from fedscaffold.methods.compression import compressor_of
from fedscaffold.methods.compression.masks import CoordinateMasks
from fedscaffold.problems.paper import conditioned
from tests.samples import make

UNBIASED = ("identity", "random_k:0.25", "natural", "quantised:4", "quantised:30")
DIM, MANY = 70, 20_000


def draws(clients: int, participants: int | None = None, round: int = 3) -> MessageDraws:
    who = np.arange(clients)[None, :]
    return MessageDraws(11, round, who, who, participants or clients, clients)


@pytest.fixture(scope="module")
def values() -> Array:
    return np.random.default_rng(0).normal(size=DIM) * np.logspace(0, -3, DIM)


@pytest.mark.parametrize("name", UNBIASED)
def test_means_and_variances(name: str, values: Array) -> None:
    """Each of twenty thousand clients compresses the same vector; means within 5 standard errors."""
    compressor = compressor_of(name)
    found = compressor.compress(np.broadcast_to(values, (1, MANY, DIM)), draws(MANY))[0]
    error = found.std(axis=0) / np.sqrt(MANY)
    assert np.all(np.abs(found.mean(axis=0) - values) <= 5.0 * error + 1e-12)
    variance = ((found - values) ** 2).sum(axis=1).mean() / (values @ values)
    assert variance <= 1.02 * compressor.variance
    if name == "random_k:0.25":  # k = 18 of 70
        assert variance == pytest.approx(DIM / 18 - 1.0, rel=0.05)


def test_the_largest_coordinates(values: Array) -> None:
    found = compressor_of("top_k:0.1").compress(values[None, None, :], draws(1))[0, 0]
    assert np.count_nonzero(found) == 7
    assert np.abs(values[found == 0]).max() <= np.abs(found[found != 0]).min()
    assert ((found - values) ** 2).sum() <= (1.0 - 0.1) * (values @ values)


def test_what_is_zero_stays_zero() -> None:
    for name in (*UNBIASED, "top_k:0.5"):
        assert not compressor_of(name).compress(np.zeros((1, 2, DIM)), draws(2)).any()


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("identity", 64 * 300), ("random_k:0.1", 64 * 30), ("natural", 12 * 300), ("top_k:0.1", 30 * (64 + 9)),
        ("quantised:7", 5 * 64 + 300 * (1 + 3)), ("quantised:8", 5 * 64 + 300 * (1 + 4)),
    ],
)  # fmt: skip
def test_bits(name: str, bits: float) -> None:
    assert compressor_of(name).bits(300, 10) == bits


@pytest.mark.parametrize(("dim", "owners", "clients"), [(7, 2, 5), (3, 2, 10), (300, 3, 8), (6, 4, 4)])
def test_each_coordinate_has_as_many_owners_and_each_client_as_many_coordinates(
    dim: int, owners: int, clients: int
) -> None:
    compressor = CoordinateMasks(owners)
    scale = clients * (owners - 1) / (owners * (clients - 1))
    found = compressor.compress(np.full((1, clients, dim), 5.0), draws(clients))[0] / scale
    masks = found[:, dim:]
    np.testing.assert_allclose(found[:, :dim], 5.0 * masks, rtol=1e-15)
    assert (masks.sum(axis=0) == owners).all()
    assert set(masks.sum(axis=1)) <= {np.floor(owners * dim / clients), np.ceil(owners * dim / clients)}
    assert compressor.bits(dim, clients) == 64 * masks.sum(axis=1).max()


def test_masks_change_from_round_to_round_and_are_fair() -> None:
    masks = np.stack([
        CoordinateMasks(2).compress(np.ones((1, 6, 9)), draws(6, round=t))[0, :, 9:] > 0 for t in range(3000)
    ])  # fmt: skip
    share = masks.mean(axis=0)
    assert np.abs(share - 2 / 6).max() < 5.0 * np.sqrt(2 / 6 * 4 / 6 / 3000)


METHODS: list[Any] = [
    fs.Scallion(step_size=0.05, local_steps=3, compression="random_k:0.5", cohort=3),
    fs.Tamuna(step_size=0.05, communication_probability=0.3, owners=2, cohort=3),
    fs.AmplifiedScaffold(step_size=0.05, local_steps=3, window=2, cohort=3),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.kind)
def test_blocks_of_clients_send_the_same(method: Any) -> None:
    """Clients in blocks, as in Ray's workers, some of which have no participant: the same sums."""
    from fedscaffold.core.random.stream import Batches
    from fedscaffold.core.sums import total
    from fedscaffold.simulation.clients import open_store, shard_of
    from fedscaffold.simulation.rounds import round_info
    from fedscaffold.simulation.setup import RunSetup

    problem = make("ridge", (4,) * 200, 3)
    setup = RunSetup(
        problem=problem, method=method, engine=fs.engines.Reference(), theta=np.ones((1, 3)), batches=Batches(2),
        seed=7,
    )  # fmt: skip
    info = round_info(method, problem.weights, seed=7, round=2, round_uniform=np.full(1, 0.4))
    server = method.init_server(np.ones((1, 3)))

    def sums(begin: int, end: int) -> Any:
        with open_store(shard_of(setup, begin, end)) as store:
            store.init_state(1, 3, None)
            return store.run_local_steps(server, info, None)

    whole = total(sums(0, 200))
    parts = [part for begin, end in ((0, 64), (64, 128), (128, 200)) for part in sums(begin, end)]
    assert total(parts).tobytes() == whole.tobytes()


def test_bits_of_a_run() -> None:
    problem = make("ridge", (4,) * 10, 20)
    half = fs.Scallion(step_size=0.01, local_steps=2, compression="random_k:0.1", participation=0.5)
    trace = fs.run(problem, half, rounds=4, engine="reference")
    np.testing.assert_allclose(trace.bits_sent_per_client, 0.5 * 64 * 2 * np.arange(5))
    np.testing.assert_allclose(trace.bits_received_per_client, 0.5 * 64 * 40 * np.arange(5))
    plain = fs.run(problem, fs.FedLin(step_size=0.01, local_steps=2), rounds=1, engine="reference")
    assert plain.bits_sent_per_client[-1] == plain.bits_received_per_client[-1] == 2 * 64 * 20


@pytest.mark.parametrize(
    "compression",
    ["zip", "random_k", "random_k:0", "random_k:1.5", "quantised:0", "natural:3", "top_k:x", 3, None],
)
def test_refusals(compression: Any) -> None:
    with pytest.raises(fs.InvalidInput, match=r"compression must be|share"):
        fs.Scallion(step_size=0.1, local_steps=2, compression=compression)


def test_what_the_server_has_not_sent_yet_is_what_the_variates_sum_to() -> None:
    """Σ w_i ξ_i = −e in every round, also with replies that are lost, and e → 0."""
    problem = make("ridge", (4, 6, 5, 7), 5, weights=(1.0, 2.0, 3.0, 1.5))
    method = fs.Scallion(step_size=0.05, local_steps=3, compression="quantised:8", server_levels=8)
    weights, rng = problem.weights, np.random.default_rng(0)
    server, clients = method.init_server(np.ones((1, 5))), method.init_clients(1, problem.weights, 5, None)
    sizes = []
    for k in range(40):
        heard = np.arange(4) != k % 5  # one reply is lost in most rounds
        sent = 0.7**k * rng.normal(size=(1, 4, 5))
        share = weights[heard].sum()
        mean = np.einsum("c,rcj->rj", weights[heard] / share, sent[:, heard])
        after = method.aggregate(server, mean, np.array([share]))
        own = method.update_clients(clients, sent, server, after).own
        clients = type(clients)(np.where(heard[:, None], own, clients.own))
        server = after
        xi = method.correction(clients, server, None)
        np.testing.assert_allclose(np.einsum("c,rcj->rj", weights, xi), -server.lag, rtol=0, atol=1e-13)
        sizes.append(float(np.abs(server.lag).max()))
    assert max(sizes) > 0.01
    assert sizes[-1] < 1e-5


def test_bits_in_both_directions() -> None:
    problem = make("ridge", (4,) * 3, 70)
    method = fs.Scallion(step_size=0.001, local_steps=2, compression="quantised:31", server_levels=15)
    trace = fs.run(problem, method, rounds=2, engine="reference")
    np.testing.assert_array_equal(trace.bits_sent_per_client, (2 * 64 + 70 * 6) * np.arange(3))
    np.testing.assert_array_equal(trace.bits_received_per_client, (2 * 64 + 70 * 5) * np.arange(3))


@pytest.mark.parametrize(
    "options",
    [{"server_levels": 7}, {"server_levels": 8, "cohort": 2}, {"server_levels": 8, "participation": 0.5}],
)
def test_refusals_of_a_rounding_server(options: Any) -> None:
    with pytest.raises(fs.InvalidInput, match="server_levels"):
        fs.Scallion(step_size=0.1, local_steps=2, compression="natural", **options)


def test_compressors_are_kept_as_text() -> None:
    given = fs.Scallion(step_size=0.1, local_steps=2, compression=fs.methods.compression.RandomK(0.25))
    assert given.compression == "random_k:0.25"
    assert given == fs.Scallion(step_size=0.1, local_steps=2, compression="random_k:0.25")


def test_compressed_local_training_sends_a_fifth_of_the_bits() -> None:
    """Until the squared error has fallen a million times; `benchmarks.compression` has d = 300, κ = 10⁴."""
    problem = conditioned(100.0, n_clients=10, dim=20)
    methods: dict[str, tuple[Any, int]] = {
        "plain": (fs.Scaffold(step_size=0.5 / 1.01, local_steps=2), 700),
        "compressed": (fs.Tamuna(step_size=1.0, communication_probability=0.3, owners=2), 450),
    }
    sent = {}
    for name, (method, rounds) in methods.items():
        trace = fs.run(problem, method, rounds=rounds, progress=False)
        below = trace.mse[0] <= 1e-6 * trace.mse[0, 0]
        assert below.any()
        sent[name] = trace.bits_sent_per_client[below.argmax()]
    assert sent["plain"] >= 5.0 * sent["compressed"]
