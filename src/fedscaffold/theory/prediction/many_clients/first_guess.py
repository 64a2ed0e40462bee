"""A first guess of the stationary law of many clients, from one light look at each of them.

How far the noise pulls the mean of a client's local models follows from the third derivative of its loss, applied
to the covariances of the linear model. These covariances are taken at few local steps and the derivative at θ*,
so that the guess is off by some percent; a sample of clients, for which everything is found, says by how much.
"""

from dataclasses import replace

import numpy as np

from fedscaffold.core.capabilities import GeneralisedLinear
from fedscaffold.theory.client_blocks import ClientBlock, for_blocks
from fedscaffold.theory.prediction.clouds.margins import MarginAverages
from fedscaffold.theory.prediction.local_steps import along, steps
from fedscaffold.theory.prediction.plateau import PlateauState, covariances, eigenbasis_covariances, with_residual
from fedscaffold.theory.prediction.setting import Setting

FEW_STEPS = 1e-2  # precision of powers, which decides how many local steps are seen
LEAST = 3  # local steps that are seen
NARROW = 1e-6  # of a margin: a cloud that is narrower is taken to be this wide
COPIES = 12  # of a client's records in a block, so that a block fits in a cache


def guess_pulls(s: Setting, state: PlateauState) -> PlateauState:
    """The linear model's law, with the pull of the noise on the means, for losses of margins."""
    problem, averages = s.problem, s.averages
    assert isinstance(problem, GeneralisedLinear)
    assert isinstance(averages, MarginAverages)  # as of all tables of records
    few = steps(s.gamma, s.H, s.at_optimum.smallest, s.at_optimum.largest, FEW_STEPS, least=LEAST)
    light = replace(s, steps=few)
    theta_eta, eta = covariances(s, state)
    (N, d), m = s.gradients.shape, few.nodes.size
    found = np.empty((N, m, d))

    def work(block: ClientBlock) -> None:
        at = s.places(block)
        k, n, _ = block.x.shape
        clouds = eigenbasis_covariances(light, state, at, theta_eta[at], eta[at])
        x = np.swapaxes(state.cur.U[at], 1, 2) @ np.swapaxes(block.x, 1, 2)  # features first, in the eigenbasis
        turned = (clouds.reshape(k, m * d, d) @ x).reshape(k, m, d, n)
        variances = np.einsum("kqdn,kdn->kqn", turned, x)
        z, width = block.x @ s.optimum, np.sqrt(variances.mean(axis=1) + NARROW**2)
        slopes, y = averages.slopes, block.y
        bend = slopes(z + width, y) + slopes(z - width, y) - 2.0 * slopes(z, y)
        found[at] = (variances * (0.5 * bend / width**2 * block.share)[:, None]) @ np.swapaxes(x, 1, 2)

    for_blocks(problem, work, copies=COPIES, clients=s.clients)
    at_nodes = few.rates[None, :] ** s.steps.nodes[:, None] @ few.fit
    return with_residual(s, state, along(at_nodes, found))
