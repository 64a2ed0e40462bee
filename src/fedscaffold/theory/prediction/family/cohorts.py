"""Second moments over cohorts: S of N clients of equal weight take part, all cohorts being equally likely.

With I_c = 1 for clients that take part and m̄ = (1/S) Σ_j I_j m_j, a client's field becomes c_c + I_c (x_c + B m̄),
where x_c does not depend on who takes part. Means of products of the I_c depend only on how many different clients
they name: π_k = S (S − 1) ⋯ (S − k + 1) / (N (N − 1) ⋯ (N − k + 1)).
"""

import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.theory.prediction.family.family_setting import FamilySetting


def inclusion(S: int, N: int) -> tuple[float, float, float, float]:
    """Probabilities π₁ to π₄ that one, two, three or four given clients of N are all in a cohort of S."""
    found, value = [], 1.0
    for k in range(4):
        value *= max(S - k, 0) / (N - k) if k < N else 0.0
        found.append(value)
    return found[0], found[1], found[2], found[3]


def cohort_moments(s: FamilySetting, joint: Array) -> Array:
    """E z̃z̃ᵀ one round later, from the second moment of (z̃, messages) of all clients, as if all took part."""
    linear = s.linear
    if linear.n_client > 1:
        raise InvalidInput("cohorts are predicted for methods whose clients keep one vector each")
    (N, d), size, K, S = s.gradients.shape, s.size, linear.n_server, linear.participants
    p1, p2, p3, p4 = inclusion(S, N)
    head = 1 + K * d
    base = np.zeros((head, size))  # (1, server without the mean)
    base[0, 0] = 1.0
    for k in range(K):
        for i in range(K):
            base[s.server(k), s.server(i)] += linear.aggregate_server[k, i] * np.eye(d)
    lift = np.zeros((head, d))  # how m̄ enters
    for k in range(K):
        lift[s.server(k)] = linear.aggregate_mean[k] * np.eye(d)

    state, m = joint[:size, :size], slice(size, size + N * d)
    mm = joint[m, m].reshape(N, d, N, d)
    total = mm.sum(axis=(0, 2))
    diagonal = np.einsum("cicj->ij", mm)
    top, sums = base @ state @ base.T, (base @ joint[:size, m]).reshape(head, N, d)
    top_mean = sums.sum(axis=1) / N
    mean_mean = (p2 * total + (p1 - p2) * diagonal) / S**2
    result = np.zeros((size, size))
    result[:head, :head] = top + top_mean @ lift.T + lift @ top_mean.T + lift @ mean_mean @ lift.T
    if linear.n_client == 0:
        return result

    B = float(linear.update_after[0] @ linear.aggregate_mean)
    x = np.zeros((N * d, size + N * d))
    x[:, s.clients(0)] = (linear.update_client[0, 0] - 1.0) * np.eye(N * d)
    x[:, m] = linear.update_sent[0] * np.eye(N * d)
    from_server = linear.update_before[0] + linear.update_after[0] @ linear.aggregate_server
    for i in range(K):
        x[:, s.server(i)] += from_server[i] * np.tile(np.eye(d), (N, 1))

    c = s.clients(0)
    xj = x @ joint  # (N d, size + N d)
    top_c = (base @ joint[:size, c]).reshape(head, N, d)
    top_x = (base @ xj[:, :size].T).reshape(head, N, d)
    m_c = joint[m, c].reshape(N, d, N, d)
    m_x = xj[:, m].T.reshape(N, d, N, d)
    a_m, a_c, a_x = mm.sum(axis=0), m_c.sum(axis=0), m_x.sum(axis=0)  # (d, N, d): Σ_j m_j with m_c, c_c, x_c

    # with the server: m̄ with client c, and I_c m̄ m̄ᵀ
    own = np.einsum("cicj->icj", mm)
    with_x = (p2 * a_x + (p1 - p2) * np.einsum("cicj->icj", m_x)) / S
    view = (p2 * sums.sum(axis=1)[:, None] + (p1 - p2) * sums) / S  # E I_c (1, server) m̄ᵀ
    thrice = (
        p3 * total[:, None]
        + (p2 - p3) * (a_m + np.swapaxes(a_m, 0, 2) + diagonal[:, None] - own)
        + (p1 - 2 * p2 + p3) * own
    ) / S**2
    side = top_c + p1 * top_x + B * view
    side += np.einsum("hi,icj->hcj", lift, a_c / N + with_x + B * thrice)
    result[:head, c] = side.reshape(head, N * d)
    result[c, :head] = result[:head, c].T

    # among clients: (c_c + I_c (x_c + B m̄)) (c_e + I_e (x_e + B m̄))ᵀ
    cc, cx = joint[c, c], xj[:, c].T  # E c cᵀ, E c xᵀ
    xx = (xj @ x.T).reshape(N, d, N, d)
    c_view = (p2 * a_c.transpose(1, 2, 0)[:, :, None] + (p1 - p2) * m_c.transpose(2, 3, 0, 1)) / S  # E I_e c_c m̄ᵀ
    x_m = m_x.transpose(2, 3, 0, 1)  # E x_c m_eᵀ, (N, d, N, d)
    x_a = a_x.transpose(1, 2, 0)  # E x_c aᵀ, (N, d, d)
    x_own = np.einsum("cicj->cij", x_m)
    x_view = (p3 * x_a[:, :, None] + (p2 - p3) * (x_own[:, :, None] + x_m)) / S  # E I_c I_e x_c m̄ᵀ for c ≠ e
    b_a = a_m.transpose(1, 2, 0)  # E m_c aᵀ, (N, d, d)
    blocks = np.einsum("cicj->cij", mm)
    pair_a = b_a[:, :, None, :] + b_a.transpose(1, 0, 2)[None, :, :, :]  # E (m_c + m_e) aᵀ, (N, d, N, d)
    both = blocks[:, :, None, :] + blocks.transpose(1, 0, 2)[None] + mm + mm.transpose(2, 1, 0, 3)
    minus = diagonal[None, :, None, :] - blocks[:, :, None, :] - blocks.transpose(1, 0, 2)[None]
    a_pair = pair_a.transpose(0, 3, 2, 1)
    fourth = (
        p4 * total[None, :, None, :] + (p3 - p4) * (pair_a + a_pair + minus) + (p2 - 2 * p3 + p4) * both
    ) / S**2
    crossed = p1 * cx.reshape(N, d, N, d) + B * c_view
    among = crossed + B * x_view
    among = among + among.transpose(2, 3, 0, 1) + p2 * xx + B**2 * fourth
    same = (
        p1 * np.einsum("cicj->cij", xx)
        + B * (with_x.transpose(1, 2, 0) + with_x.transpose(1, 0, 2))
        + B**2 * thrice.transpose(1, 0, 2)
    )
    crossed_own = np.einsum("cicj->cij", crossed)
    same += crossed_own + np.swapaxes(crossed_own, 1, 2)
    index = np.arange(N)
    among[index, :, index, :] = same
    result[c, c] = cc + among.reshape(N * d, N * d)
    return 0.5 * (result + result.T)
