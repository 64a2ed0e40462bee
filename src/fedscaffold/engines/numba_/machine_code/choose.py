"""Which kernel is the fastest for a problem."""

from fedscaffold.core.errors import InvalidInput
from fedscaffold.engines.numba_.losses import (
    DENSE,
    LINEAR,
    RIDGE,
    SOFTMAX,
    WEIGHTED,
    WEIGHTED_LOSSES,
    WEIGHTED_RIDGE,
    WEIGHTED_SOFTMAX,
    WITH_REPLACEMENT,
    WITHOUT_ANCHOR,
    WITHOUT_REPLACEMENT,
)
from fedscaffold.engines.numba_.machine_code.call import Kernel, kernel
from fedscaffold.engines.numba_.tables import Sources, Tables

STACK_NUMBERS = 4096  # longer vectors live on the heap, where the loops' length hides the difference
COMPILED_FOR = 64  # features, at most, to be worth a kernel of their own
LARGEST_BATCH, MOST_FEATURES = 16, 1024  # of kernels for one shape of small steps
LONG_RECORD = 256  # features; two clients' records of that length keep the machine busy
SHORT_RECORD = 20  # features, for whose products a step waits less than for an exponential
KERNELS, SMALL_KERNELS, STREAMS = (
    f"fedscaffold.engines.numba_.{name}" for name in ("kernels", "small.kernels", "streams")
)


def table_kernel(read: Tables, dim: int, *, specialise: bool = True, anchored: bool = False) -> Kernel:
    """The fastest kernel for what is read, with `dim` features."""
    form = WEIGHTED if read.loss in WEIGHTED_LOSSES.values() else LINEAR
    on_heap = dim + read.batch > STACK_NUMBERS
    clipped = read.limits is not None
    features = read.width if read.loss in (SOFTMAX, WEIGHTED_SOFTMAX) else dim
    if read.loss in WITHOUT_ANCHOR:
        form, on_heap = read.loss, False
        if anchored:
            raise InvalidInput(
                "the numba engine subtracts gradients at an anchor for losses of one margin, not for several "
                "classes or linear systems; use engine='reference', or 'jax' for several classes"
            )
    special = specialise and features <= COMPILED_FOR and form != DENSE and not on_heap
    plain = form in (LINEAR, WEIGHTED) and not anchored
    small = dim <= MOST_FEATURES and read.batch <= LARGEST_BATCH
    if specialise and small and plain and read.sampling in (WITH_REPLACEMENT, WITHOUT_REPLACEMENT):
        return kernel(
            SMALL_KERNELS, "small_steps_for", dim, read.batch, read.loss, read.free, read.x.dtype.str,
            read.margins is not None, team_size(dim, read.batch, read.loss), clipped,
        )  # fmt: skip
    return kernel(
        KERNELS, "local_sgd_for", features if special else None, form, read.x.dtype.str, read.margins is not None,
        read.sampling, on_heap, anchored, clipped,
    )  # fmt: skip


def team_size(dim: int, batch: int, loss: int) -> int:
    """How many clients side by side are fastest, as measured: more where a step is shorter or waits for slopes."""
    if batch == 1:
        return 4 if dim <= LONG_RECORD else 2
    waits = loss not in (RIDGE, WEIGHTED_RIDGE) and dim <= SHORT_RECORD
    return 2 if batch <= 4 or waits else 1


def stream_kernel(read: Sources, dim: int, *, specialise: bool = True, anchored: bool = False) -> Kernel:
    """The fastest kernel for what is drawn, with `dim` features."""
    if anchored:
        raise InvalidInput("clients that are distributions have no full gradients at an anchor; use a table")
    on_heap = dim + read.batch > STACK_NUMBERS
    special = specialise and dim <= COMPILED_FOR and not on_heap
    return kernel(STREAMS, "stream_sgd_for", dim if special else None, read.loss, read.like.dtype.str, on_heap)
