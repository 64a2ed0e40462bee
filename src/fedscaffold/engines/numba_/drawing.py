"""`fedscaffold.core.random.normals`, compiled: eight blocks of Philox side by side, and their words made normal.

LLVM vector code, as in `simd.py`. The logarithm and the sine are polynomials, right to some 1e-16 for the numbers
that words can give.
"""

import math
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from fedscaffold.core.random.normals import GROUP, LANES
from fedscaffold.core.random.stream import MULTIPLIERS, PHILOX_ROUNDS, WEYL
from fedscaffold.engines.numba_.simd import DOUBLE, INT64, LN2_HIGH, LN2_LOW, Lanes, exponential

WORD = ir.VectorType(INT64, LANES)
LOW = 0xFFFFFFFF
MANTISSA, ONE = (1 << 52) - 1, 1023 << 52
TWO_52 = 1075 << 52  # the bits of 2⁵²: a whole number below 2⁵² put in its last bits is added to it
ROOT_HALF = 0x3FE6A09E00000000  # the bits of about √½

# 2 artanh(s) = log((1 + s)/(1 − s)) for |s| ≤ 3 − 2√2
LOGARITHM = [2.0 / (2 * k + 1) for k in range(10)]
TURN = 2.0 * math.pi / 2.0**32
SINE = [(-1.0) ** k / math.factorial(2 * k + 1) for k in range(8)]
COSINE = [(-1.0) ** k / math.factorial(2 * k) for k in range(9)]


class Words:
    """Emits integer instructions on eight 64-bit numbers."""

    def __init__(self, builder: Any) -> None:
        self.b = builder

    def constant(self, value: int) -> Any:
        """The same number eight times."""
        return ir.Constant(WORD, [value] * LANES)

    def low(self, x: Any) -> Any:
        """The lower 32 bits."""
        return self.b.and_(x, self.constant(LOW))

    def high(self, x: Any) -> Any:
        """The upper 32 bits."""
        return self.b.lshr(x, self.constant(32))

    def splat(self, scalar: Any) -> Any:
        """A number that is known only when running, eight times."""
        first = self.b.insert_element(ir.Constant(WORD, ir.Undefined), scalar, ir.IntType(32)(0))
        return self.b.shuffle_vector(first, first, ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES))

    def exact(self, x: Any) -> Any:
        """Whole numbers from 0 to 2⁵² − 1 as doubles."""
        doubles = ir.VectorType(DOUBLE, LANES)
        shifted = self.b.bitcast(self.b.or_(x, self.constant(TWO_52)), doubles)
        return self.b.fsub(shifted, ir.Constant(doubles, [2.0**52] * LANES))


def philox(w: Words, block: Any, counter: list[Any], key: list[Any]) -> list[Any]:
    """The four words of eight blocks; bits above the 32nd are left as they come until the end."""
    a, b, c, d = block, *counter
    x, y = key
    for _ in range(PHILOX_ROUNDS):
        p, q = (
            w.b.mul(w.low(n), w.constant(m)) for n, m in zip((a, c), MULTIPLIERS, strict=True)
        )  # of 32-bit numbers, which the machine multiplies faster
        a, b = w.b.xor(w.b.xor(w.high(q), b), x), q
        c, d = w.b.xor(w.b.xor(w.high(p), d), y), p
        x, y = (w.b.add(k, w.constant(step)) for k, step in zip((x, y), WEYL, strict=True))
    return [w.low(n) for n in (a, b, c, d)]


def logarithm(w: Words, f: Lanes, x: Any) -> Any:
    """Natural logarithm of positive doubles: x = 2ᵉ m with m in [√½, √2), log m = 2 artanh((m − 1)/(m + 1))."""
    b = w.b
    bits = b.bitcast(x, WORD)
    off = b.sub(bits, w.constant(ROOT_HALF))
    e = b.ashr(off, w.constant(52))
    m = b.bitcast(b.sub(bits, b.shl(e, w.constant(52))), f.vector)
    s = b.fdiv(b.fsub(m, f.constant(1.0)), b.fadd(m, f.constant(1.0)))
    square = b.fmul(s, s)
    series = b.fmul(s, f.polynomial([f.constant(c) for c in LOGARITHM], square))
    whole = b.fsub(w.exact(b.add(e, w.constant(64))), f.constant(64.0))
    return f.multiply_add(whole, f.constant(LN2_HIGH), f.multiply_add(whole, f.constant(LN2_LOW), series))


def turned(w: Words, f: Lanes, word: Any) -> tuple[Any, Any]:
    """Cosine and sine of 2π word/2³²: the nearest quarter turn, and polynomials for the rest."""
    b = w.b
    ahead = b.add(word, w.constant(1 << 29))
    quarter = b.lshr(ahead, w.constant(30))
    rest = b.fsub(w.exact(b.and_(ahead, w.constant((1 << 30) - 1))), f.constant(float(1 << 29)))
    angle = b.fmul(rest, f.constant(TURN))
    square = b.fmul(angle, angle)
    sine = b.fmul(angle, f.polynomial([f.constant(c) for c in SINE], square))
    cosine = f.polynomial([f.constant(c) for c in COSINE], square)
    odd = b.trunc(quarter, ir.VectorType(ir.IntType(1), LANES))
    first, second = b.select(odd, sine, cosine), b.select(odd, cosine, sine)
    # the cosine is negative in quarters 1 and 2, the sine in 2 and 3
    flip_sine = b.shl(b.lshr(quarter, w.constant(1)), w.constant(63))
    flip_cosine = b.shl(b.lshr(b.add(quarter, w.constant(1)), w.constant(1)), w.constant(63))
    first, second = (b.xor(b.bitcast(v, WORD), flip) for v, flip in ((first, flip_cosine), (second, flip_sine)))
    return b.bitcast(first, f.vector), b.bitcast(second, f.vector)


def normal_pairs(w: Words, f: Lanes, words: list[Any], scale: Any) -> list[Any]:
    """Four vectors of normal numbers, times `scale`, from the four words of eight blocks."""
    b = w.b
    found = []
    for u, v in ((words[0], words[1]), (words[2], words[3])):
        near = b.fadd(w.exact(u), f.constant(0.5))
        log = logarithm(w, f, b.fmul(near, f.constant(2.0**-32)))
        radius = b.fmul(scale, f.call("sqrt", b.fmul(log, f.constant(-2.0))))
        found += [b.fmul(radius, part) for part in turned(w, f, v)]
    return found


def _drawer(make: Callable[[Words, Lanes, list[Any], Any, list[Any]], list[Any]]) -> Any:
    """Intrinsic that draws `groups` groups of numbers from block `first` on, made of words, a scale and a table.

    make gets the words, the scale, and 32 numbers of the table as vectors that are loaded when they are used.
    """

    @intrinsic
    def draw(
        typing_context: Any, out: Any, table: Any, first: Any, groups: Any, key: Any, counter: Any, scale: Any
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            out_, table_, first_, groups_, key_, counter_, scale_ = args
            w, f = Words(builder), Lanes(builder, DOUBLE, LANES)
            stored = Lanes(builder, context.get_data_type(out.dtype), LANES)
            given = Lanes(builder, context.get_data_type(table.dtype), LANES)
            keys = [w.splat(builder.extract_value(key_, i)) for i in range(2)]
            counters = [w.splat(builder.extract_value(counter_, i)) for i in range(3)]
            lane = ir.Constant(WORD, list(range(LANES)))
            with cgutils.for_range(builder, groups_, intp=INT64) as loop:
                block = builder.add(first_, builder.mul(loop.index, INT64(LANES)))
                words = philox(w, builder.add(w.splat(block), lane), counters, keys)
                begin = builder.mul(loop.index, INT64(GROUP))
                places = [builder.add(begin, INT64(k * LANES)) for k in range(4)]
                tables = [given.load(table_, place) for place in places]
                if given.vector != f.vector:
                    tables = [builder.fpext(vector, f.vector) for vector in tables]
                numbers = make(w, f, words, f.splat(scale_), tables)
                if stored.vector != f.vector:
                    numbers = [builder.fptrunc(vector, stored.vector) for vector in numbers]
                for vector, place in zip(numbers, places, strict=True):
                    stored.store(vector, out_, place)
            return context.get_dummy_value()

        two, three = types.UniTuple(types.int64, 2), types.UniTuple(types.int64, 3)
        return types.void(out, table, types.int64, types.int64, two, three, types.float64), generate

    return draw


def features(w: Words, f: Lanes, words: list[Any], scale: Any, table: list[Any]) -> list[Any]:
    """Normal numbers times the scale and the table."""
    made = normal_pairs(w, f, words, scale)
    return [w.b.fmul(number, each) for number, each in zip(made, table, strict=True)]


def noise(w: Words, f: Lanes, words: list[Any], scale: Any, table: list[Any]) -> list[Any]:
    """Normal numbers times the scale."""
    return normal_pairs(w, f, words, scale)


def uniform(w: Words, f: Lanes, words: list[Any], scale: Any, table: list[Any]) -> list[Any]:
    """(word + ½) times the scale."""
    return [w.b.fmul(w.b.fadd(w.exact(word), f.constant(0.5)), scale) for word in words]


def labels(w: Words, f: Lanes, words: list[Any], scale: Any, table: list[Any]) -> list[Any]:
    """1 where u (1 + exp(−z)) < 1, so with probability 1/(1 + exp(−z)), and −1 elsewhere; z is the table's."""
    found = []
    for u, z in zip(uniform(w, f, words, scale, table), table, strict=True):
        odds = w.b.fadd(f.constant(1.0), exponential(f, w.b.fneg(z)))
        yes = w.b.fcmp_ordered("<", w.b.fmul(u, odds), f.constant(1.0))
        found.append(w.b.select(yes, f.constant(1.0), f.constant(-1.0)))
    return found


draw_features = _drawer(features)
draw_normals = _drawer(noise)
draw_uniforms = _drawer(uniform)
draw_labels = _drawer(labels)
