"""Shares of classes, p_k = exp(z_k) / Σ_j exp(z_j), as LLVM vector code: several records side by side."""

from collections.abc import Callable
from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from fedscaffold.engines.numba_.simd import (
    DOUBLE,
    INT64,
    TARGET_COLUMNS,
    Lanes,
    columns,
    exponential,
    narrowed,
    widened,
)

LEAST_EXPONENT = -708.0  # exp of it is about the least normal double; `exponential` needs an argument of this size


def softmax(*, weighted: bool) -> Any:
    """Intrinsic z_kb ← scale · s_b p_k(z_b) for the classes k of each record b; z_kb is z[k · wide + b].

    The weight s_b is 1, or with `weighted` the last of three numbers in y. Computed in double precision.
    """

    @intrinsic
    def shares_of_batch(
        typing_context: Any, y: Any, base: Any, rows: Any, first: Any, batch: Any, z: Any, wide: Any, classes: Any,
        scale: Any,
    ) -> Any:  # fmt: skip
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            y_, base_, rows_, first_, batch_, z_, wide_, classes_, scale_ = args
            lanes = Lanes.of(context, builder, y)
            doubles = Lanes(builder, DOUBLE, lanes.width)
            largest = cgutils.alloca_once(builder, lanes.vector)
            total = cgutils.alloca_once(builder, doubles.vector)

            def over_classes(b: Any, body: Callable[[Any], None]) -> None:
                with cgutils.for_range(builder, classes_, intp=INT64) as loop:
                    body(builder.add(builder.mul(loop.index, wide_), b))

            def compare(at: Any) -> None:
                builder.store(lanes.call("maxnum", builder.load(largest), lanes.load(z_, at)), largest)

            def exponentiate(at: Any) -> None:
                below = builder.fsub(lanes.load(z_, at), builder.load(largest))
                _, (x,) = widened(lanes, below)
                least = doubles.call("maxnum", x, doubles.constant(LEAST_EXPONENT))  # which is never NaN
                value = exponential(doubles, least, saturating=False)
                lanes.store(narrowed(lanes, value), z_, at)
                builder.store(builder.fadd(builder.load(total), value), total)

            with cgutils.for_range_slice(builder, INT64(0), batch_, INT64(lanes.width), INT64) as (b, _):
                builder.store(lanes.load(z_, b), largest)
                builder.store(doubles.constant(0.0), total)
                over_classes(b, compare)
                over_classes(b, exponentiate)
                own = lanes.splat(scale_)
                if weighted:
                    found = columns(lanes, y_, base_, rows_, builder.add(first_, b), TARGET_COLUMNS)
                    own = builder.fmul(own, found[2])
                _, (own,) = widened(lanes, own)
                share = narrowed(lanes, builder.fdiv(own, builder.load(total)))
                over_classes(b, lambda at: lanes.store(builder.fmul(lanes.load(z_, at), share), z_, at))
            return context.get_dummy_value()

        intp = types.intp
        return types.void(y, intp, rows, intp, intp, z, intp, intp, y.dtype), generate

    return shares_of_batch
