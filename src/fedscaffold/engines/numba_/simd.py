"""The arithmetic of one local step, as LLVM vector code: margins, loss derivatives, descent.

Vectors are 32 bytes (4 doubles or 8 floats; LLVM splits or joins them where the machine differs), said
outright because the automatic vectoriser's width and unrolling change with every detail of the source.
A *group* is a few records of the batch whose dot products run side by side.

θ, shift and z have room for whole vectors and are zero, or ignored, beyond their length; so has `rows`,
which names valid records there. Records are read under a mask at the end of a row, never past it.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

VECTOR_BYTES = 32
TARGET_COLUMNS = 3  # of records with offsets and weights: target, offset, weight
INT32, INT64, DOUBLE = ir.IntType(32), ir.IntType(64), ir.DoubleType()

LOG2_E = 1.4426950408889634
LN2_HIGH, LN2_LOW = 0.6931471803691238, 1.9082149292705877e-10  # the first has 21 trailing zero bits
EXPONENT_SHIFT = 1.5 * 2.0**52 + 1023.0  # added to a whole number k, it leaves k + 1023 in the last bits
INVERSE_FACTORIALS = [1.0]
for _k in range(1, 14):
    INVERSE_FACTORIALS.append(INVERSE_FACTORIALS[-1] / _k)


def in_pairs(items: list[Any]) -> list[tuple[Any, Any]]:
    """(first, second), (third, fourth), ...; an odd last item is left out."""
    return list(zip(items[::2], items[1::2], strict=False))


class Lanes:
    """Emits vector instructions for one type of number."""

    def __init__(self, builder: Any, element: Any, width: int) -> None:
        self.builder, self.width = builder, width
        self.vector = ir.VectorType(element, width)
        self.align = 4 if isinstance(element, ir.FloatType) else 8

    @classmethod
    def of(cls, context: Any, builder: Any, pointer: Any) -> "Lanes":
        """Vectors of what a Numba pointer type points at."""
        return cls(builder, context.get_data_type(pointer.dtype), VECTOR_BYTES * 8 // pointer.dtype.bitwidth)

    def constant(self, value: float) -> Any:
        return ir.Constant(self.vector, [value] * self.width)

    def splat(self, scalar: Any) -> Any:
        undefined = ir.Constant(ir.VectorType(scalar.type, self.width), ir.Undefined)
        first = self.builder.insert_element(undefined, scalar, INT32(0))
        return self.shuffle(first, first, [0] * self.width)

    def shuffle(self, a: Any, b: Any, order: list[int]) -> Any:
        return self.builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(INT32, self.width), order))

    def _address(self, base: Any, index: Any) -> Any:
        return self.builder.bitcast(self.builder.gep(base, [index]), self.vector.as_pointer())

    def load(self, base: Any, index: Any) -> Any:
        return self.builder.load(self._address(base, index), align=self.align)

    def load_masked(self, base: Any, index: Any, mask: Any) -> Any:
        address = self._address(base, index)
        return self.call("masked.load", address, INT32(self.align), mask, self.constant(0.0), suffix=".p0")

    def store(self, value: Any, base: Any, index: Any) -> None:
        self.builder.store(value, self._address(base, index), align=self.align)

    def call(self, name: str, *args: Any, suffix: str = "") -> Any:
        """The vector form of LLVM's intrinsic of that name."""
        kind = ir.FunctionType(self.vector, [arg.type for arg in args])
        full_name = f"llvm.{name}.v{self.width}f{8 * self.align}{suffix}"
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, kind, full_name), args)

    def multiply_add(self, a: Any, b: Any, c: Any) -> Any:
        return self.call("fmuladd", a, b, c)

    def polynomial(self, coefficients: list[Any], x: Any) -> Any:
        """c₀ + c₁x + c₂x² + ..., by Estrin's scheme: pairs first, so that few operations wait in line."""
        if len(coefficients) == 1:
            return coefficients[0]
        halves = [self.multiply_add(b, x, a) for a, b in in_pairs(coefficients)]
        halves += coefficients[len(coefficients) & ~1 :]
        return self.polynomial(halves, self.builder.fmul(x, x))

    def over_vectors(self, count: Any, body: Callable[[Any, Callable[[Any, Any], Any]], None]) -> None:
        """body(j, load) for j = 0, W, 2W, ... below count (features, records); the last load is under a mask."""
        whole = self.builder.and_(count, INT64(-self.width))
        with cgutils.for_range_slice(self.builder, INT64(0), whole, INT64(self.width), INT64) as (j, _):
            body(j, self.load)
        with self.builder.if_then(self.builder.icmp_signed("<", whole, count)):
            left = self.splat(self.builder.sub(count, whole))
            lane = ir.Constant(left.type, list(range(self.width)))
            mask = self.builder.icmp_signed("<", lane, left)
            body(whole, lambda base, index: self.load_masked(base, index, mask))

    def sums(self, vectors: list[Any]) -> list[Any]:
        """Vectors whose elements are, in order, the sums over each given vector.

        Halving: at stride s, two vectors a and b become one that holds aᵢ + aᵢ₊ₛ and bᵢ + bᵢ₊ₛ.
        """
        lane = range(self.width)
        stride = 1
        while stride < self.width:
            keep = [i + self.width * bool(i & stride) for i in lane]
            swap = [(i ^ stride) + self.width * bool(i & stride) for i in lane]
            padded = vectors + vectors[-1:] * (len(vectors) % 2)
            vectors = [
                self.builder.fadd(self.shuffle(a, b, keep), self.shuffle(a, b, swap)) for a, b in in_pairs(padded)
            ]
            stride *= 2
        return vectors


def _row_starts(builder: Any, listed: bool, rows: Any, first: Any, base: Any, d: Any, group: int) -> list[Any]:
    """Where the group's records begin in x: those that are listed in rows, or one after another."""
    starts = []
    for g in range(group):
        row = builder.add(first, INT64(g))
        if listed:
            row = builder.sext(builder.load(builder.gep(rows, [row])), INT64)
        starts.append(builder.mul(builder.add(base, row), d))
    return starts


def are_listed(rows: Any) -> bool:
    """Whether a batch's records are listed, by the Numba type of rows; None stands for all, one after another."""
    return not isinstance(rows, types.NoneType)


def _each(builder: Any, kind: Any, value: Any) -> list[Any]:
    """The items of a tuple; any other value alone."""
    if not isinstance(kind, types.UniTuple):
        return [value]
    return [builder.extract_value(value, i) for i in range(kind.count)]


def margins(group: int) -> Any:
    """Intrinsic z_b = x_bᵀθ for `group` records b, b+1, ...

    θ and z may be tuples: the margins of several models, for which a record is read once. With one record z may be
    one vector, which then gets the margins of all models.
    """

    @intrinsic
    def margins_of_group(
        typing_context: Any, x: Any, d: Any, base: Any, rows: Any, first: Any, theta: Any, z: Any, b: Any
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            x_, d_, base_, rows_, first_, theta_, z_, b_ = args
            lanes = Lanes.of(context, builder, x)
            starts = _row_starts(builder, are_listed(rows), rows_, builder.add(first_, b_), base_, d_, group)
            models, results = _each(builder, theta, theta_), _each(builder, z, z_)
            sums = [[cgutils.alloca_once_value(builder, lanes.constant(0.0)) for _ in starts] for _ in models]

            def body(j: Any, load: Any) -> None:
                each = [lanes.load(model, j) for model in models]
                for g, start in enumerate(starts):
                    record = load(x_, builder.add(start, j))
                    for t, totals in zip(each, sums, strict=True):
                        builder.store(lanes.multiply_add(record, t, builder.load(totals[g])), totals[g])

            lanes.over_vectors(d_, body)
            if group == 1 and len(results) < len(models):
                sums = [[totals[0] for totals in sums]]
            for result, totals in zip(results, sums, strict=True):
                for k, vector in enumerate(lanes.sums([builder.load(total) for total in totals])):
                    lanes.store(vector, result, builder.add(b_, INT64(k * lanes.width)))
            return context.get_dummy_value()

        intp = types.intp
        return types.void(x, intp, intp, rows, intp, theta, z, intp), generate

    return margins_of_group


def descent(group: int, *, opening: bool) -> Any:
    """Intrinsic θ ← θ − Σ z_b x_b over `group` records; the opening one first does θ ← shrink·θ − shift.

    θ, z and shift may be tuples, of several models, for which a record is read once.
    """

    @intrinsic
    def descent_of_group(
        typing_context: Any, x: Any, d: Any, base: Any, rows: Any, first: Any, theta: Any, z: Any, b: Any,
        shrink: Any, shift: Any,
    ) -> Any:  # fmt: skip
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            x_, d_, base_, rows_, first_, theta_, z_, b_, shrink_, shift_ = args
            lanes = Lanes.of(context, builder, x)
            starts = _row_starts(builder, are_listed(rows), rows_, builder.add(first_, b_), base_, d_, group)
            places = [builder.add(b_, INT64(g)) for g in range(group)]
            models, shifts = _each(builder, theta, theta_), _each(builder, shift, shift_)
            factors = [
                [lanes.splat(builder.load(builder.gep(slopes, [place]))) for place in places]
                for slopes in _each(builder, z, z_)
            ]
            shrinks = lanes.splat(shrink_)

            def body(j: Any, load: Any) -> None:
                records = [load(x_, builder.add(start, j)) for start in starts]
                for model, own_shift, slopes in zip(models, shifts, factors, strict=True):
                    t = lanes.load(model, j)
                    if opening:
                        t = builder.fsub(builder.fmul(shrinks, t), lanes.load(own_shift, j))
                    chains = [lanes.constant(0.0), lanes.constant(0.0)]  # two, to wait half as long
                    for g, (record, slope) in enumerate(zip(records, slopes, strict=True)):
                        chains[g % 2] = lanes.multiply_add(slope, record, chains[g % 2])
                    lanes.store(builder.fsub(t, builder.fadd(*chains)), model, j)

            lanes.over_vectors(d_, body)
            return context.get_dummy_value()

        intp = types.intp
        return types.void(x, intp, intp, rows, intp, theta, z, intp, x.dtype, shift), generate

    return descent_of_group


def exponential(lanes: Lanes, x: Any, *, saturating: bool = True) -> Any:
    """eˣ of a vector of doubles, to 2 units in the last place for |x| ≤ 700; saturates beyond unless told not to.

    x = k ln 2 + r; eʳ by its series; 2ᵏ by writing the exponent's bits.
    """
    builder = lanes.builder
    k = lanes.call("floor", lanes.multiply_add(x, lanes.constant(LOG2_E), lanes.constant(0.5)))
    r = lanes.multiply_add(k, lanes.constant(-LN2_HIGH), x)
    r = lanes.multiply_add(k, lanes.constant(-LN2_LOW), r)
    series = lanes.polynomial([lanes.constant(c) for c in INVERSE_FACTORIALS], r)
    if saturating:
        k = lanes.call("minnum", lanes.call("maxnum", k, lanes.constant(-1022.0)), lanes.constant(1022.0))
    shifted = builder.fadd(k, lanes.constant(EXPONENT_SHIFT))  # whose last bits are k + 1023
    bits = builder.bitcast(shifted, ir.VectorType(INT64, lanes.width))
    bits = builder.shl(bits, ir.Constant(bits.type, [52] * lanes.width))
    return builder.fmul(series, builder.bitcast(bits, lanes.vector))


def ridge_derivative(lanes: Lanes, scale: Any, z: Any, y: Any) -> Any:
    """Scale · ℓ'(z), ℓ'(z) = z − y."""
    return lanes.builder.fmul(scale, lanes.builder.fsub(z, y))


def widened(lanes: Lanes, *vectors: Any) -> tuple[Lanes, list[Any]]:
    """The vectors in double precision, and what emits instructions for them."""
    wide = Lanes(lanes.builder, DOUBLE, lanes.width)
    if vectors[0].type == wide.vector:
        return wide, list(vectors)
    return wide, [lanes.builder.fpext(vector, wide.vector) for vector in vectors]


def narrowed(lanes: Lanes, value: Any) -> Any:
    """A vector of doubles in the precision of `lanes`."""
    return value if value.type == lanes.vector else lanes.builder.fptrunc(value, lanes.vector)


def logistic_derivative(lanes: Lanes, scale: Any, z: Any, y: Any) -> Any:
    """Scale · ℓ'(z), ℓ'(z) = −y / (1 + exp(y z)), computed in double precision."""
    builder = lanes.builder
    wide, (scale, z, y) = widened(lanes, scale, z, y)
    above = builder.fneg(builder.fmul(scale, y))
    below = builder.fadd(wide.constant(1.0), exponential(wide, builder.fmul(y, z)))
    return narrowed(lanes, builder.fdiv(above, below))


def poisson_derivative(lanes: Lanes, scale: Any, z: Any, y: Any) -> Any:
    """Scale · ℓ'(z), ℓ'(z) = exp(z) − y, computed in double precision."""
    wide, (scale, z, y) = widened(lanes, scale, z, y)
    return narrowed(lanes, lanes.builder.fmul(scale, lanes.builder.fsub(exponential(wide, z), y)))


def gamma_derivative(lanes: Lanes, scale: Any, z: Any, y: Any) -> Any:
    """Scale · ℓ'(z), ℓ'(z) = 1 − y exp(−z), computed in double precision."""
    builder = lanes.builder
    wide, (scale, z, y) = widened(lanes, scale, z, y)
    ratio = builder.fmul(y, exponential(wide, builder.fneg(z)))
    return narrowed(lanes, builder.fmul(scale, builder.fsub(wide.constant(1.0), ratio)))


def clamped(lanes: Lanes, scale: Any, slope: Any, limit: Any) -> Any:
    """The slope, but no further from 0 than scale · limit; what is not a number stays so."""
    builder = lanes.builder
    largest = builder.fmul(scale, limit)
    smallest = builder.fneg(largest)
    above = builder.select(builder.fcmp_ordered("<", slope, smallest), smallest, slope)
    return builder.select(builder.fcmp_ordered(">", above, largest), largest, above)


def columns(lanes: Lanes, y: Any, base: Any, rows: Any, place: Any, count: int) -> list[Any]:
    """The `count` numbers in y of as many records as a vector has lanes, from rows[place] on: one vector each.

    Those past the batch are valid records, computed and never used.
    """
    builder = lanes.builder
    places = [builder.add(place, INT64(lane)) for lane in range(lanes.width)]
    listed = [builder.sext(builder.load(builder.gep(rows, [at])), INT64) for at in places]
    return gathered(lanes, y, [builder.add(base, row) for row in listed], count)


def in_order(lanes: Lanes, base: Any, first: Any, count: Any) -> list[Any]:
    """The client's record `first` and those that follow, one for each lane; the last of `count` fills the rest."""
    builder, last = lanes.builder, lanes.builder.sub(count, INT64(1))
    places = [builder.add(first, INT64(lane)) for lane in range(lanes.width)]
    within = [builder.select(builder.icmp_signed("<", place, last), place, last) for place in places]
    return [builder.add(base, place) for place in within]


def gathered(lanes: Lanes, y: Any, records: list[Any], count: int) -> list[Any]:
    """The `count` numbers in y of each record, one vector each; the last record fills lanes that are left."""
    builder = lanes.builder
    found = [ir.Constant(lanes.vector, ir.Undefined) for _ in range(count)]
    for k in range(count):
        places = [builder.add(builder.mul(record, INT64(count)), INT64(k)) for record in records]
        numbers = [builder.load(builder.gep(y, [place])) for place in places]
        numbers += numbers[-1:] * (lanes.width - len(numbers))
        for lane, number in enumerate(numbers):
            found[k] = builder.insert_element(found[k], number, INT32(lane))
    return found


def derivatives(formula: Callable[[Lanes, Any, Any, Any], Any], *, weighted: bool = False) -> Any:
    """Intrinsic z_b ← scale · ℓ'(z_b, y_b) − aside_b for the whole batch; `aside` is of all records, or None.

    With `limits` of all records, not None, scale · ℓ' is no further from 0 than scale · limit_b. With `weighted`,
    y holds target, offset and weight (y, o, s) of each record, and the derivative is
    scale · s_b ℓ'(z_b + o_b, y_b).
    """

    @intrinsic
    def derivatives_of_batch(
        typing_context: Any, y: Any, base: Any, rows: Any, first: Any, batch: Any, z: Any, scale: Any, aside: Any,
        limits: Any,
    ) -> Any:  # fmt: skip
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            y_, base_, rows_, first_, batch_, z_, scale_, aside_, limits_ = args
            lanes = Lanes.of(context, builder, y)
            scales = lanes.splat(scale_)

            def slopes(b: Any, targets: list[Any], at_anchor: Any, limit: Any) -> None:
                margin, factors = lanes.load(z_, b), scales
                if weighted:
                    margin, factors = builder.fadd(margin, targets[1]), builder.fmul(scales, targets[2])
                slope = formula(lanes, factors, margin, targets[0])
                if limit is not None:
                    slope = clamped(lanes, scales, slope, limit)
                lanes.store(slope if at_anchor is None else builder.fsub(slope, at_anchor), z_, b)

            anchored, clipped = (not isinstance(given, types.NoneType) for given in (aside, limits))
            if are_listed(rows):
                step = INT64(lanes.width)
                with cgutils.for_range_slice(builder, INT64(0), batch_, step, INT64) as (b, _):
                    place = builder.add(first_, b)
                    targets = columns(lanes, y_, base_, rows_, place, TARGET_COLUMNS if weighted else 1)
                    at_anchor = columns(lanes, aside_, INT64(0), rows_, place, 1)[0] if anchored else None
                    limit = columns(lanes, limits_, base_, rows_, place, 1)[0] if clipped else None
                    slopes(b, targets, at_anchor, limit)
            else:

                def body(b: Any, load: Any) -> None:
                    targets = [load(y_, builder.add(base_, b))]
                    if weighted:
                        targets = gathered(lanes, y_, in_order(lanes, base_, b, batch_), TARGET_COLUMNS)
                    limit = load(limits_, builder.add(base_, b)) if clipped else None
                    slopes(b, targets, load(aside_, b) if anchored else None, limit)

                lanes.over_vectors(batch_, body)
            return context.get_dummy_value()

        intp = types.intp
        return types.void(y, intp, rows, intp, intp, z, y.dtype, aside, limits), generate

    return derivatives_of_batch
