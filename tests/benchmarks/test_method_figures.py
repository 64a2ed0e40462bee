"""Figures of the methods' pages, and communications against the condition number."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.method_figures import FIGURES, Scaling, proxskip_scaling
from fedscaffold import Scaffold, run
from fedscaffold.core.random.stream import Batches
from fedscaffold.problems.paper import conditioned


@pytest.mark.parametrize("condition", [10.0, 1000.0])
def test_the_problem_is_as_conditioned_as_asked(condition: float) -> None:
    problem = conditioned(condition)
    hessians = problem.client_hessians(np.zeros(problem.dim))
    eigenvalues = np.linalg.eigvalsh(hessians)
    np.testing.assert_allclose(eigenvalues[:, 0], 1 / condition, rtol=1e-12)
    np.testing.assert_allclose(eigenvalues[:, -1], 1.0, rtol=1e-12)
    assert problem.smoothness(Batches()) == pytest.approx(1.0)
    assert problem.strong_convexity() == pytest.approx(1 / condition)
    assert np.abs(np.ptp(hessians, axis=0)).max() > 0.05  # clients differ
    assert np.abs(problem.client_gradients(problem.optimum())).max() > 1e-3


def test_rounds_are_counted_from_the_start() -> None:
    """The first round of a run in which the squared error is 10⁻⁸ of what it was, with the largest γ allowed."""
    method = Scaffold(step_size=1.0 / (10 * 1.1), local_steps=10)
    errors = run(conditioned(10.0), method, rounds=200, engine="reference", progress=False).mse[0]
    first = next(t for t, error in enumerate(errors) if error <= 1e-8 * errors[0])
    assert proxskip_scaling((10.0,))[1].rounds == [first]


def check(found: list[Scaling]) -> None:
    proxskip, scaffold = found
    assert proxskip.fit.slope == pytest.approx(0.5, abs=0.15)
    assert scaffold.fit.slope == pytest.approx(1.0, abs=0.15)
    assert all(few < many for few, many in zip(proxskip.rounds, scaffold.rounds, strict=True))


def test_proxskip_needs_the_square_root() -> None:
    check(proxskip_scaling((10.0, 31.6, 100.0)))


@pytest.mark.slow
def test_proxskip_needs_the_square_root_up_to_ten_thousand() -> None:
    check(proxskip_scaling())


def test_a_figure_is_drawn(tmp_path: Path) -> None:
    FIGURES["fedavg"]([tmp_path / "fedavg.png"])
    assert (tmp_path / "fedavg.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["participation", "two-sided", "fedlin"])
def test_further_figures_are_drawn(tmp_path: Path, name: str) -> None:
    FIGURES[name]([tmp_path / "figure.png"])
    assert (tmp_path / "figure.png").is_file()


def test_every_figure_is_in_the_documentation() -> None:
    docs = Path(__file__).parents[2] / "docs"
    pages = "".join(page.read_text() for page in (docs / "explanation" / "methods").glob("*.md"))
    for name in FIGURES:
        assert f"images/methods/{name}.png" in pages
