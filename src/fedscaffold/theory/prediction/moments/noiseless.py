"""The H local steps of every client where nothing is random: exact means, and how they depend on the beginning.

Without noise the means follow the gradients, so that each step costs one gradient. How the end of a round depends
on its beginning, B of `local_round`, only leads from one round to the next where rounds are much alike: its
curvatures are found at some of the steps, ever further apart as long as they hardly change.
"""

import numpy as np

from fedscaffold.core.capabilities import GeneralisedLinear
from fedscaffold.core.types import Array
from fedscaffold.theory.client_blocks import ClientBlock
from fedscaffold.theory.prediction.local_steps import divided
from fedscaffold.theory.prediction.setting import Setting

CHANGE = 0.02  # of γG over the steps for which it is taken to be its mean at both ends


def noiseless_steps(s: Setting, blocks: list[ClientBlock], theta: Array, ahead: Array) -> tuple[Array, Array]:
    """θ_c^H − θ*, (N, d), and B, (N, d, 2 d), from θ − θ* and ξ_c − ξ*_c; for losses of margins."""
    N, d = ahead.shape
    problem = s.problem
    assert isinstance(problem, GeneralisedLinear)
    local, pull = np.tile(s.optimum + theta, (N, 1)), ahead - s.gradients
    B, drive = np.zeros((N, d, 2 * d)), np.zeros((d, 2 * d))
    B[:, :, :d], drive[:, d:] = np.eye(d), -s.gamma * np.eye(d)
    here = curvatures(problem, blocks, local)
    done, span = 0, 1
    while done < s.H:
        span = min(span, s.H - done)
        for block in blocks:
            at = block.clients
            local[at] = descended(problem, block, local[at], pull[at], s.gamma, span)
        there = curvatures(problem, blocks, local)
        lam, U = np.linalg.eigh(0.5 * (here + there))
        g, inverse = 1.0 - s.gamma * lam, np.swapaxes(U, 1, 2)
        power = g**span
        B = (U * power[:, None]) @ (inverse @ B) + (U * divided(g, power, 1.0, span)[:, None]) @ inverse @ drive
        change = s.gamma * span * float(np.abs(there - here).max())
        done += span
        if not change <= CHANGE:
            span = max(1, span // 2)
        elif change < 0.25 * CHANGE:
            span *= 2
        here = there
    return local - s.optimum, B


def descended(
    problem: GeneralisedLinear, block: ClientBlock, local: Array, pull: Array, gamma: float, steps: int
) -> Array:
    """Local models, (k, d), after some steps along the gradients of all records and a constant pull."""
    x, across = block.x, np.swapaxes(block.x, 1, 2)
    for _ in range(steps):
        slopes = problem.d1((x @ local[:, :, None])[:, :, 0], block.y) * block.share
        gradients = (across @ slopes[:, :, None])[:, :, 0] + problem.penalty * local
        local = local - gamma * (gradients + pull)
    return local


def curvatures(problem: GeneralisedLinear, blocks: list[ClientBlock], local: Array) -> Array:
    """∇²f_c at each client's own model, (N, d, d)."""
    found = np.empty((*local.shape, local.shape[1]))
    for block in blocks:
        x = block.x
        bends = problem.d2((x @ local[block.clients][:, :, None])[:, :, 0], block.y) * block.share
        found[block.clients] = np.swapaxes(x, 1, 2) @ (bends[:, :, None] * x)
    return found + np.diag(problem.penalty)
