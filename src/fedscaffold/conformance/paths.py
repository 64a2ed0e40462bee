"""The paths of models that the known forms of Scaffold take on a task, in plain NumPy."""

from collections.abc import Callable

import numpy as np

from fedscaffold.conformance.recording import Scenario
from fedscaffold.conformance.task import Array, mean_gradients


def one_variate(scenario: Scenario, rounds: int) -> Array:
    """ξ_c ← ξ_c + (θ_c − θ⁺)/(γH) for those who took part, which keeps Σ_c ξ_c = 0."""
    task, theta = scenario.task, scenario.task.theta0
    xi, models = np.zeros((task.n_clients, task.dim)), [theta]
    for cohort in scenario.cohorts[:rounds]:
        who = list(cohort)
        moved = mean_gradients(task, who, theta, xi) + xi[who]  # (θ − θ_c)/(γH)
        xi[who] -= moved - moved.mean(axis=0)
        theta = theta - task.step_size * task.local_steps[0] * moved.mean(axis=0)
        models.append(theta)
    return np.stack(models)


def _two_variates(scenario: Scenario, rounds: int, option: int) -> Array:
    """ξ_c = c − c_i, c the mean of all c_i; c_i ← the mean gradient on c's path (option 2) or at θ (option 1)."""
    task, theta = scenario.task, scenario.task.theta0
    own, models = np.zeros((task.n_clients, task.dim)), [theta]
    for cohort in scenario.cohorts[:rounds]:
        who = list(cohort)
        xi = own.mean(axis=0) - own
        on_path = mean_gradients(task, who, theta, xi)
        own[who] = on_path if option == 2 else np.stack([task.gradient(c, theta) for c in who])
        theta = theta - task.step_size * task.local_steps[0] * (on_path + xi[who]).mean(axis=0)
        models.append(theta)
    return np.stack(models)


KNOWN_PATHS: dict[str, Callable[[Scenario, int], Array]] = {
    "one variate": one_variate,
    "option II": lambda scenario, rounds: _two_variates(scenario, rounds, 2),
    "option I": lambda scenario, rounds: _two_variates(scenario, rounds, 1),
}
"""Model after each round, (rounds + 1, dim), for tasks with equal weights and equal local steps."""
