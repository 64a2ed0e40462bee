"""A whole local step of one or more clients side by side, as LLVM vector code for a fixed small batch.

Where a step reads few numbers, its operations wait for each other: margins, slopes, descent, and again. Here
margins and slopes stay in registers, and the clients of a *team* take their steps together: while one client's
operations wait, another's run, and one vector of slopes serves several clients. Every number is computed by the
same operations in the same order as in `steps.py`, so that the bits are the same.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from fedscaffold.engines.numba_ import simd
from fedscaffold.engines.numba_.losses import (
    GAMMA,
    LOGISTIC,
    POISSON,
    RIDGE,
    WEIGHTED_LOGISTIC,
    WEIGHTED_LOSSES,
    WEIGHTED_RIDGE,
)
from fedscaffold.engines.numba_.simd import INT64, TARGET_COLUMNS, Lanes, gathered

FORMULAS: dict[int, Callable[[Lanes, Any, Any, Any], Any]] = {
    RIDGE: simd.ridge_derivative,
    LOGISTIC: simd.logistic_derivative,
    WEIGHTED_RIDGE: simd.ridge_derivative,
    WEIGHTED_LOGISTIC: simd.logistic_derivative,
    POISSON: simd.poisson_derivative,
    GAMMA: simd.gamma_derivative,
}
CHAINS = 12  # dot products that run side by side: as many as there are registers for


def group_sizes(batch: int) -> list[int]:
    """How `steps.descend` divides a batch: eights, then at most one four, two and one."""
    return [8] * (batch // 8) + [size for size in (4, 2, 1) if batch & size]


@intrinsic(prefer_literal=True)
def step_of_team(
    typing_context: Any, loss: Any, batch: Any, team: Any, x: Any, m: Any, y: Any, d: Any, bases: Any, rows: Any,
    room: Any, first: Any, theta: Any, shift: Any, tall: Any, shrink: Any, scale: Any, limits: Any, noise: Any,
    noise_room: Any, noise_first: Any,
) -> Any:  # fmt: skip
    """One local step of `team` clients; loss, batch and team are constants of the calling kernel.

    Client k has its records from bases[k] on in x, m and y, its batch in rows[k·room + first], ..., and θ and
    shift from k·tall on. m is None where margins are taken with x. limits, not None, bound the slopes of all
    records, and with them client k gets the noise from noise[k·noise_room + noise_first] on.
    """
    if not all(isinstance(number, types.IntegerLiteral) for number in (loss, batch, team)):
        return None
    loss_, size, clients = loss.literal_value, batch.literal_value, team.literal_value
    weighted = loss_ in WEIGHTED_LOSSES.values()

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        x_, m_, y_, d_, bases_, rows_, room_, first_, theta_, shift_, tall_, shrink_, scale_ = args[3:16]
        limits_, noise_, noise_room_, noise_first_ = args[16:]
        clipped = not isinstance(limits, types.NoneType)
        margin_table = x_ if isinstance(m, types.NoneType) else m_
        lanes = Lanes.of(context, builder, x)
        own = [builder.mul(INT64(k), tall_) for k in range(clients)]  # where each client's θ begins
        records = _records(builder, bases_, rows_, room_, first_, clients, size)
        starts = [builder.mul(record, d_) for record in records]
        totals = _products(lanes, margin_table, theta_, d_, starts, [own[i // size] for i in range(len(starts))])
        factors = _slopes(
            lanes,
            loss_,
            y_,
            weighted,
            records,
            lanes.sums(totals),
            lanes.splat(scale_),
            limits_ if clipped else None,
        )
        _forget_records(builder)
        for k in range(clients):
            mine = slice(k * size, (k + 1) * size)
            noisy = None
            if clipped:
                noisy = builder.gep(noise_, [builder.add(builder.mul(INT64(k), noise_room_), noise_first_)])
            _descend(
                lanes, x_, theta_, shift_, noisy, d_, own[k], starts[mine], factors[mine], lanes.splat(shrink_)
            )
        return context.get_dummy_value()

    intp = types.intp  # the constants stay in the signature, by which Numba tells one generated code from another
    return types.void(
        loss, batch, team, x, m, y, intp, bases, rows, intp, intp, theta, shift, intp, x.dtype, x.dtype, limits,
        noise, intp, intp,
    ), generate  # fmt: skip


def _forget_records(builder: Any) -> None:
    """Have the records read again: kept from the margins to the descent, they would be written to the stack."""
    nothing = ir.FunctionType(ir.VoidType(), [])
    builder.asm(nothing, "", "~{memory}", [], side_effect=True)


def _records(b: Any, bases: Any, rows: Any, room: Any, first: Any, clients: int, size: int) -> list[Any]:
    """Numbers of the batches' records in the tables, client after client."""
    found = []
    for k in range(clients):
        base = b.load(b.gep(bases, [INT64(k)]))
        begin = b.add(b.mul(INT64(k), room), first)
        for i in range(size):
            row = b.load(b.gep(rows, [b.add(begin, INT64(i))]))
            found.append(b.add(base, b.sext(row, INT64)))
    return found


def _products(lanes: Lanes, x: Any, theta: Any, d: Any, starts: list[Any], own: list[Any]) -> list[Any]:
    """Vectors whose sums are the margins: record i begins at starts[i] in x, its client's θ at own[i]."""
    b = lanes.builder
    totals = [cgutils.alloca_once_value(b, lanes.constant(0.0)) for _ in starts]
    for begin in range(0, len(starts), CHAINS):
        chunk = range(begin, min(begin + CHAINS, len(starts)))

        def body(j: Any, load: Any, chunk: range = chunk) -> None:
            models = {at: lanes.load(theta, b.add(at, j)) for at in dict.fromkeys(own[i] for i in chunk)}
            for i in chunk:
                record = load(x, b.add(starts[i], j))
                b.store(lanes.multiply_add(record, models[own[i]], b.load(totals[i])), totals[i])

        lanes.over_vectors(d, body)
    return [b.load(total) for total in totals]


def _slopes(
    lanes: Lanes,
    loss: int,
    y: Any,
    weighted: bool,
    records: list[Any],
    margins: list[Any],
    scale: Any,
    limits: Any,
) -> list[Any]:
    """Scale · ℓ' of each record up to its limit, as a vector of equal numbers; limits may be None."""
    b = lanes.builder
    found: list[Any] = []
    for k, margin in enumerate(margins):
        chosen = records[k * lanes.width : (k + 1) * lanes.width]
        columns = gathered(lanes, y, chosen, TARGET_COLUMNS if weighted else 1)
        factors = scale
        if weighted:
            margin, factors = b.fadd(margin, columns[1]), b.fmul(scale, columns[2])
        slopes = FORMULAS[loss](lanes, factors, margin, columns[0])
        if limits is not None:
            slopes = simd.clamped(lanes, scale, slopes, gathered(lanes, limits, chosen, 1)[0])
        found += [lanes.shuffle(slopes, slopes, [lane] * lanes.width) for lane in range(len(chosen))]
    return found


def _descend(
    lanes: Lanes, x: Any, theta: Any, shift: Any, noise: Any, d: Any, own: Any, starts: list[Any],
    factors: list[Any], shrink: Any,
) -> None:  # fmt: skip
    """θ ← shrink·θ − shift − noise − Σ_b z_b x_b of one client, with θ and shift from `own` on."""
    b = lanes.builder

    def body(j: Any, load: Any) -> None:
        place = b.add(own, j)
        moved = lanes.load(shift, place)
        if noise is not None:
            moved = b.fadd(moved, load(noise, j))
        t = b.fsub(b.fmul(shrink, lanes.load(theta, place)), moved)
        begin = 0
        for size in group_sizes(len(starts)):
            chains = [lanes.constant(0.0), lanes.constant(0.0)]  # two, to wait half as long
            for g in range(size):
                record = load(x, b.add(starts[begin + g], j))
                chains[g % 2] = lanes.multiply_add(factors[begin + g], record, chains[g % 2])
            t = b.fsub(t, b.fadd(*chains))
            begin += size
        lanes.store(t, theta, place)

    lanes.over_vectors(d, body)
