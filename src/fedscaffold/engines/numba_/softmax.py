"""Shares of classes, p_k = exp(z_k) / Σ_j exp(z_j), as LLVM vector code: several records side by side."""

import math
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from fedscaffold.engines.numba_.simd import (
    DOUBLE,
    INT32,
    INT64,
    TARGET_COLUMNS,
    Lanes,
    columns,
    exponential,
    narrowed,
    widened,
)

LEAST_EXPONENT = -708.0  # exp of it is about the least normal double; `exponential` needs an argument of this size


def powers(doubles: Lanes, x: Any) -> Any:
    """eˣ of doubles that are at most 0; of those that are no numbers, that of the least."""
    return exponential(doubles, doubles.call("maxnum", x, doubles.constant(LEAST_EXPONENT)), saturating=False)


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
                value = powers(doubles, x)
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


def softmax_of_record(*, weighted: bool) -> Any:
    """Intrinsic z_k ← scale · s p_k(z) for the classes k of a single record, as `softmax` computes it.

    Here classes are side by side in a vector, of which several records would leave most of it unused.
    """

    @intrinsic
    def shares_of_record(
        typing_context: Any, y: Any, base: Any, rows: Any, first: Any, z: Any, classes: Any, scale: Any
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            y_, base_, rows_, first_, z_, classes_, scale_ = args
            lanes = Lanes.of(context, builder, y)
            doubles = Lanes(builder, DOUBLE, lanes.width)
            largest = cgutils.alloca_once_value(builder, lanes.constant(-math.inf))
            total = cgutils.alloca_once_value(builder, DOUBLE(0.0))

            def over_classes(body: Callable[[Any, Any], None]) -> None:
                with cgutils.for_range_slice(builder, INT64(0), classes_, INT64(lanes.width), INT64) as (k, _):
                    left = lanes.splat(builder.sub(classes_, k))
                    body(k, builder.icmp_signed("<", ir.Constant(left.type, list(range(lanes.width))), left))

            def compare(k: Any, inside: Any) -> None:
                margins = builder.select(inside, lanes.load(z_, k), lanes.constant(-math.inf))
                builder.store(lanes.call("maxnum", builder.load(largest), margins), largest)

            def exponentiate(k: Any, inside: Any) -> None:
                _, (x,) = widened(lanes, builder.fsub(lanes.load(z_, k), builder.load(largest)))
                value = powers(doubles, x)
                lanes.store(narrowed(lanes, value), z_, k)
                counted = builder.select(inside, value, doubles.constant(0.0))
                for lane in range(lanes.width):  # one after another, as for several records
                    number = builder.extract_element(counted, INT32(lane))
                    builder.store(builder.fadd(builder.load(total), number), total)

            over_classes(compare)
            stride = lanes.width // 2
            while stride:
                found = builder.load(largest)
                other = lanes.shuffle(found, found, [lane ^ stride for lane in range(lanes.width)])
                builder.store(lanes.call("maxnum", found, other), largest)
                stride //= 2
            over_classes(exponentiate)
            own = scale_
            if weighted:
                row = builder.add(base_, builder.sext(builder.load(builder.gep(rows_, [first_])), INT64))
                at = builder.add(builder.mul(row, INT64(TARGET_COLUMNS)), INT64(TARGET_COLUMNS - 1))
                own = builder.fmul(own, builder.load(builder.gep(y_, [at])))
            _, (wide,) = widened(lanes, lanes.splat(own))
            share = narrowed(lanes, builder.fdiv(wide, doubles.splat(builder.load(total))))
            over_classes(lambda k, _: lanes.store(builder.fmul(lanes.load(z_, k), share), z_, k))
            return context.get_dummy_value()

        intp = types.intp
        return types.void(y, intp, rows, intp, z, intp, y.dtype), generate

    return shares_of_record
