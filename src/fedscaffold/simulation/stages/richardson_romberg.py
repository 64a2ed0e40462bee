"""Richardson–Romberg: two step sizes, extrapolated, so that the first-order bias of the average cancels."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedscaffold.core.checks import check_problem_and_method, suggest_names, whole_number
from fedscaffold.core.display import Progress, Summarised, new_axes, plain_grid, progress_bar
from fedscaffold.core.errors import InvalidInput, NotStationary
from fedscaffold.core.protocols import Engine, Method, Problem
from fedscaffold.core.random.stream import Sampling
from fedscaffold.core.types import Array
from fedscaffold.simulation.checkpoint import CheckpointFile
from fedscaffold.simulation.observers import squared_distance
from fedscaffold.simulation.rounds import State
from fedscaffold.simulation.run_method import checkpoint_file, run_to_end
from fedscaffold.simulation.setup import RunSetup, validate_run
from fedscaffold.simulation.stages.stationarity import BATCHES, MIN_ROUNDS, autocorrelation_time, truncation

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RichardsonRomberg(Summarised):
    """The result of `fedscaffold.richardson_romberg`: 2 θ̄(γ) − θ̄(2γ), and the averages it was made of.

    Attributes
    ----------
    theta
        The extrapolated models, (repetitions, dim).
    fine
        θ̄(γ, H), the average of the method's own iterates, (repetitions, dim).
    coarse
        θ̄(2γ, H) for FedAvg; for Scaffold θ̄(2γ, H/2), the mean of two chains; (repetitions, dim).
    standard_error
        Of theta, from the means of consecutive rounds, (repetitions, dim). It says how well E θ̄ is known, not how
        much bias is left.
    from_round
        The first round that the averages contain, the same for all chains.
    rounds
        How many rounds each chain ran.
    gradients_per_client, vectors_per_client
        What all chains cost together: stochastic gradients, and vectors of θ's length received and sent.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> problem = fs.problems.paper("regression", n_clients=10)
    >>> method = fs.Scaffold(step_size=0.05, local_steps=10)
    >>> found = fs.richardson_romberg(problem, method, rounds=40, batch_size=10, discard=20)
    >>> found
    <RichardsonRomberg | rounds of each chain: 40, averaged from round: 21,
      repetitions: 1, gradients per client: 800>
    >>> found.mse(problem.optimum()).shape
    (1,)
    """

    theta: Array
    fine: Array
    coarse: Array
    standard_error: Array
    from_round: int
    rounds: int
    gradients_per_client: int
    vectors_per_client: int

    def mse(self, optimum: ArrayLike) -> Array:
        """Return ‖θ − θ*‖² of each repetition, for example with `problem.optimum()`."""
        return squared_distance(self.theta, np.asarray(optimum))

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw how far both averages are from the extrapolated model, by coordinate; return the axes.

        The means over the repetitions are drawn, over ± two standard errors of the extrapolated model.

        Parameters
        ----------
        ax
            matplotlib axes to draw on; by default a new figure's.
        """
        ax, at, ink = new_axes(ax), np.arange(self.theta.shape[1]), "#222222"
        error = 2.0 * np.sqrt(np.square(self.standard_error).mean(axis=0) / len(self.theta))
        label = "± 2 standard errors of the extrapolation"
        ax.fill_between(at, -error, error, color=ink, alpha=0.15, lw=0, label=label)
        for values, marker, colour, gamma in (
            (self.fine, "o", "#0072B2", "γ"),
            (self.coarse, "s", "#D55E00", "2γ"),
        ):
            difference = (values - self.theta).mean(axis=0)
            ax.plot(at, difference, marker, color=colour, ms=4.5, label=f"average with step size {gamma}")
        ax.axhline(0.0, color=ink, lw=0.7)
        ax.locator_params(axis="x", integer=True)
        ax.set_xlabel("coordinate")
        ax.set_ylabel("difference to the extrapolated model")
        plain_grid(ax)
        ax.legend(frameon=False, fontsize=9)
        return ax

    def _facts(self) -> dict[str, object]:
        return {
            "rounds of each chain": f"{self.rounds:,}",
            "averaged from round": self.from_round,
            "repetitions": len(self.theta),
            "gradients per client": f"{self.gradients_per_client:,}",
        }


@suggest_names
def richardson_romberg(
    problem: Problem,
    method: Method,
    *,
    rounds: int,
    batch_size: int | None = None,
    seed: int = 0,
    repetitions: int = 1,
    engine: str | Engine = "auto",
    theta0: Any = None,
    discard: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: Progress = None,
    sampling: Sampling = "with_replacement",
    checkpoint_every: int | None = None,
) -> RichardsonRomberg:
    """Extrapolate to γ = 0: 2 θ̄(γ, H) − θ̄(2γ, H/2) for Scaffold, 2 θ̄(γ, H) − θ̄(2γ, H) for FedAvg.

    θ̄ averages the iterates of the stationary rounds. Scaffold's bias at fixed γH is γ times a constant, up to
    order γ²; FedAvg's is so at fixed H (Mangold et al. 2024). The chains draw the same records: for Scaffold the
    coarse average is over two chains, of which one draws the records of the first half of each round's local steps
    and the other one the rest. So they cost as many gradients as the fine chain, and most of the noise of
    2 θ̄(γ) − θ̄(2γ) is that of θ̄(γ).

    Parameters
    ----------
    problem
        The objective.
    method
        `Scaffold` with an even number of local steps, or `FedAvg`; all clients take part.
    rounds
        T, of each chain.
    discard
        Number of rounds to leave out of the averages; by default the rounds before all chains are stationary, by
        MSER (White 1997).
    batch_size, seed, repetitions, engine, theta0, checkpoint, progress, sampling, checkpoint_every
        As in `fedscaffold.run`, except that a checkpoint can be resumed with the same number of rounds only.

    Returns
    -------
    RichardsonRomberg
        The extrapolated models, both averages, and standard errors.

    Raises
    ------
    InvalidInput
        If the method is neither FedAvg nor Scaffold, or an argument cannot be used.
    NotStationary
        If discard is not given and a chain still moves in the second half of its rounds.
    Diverged
        If a chain diverges, for example since 2γ is too large.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> problem = fs.problems.paper("regression", n_clients=10)
    >>> method = fs.Scaffold(step_size=0.05, local_steps=10)
    >>> found = fs.richardson_romberg(problem, method, rounds=40, batch_size=10, discard=20)
    >>> found.theta.shape
    (1, 20)
    """
    check_problem_and_method(problem, method)
    fine, coarse = chains(method, problem.n_clients)
    setup = validate_run(
        problem, method, rounds=rounds, batch_size=batch_size, seed=seed, repetitions=repetitions, engine=engine,
        theta0=theta0, sampling=sampling,
    )  # fmt: skip
    rounds = setup.rounds
    discard = None if discard is None else whole_number("discard", discard, least=0)
    if discard is not None and discard > rounds - 2:
        raise InvalidInput(f"discard={discard} leaves less than two of {rounds} rounds to average; discard fewer")
    file = checkpoint_file(
        setup, checkpoint, checkpoint_every, run="Richardson–Romberg", rounds=rounds, discard=discard
    )
    blocks = Blocks.of(rounds, discard or 0)
    with progress_bar("Richardson–Romberg", progress) as advance:
        means = _chain_means(setup, (*coarse, fine), blocks, file, advance)
    cut = 0 if discard is not None else latest_cut(means, rounds)
    fine_means, coarse_means = means[-1], np.mean(means[:-1], axis=0)
    weights = blocks.lengths[cut:] / blocks.lengths[cut:].sum()
    averages = [np.einsum("k,rkj->rj", weights, found[:, cut:]) for found in (fine_means, coarse_means)]
    extrapolated = 2.0 * fine_means[:, cut:] - coarse_means[:, cut:]
    return RichardsonRomberg(
        theta=2.0 * averages[0] - averages[1],
        fine=averages[0],
        coarse=averages[1],
        standard_error=_standard_error(extrapolated),
        from_round=int(blocks.lengths[:cut].sum()) + 1 + (discard or 0),
        rounds=rounds,
        gradients_per_client=rounds * sum(chain.method.local_steps for chain in (fine, *coarse)),
        vectors_per_client=rounds * sum(chain.method.vectors_per_round for chain in (fine, *coarse)),
    )


class ChainSetup(NamedTuple):
    """A method, and the first of each round's local steps whose records it draws."""

    method: Any
    first_step: int


def chains(method: Any, n_clients: int) -> tuple[ChainSetup, tuple[ChainSetup, ...]]:
    """Return the fine chain and the coarse ones, whose mean has twice the first-order bias of the fine one's."""
    kind = getattr(method, "kind", None)
    if kind not in ("fedavg", "scaffold"):
        raise InvalidInput(
            f"Richardson–Romberg is known for FedAvg and Scaffold alone, not for {type(method).__name__}"
        )
    if method.participants(n_clients) != n_clients:
        raise InvalidInput("Richardson–Romberg needs all clients in each round, without participation or cohort")
    if isinstance(method.local_steps, tuple):
        raise InvalidInput("Richardson–Romberg needs the same local_steps for all clients; give one number")
    H = method.local_steps
    doubled = replace(method, step_size=2.0 * method.step_size)
    if kind == "fedavg":
        return ChainSetup(method, 0), (ChainSetup(doubled, 0),)
    if H % 2:
        raise InvalidInput(
            f"Scaffold's second chain takes half of the local steps, so local_steps must be even, got {H}"
        )
    halved = replace(doubled, local_steps=H // 2)
    return ChainSetup(method, 0), (ChainSetup(halved, 0), ChainSetup(halved, H // 2))


class Blocks(NamedTuple):
    """Consecutive rounds whose iterates are averaged at once, so that no run keeps all of its iterates."""

    discard: int
    lengths: Array  # rounds of each

    @classmethod
    def of(cls, rounds: int, discard: int) -> "Blocks":
        """Divide the rounds into BATCHES to twice as many blocks; rounds that are left over go to the first."""
        kept = rounds - discard
        width = max(1, kept // BATCHES)
        lengths = np.full(kept // width, float(width))
        lengths[0] += kept % width
        return cls(discard, lengths)


def _chain_means(
    setup: RunSetup,
    chains: Sequence[ChainSetup],
    blocks: Blocks,
    file: CheckpointFile | None,
    advance: Callable[[int, int], None],
) -> list[Array]:
    """Return each chain's means over each block of rounds, (repetitions, blocks, dim)."""
    last = blocks.discard + np.cumsum(blocks.lengths)
    saved = None
    if file is not None:
        saved = file.load(setup.method, setup.theta, setup.rounds, n_clients=setup.problem.n_clients)
    shape = (len(chains), len(setup.theta), len(blocks.lengths), setup.problem.dim)
    sums, first = np.zeros(shape), 0
    if saved is not None:
        saved.extra.only("sums", "chain")
        sums, first = saved.extra.array("sums", shape), int(saved.extra.array("chain", (), dtype=np.int64))
        if not 0 <= first < len(chains):
            raise saved.extra.error(
                f"{saved.extra.source}: chain must be from 0 to {len(chains) - 1}, got {first}"
            )

    def run_chain(k: int, state: State | None) -> None:
        def record(state: State) -> bool:
            if state.round > blocks.discard:
                sums[k, :, np.searchsorted(last, state.round)] += state.theta
            return False

        chain = replace(setup, method=chains[k].method, first_step=chains[k].first_step)
        run_to_end(
            chain, state, record=record, arrays=lambda: ({}, {"sums": sums, "chain": np.array(k)}), file=file,
            progress=lambda done: advance(k * setup.rounds + done, len(chains) * setup.rounds),
        )  # fmt: skip

    for k in range(first, len(chains)):
        run_chain(k, saved.state if saved is not None and k == first else None)
    return list(sums / blocks.lengths[:, None])


def latest_cut(found: list[Array], rounds: int) -> int:
    """Return how many blocks to leave out so that every chain is stationary in the rest."""
    cuts = [truncation(means.mean(axis=0)) if rounds >= MIN_ROUNDS else None for means in found]
    if None in cuts:
        raise NotStationary(
            f"the iterates still move after half of the {rounds} rounds, so their average says little; run "
            f"rounds={2 * max(rounds, MIN_ROUNDS)} or more, start nearer with theta0, or choose discard yourself"
        )
    return max(cut for cut in cuts if cut is not None)


def _standard_error(means: Array) -> Array:
    """Return the standard error of the mean over axis 1 of correlated block means (repetitions, blocks, dim)."""
    centred = means - means.mean(axis=1, keepdims=True)
    times = np.array([autocorrelation_time(series) for series in np.moveaxis(centred, 2, 0)])
    return means.std(axis=1, ddof=1) * np.sqrt(times / means.shape[1])
