"""Scaffold in plain NumPy, written down twice, with switches that plant bugs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedscaffold.conformance import Task

Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Bug:
    """Everything right unless told otherwise."""

    sign: float = 1.0  # of the correction in the local step; 0: the correction is never applied
    shows_state: bool = False  # correction() returns what the client state says, not what is added
    starts_at_model: bool = False
    starts_at_server: bool = False  # a client takes the server's variate as its own in its first round
    divide: Callable[[float, int], float] = lambda gamma, steps: gamma * steps
    aliased: bool = False
    ignores_cohort: bool = False
    ignores_weights: bool = False
    averages_models: bool = False  # with unequal local steps, and each client's own γH_c in its state
    server_share: str = "|S|/N"  # or "1": as if all took part; "cohort": c is the cohort's mean of c_i; "seen":
    # the mean over the clients seen so far; "weights": with weights that are normalised within the cohort
    keeps_first_steps: bool = False  # a client divides by the H of its first round
    counts_lost: bool = False  # a client whose reply is lost changes its state all the same
    saves_a_view: bool = False  # save() returns an array that goes on changing
    server_forgets: bool = False  # the server's variate, at a restart
    stale_server_variate: bool = False  # a client comes back with the c it had
    loses_state: bool = False  # at a restart
    option: int = 2  # of Karimireddy et al. (2020): 1 and 2 are both right
    dtype: Any = np.float64


class Implementation:
    """What both have in common: the local steps, and what the suite asks for."""

    def __init__(self, task: Task, bug: Bug | None = None) -> None:
        self.task, self.bug = task, bug or Bug()
        self.theta: Array = np.array(task.theta0, dtype=self.bug.dtype)
        self.server: Array = np.zeros_like(self.theta)
        first = self.theta if self.bug.starts_at_model else self.server
        shared = first.copy()
        self.client_state = [shared if self.bug.aliased else first.copy() for _ in range(task.n_clients)]
        self.seen: set[int] = set()
        self.first_steps: dict[int, int] = {}
        self.weights: Array = np.array(task.weights, dtype=self.bug.dtype)
        if self.bug.ignores_weights:
            self.weights[:] = 1.0 / task.n_clients

    def asked_for(self, client: int) -> Array:
        raise NotImplementedError

    def correction(self, client: int) -> Array:
        asked = self.asked_for(client)
        return asked if self.bug.shows_state else self.bug.dtype(self.bug.sign) * asked

    def local(self, client: int) -> Array:
        """θ_c after H_c steps."""
        theta: Array = self.theta.copy()
        added = self.bug.dtype(self.bug.sign) * self.asked_for(client)
        gamma = self.bug.dtype(self.task.step_size)
        for _ in range(self.task.local_steps[client]):
            theta -= gamma * (self.gradient(client, theta) + added)
        return theta

    def gradient(self, client: int, theta: Array) -> Array:
        return np.array(self.task.gradient(client, theta), dtype=self.bug.dtype)

    def scale(self, client: int) -> Array:
        """1/(γH_c), by which the client state changes."""
        steps = self.task.local_steps[client]
        if self.bug.keeps_first_steps:
            steps = self.first_steps.setdefault(client, steps)
        return self.bug.dtype(1.0 / self.bug.divide(self.task.step_size, steps))

    def reconfigure(self, task: Task) -> None:
        self.task = task

    def round_with_lost_replies(self, cohort: tuple[int, ...], lost: tuple[int, ...]) -> None:
        before = self.theta
        server = self.server
        heard = tuple(c for c in cohort if c not in lost)
        if self.bug.counts_lost:
            states = {c: self.client_state[c].copy() for c in heard}
            self.round(cohort)
            for c in heard:
                self.client_state[c][:] = states[c]
            self.theta, self.server = before, server
        self.round(heard)

    def save_server(self) -> tuple[Array, Array]:
        return self.theta.copy(), self.server.copy()

    def restart_server(self, saved: tuple[Array, Array]) -> None:
        self.theta = saved[0].copy()
        self.server = np.zeros_like(self.theta) if self.bug.server_forgets else saved[1].copy()

    def round(self, cohort: tuple[int, ...]) -> None:
        raise NotImplementedError

    def present(self, cohort: tuple[int, ...]) -> list[int]:
        return list(range(self.task.n_clients) if self.bug.ignores_cohort else cohort)

    def model(self) -> Array:
        return self.theta


class OneVariate(Implementation):
    """d_c = (θ − θ_c)/(γH_c); θ⁺ = θ − γH̄ d̄; ξ_c ← ξ_c − (d_c − d̄), means weighted, over the cohort."""

    def asked_for(self, client: int) -> Array:
        return self.client_state[client]

    def round(self, cohort: tuple[int, ...]) -> None:
        who = self.present(cohort)
        w: Array = self.weights[who] / self.weights[who].sum()
        moves: Array = np.stack([self.theta - self.local(c) for c in who])
        steps: Array = np.array([self.task.local_steps[c] for c in who], dtype=self.bug.dtype)
        mean_move: Array = w @ moves if self.bug.averages_models else (w @ steps) * (w @ (moves / steps[:, None]))
        scales: Array = np.stack([self.scale(c) for c in who])[:, None]
        directions: Array = moves * scales
        mean: Array = mean_move * scales if self.bug.averages_models else w @ directions
        for c, change in zip(who, directions - mean, strict=True):
            self.client_state[c] -= change
        self.theta = self.theta - mean_move

    def save(self, client: int) -> Array:
        return self.client_state[client] if self.bug.saves_a_view else self.client_state[client].copy()

    def restart(self, client: int, saved: Array) -> None:
        self.client_state[client] = np.zeros_like(saved) if self.bug.loses_state else saved.copy()


class TwoSided(Implementation):
    """θ_c ← θ_c − γ(g_c − c_c + c); c_c⁺ = c_c − c + (θ − θ_c)/(γH_c); c⁺ = c + Σ_S w_c (c_c⁺ − c_c).

    Option II of Karimireddy et al. (2020); with equal weights the last rule is c + |S|/N times the mean change.
    """

    def __init__(self, task: Task, bug: Bug | None = None) -> None:
        super().__init__(task, bug)
        self.kept: dict[int, Array] = {}  # old server variates, in the hands of clients that came back

    def heard(self, client: int) -> Array:
        return self.kept.get(client, self.server)

    def asked_for(self, client: int) -> Array:
        if self.bug.starts_at_server and client not in self.seen:
            self.client_state[client] = self.server.copy()
        return self.heard(client) - self.client_state[client]

    def round(self, cohort: tuple[int, ...]) -> None:
        who = self.present(cohort)
        local = [self.local(c) for c in who]
        w: Array = self.weights[who]
        change: Array = np.zeros_like(self.theta)
        for c, model in zip(who, local, strict=True):
            new = self.client_state[c] - self.heard(c) + (self.theta - model) * self.scale(c)
            if self.bug.option == 1:
                new = self.gradient(c, self.theta)
            change += self.weights[c] * (new - self.client_state[c])
            self.client_state[c][:] = new
        self.seen |= set(who)
        known = who if self.bug.server_share == "cohort" else sorted(self.seen)
        if self.bug.server_share in ("cohort", "seen"):
            each: Array = np.stack([self.client_state[c] for c in known])
            self.server = self.weights[known] @ each / self.weights[known].sum()
        else:
            normalised = {"|S|/N": 1.0, "1": w.sum(), "weights": w.sum() * self.task.n_clients / len(who)}
            self.server = self.server + change / self.bug.dtype(normalised[self.bug.server_share])
        self.theta = w @ np.stack(local) / w.sum()

    def save(self, client: int) -> tuple[Array, Array]:
        state = self.client_state[client]
        return state if self.bug.saves_a_view else state.copy(), self.server.copy()

    def restart(self, client: int, saved: tuple[Array, Array]) -> None:
        self.client_state[client] = np.zeros_like(saved[0]) if self.bug.loses_state else saved[0].copy()
        if self.bug.stale_server_variate:
            self.kept[client] = saved[1]
