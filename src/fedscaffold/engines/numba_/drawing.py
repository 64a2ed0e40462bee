"""`core.random.normals` and `core.random.noise`, compiled: eight blocks of Philox side by side.

LLVM vector code, as in `simd.py`. The logarithm and the sine are polynomials, right to 1e-12 for the numbers that
words can give: numbers agree with `core.random.normals` to that.
"""

import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from fedscaffold.core.random.noise import MIXED, NEARLY_NORMAL, NOISE_GROUP
from fedscaffold.core.random.normals import GROUP, LANES
from fedscaffold.core.random.stream import MULTIPLIERS, PHILOX_ROUNDS, WEYL
from fedscaffold.engines.numba_.simd import DOUBLE, INT32, INT64, Lanes, exponential, narrowed

LOW, TOP = 0xFFFFFFFF, 1 << 63
TWO_52 = 1075 << 52  # the bits of 2⁵²: a whole number below 2⁵² put in its last bits is added to it
EXPONENT = 0xFFF << 52  # where a double has its exponent
ROOT_HALF = 0x3FE6A09E00000000  # the bits of about √½
HALF_RANGE = 2.0**7  # half the number of values of a byte
TWO, THREE = types.UniTuple(types.int64, 2), types.UniTuple(types.int64, 3)


def economised(series: list[Fraction], largest: Fraction, terms: int) -> list[float]:
    """The first `terms` coefficients of a power series, changed so that they do for 0 ≤ x ≤ largest.

    The highest power is replaced by the lower ones of the Chebyshev polynomial that it leads, again and again
    (Lanczos 1956). Fractions have no rounding: the coefficients are the same on every machine.
    """
    kept = list(series)
    while len(kept) > terms:
        leading = _chebyshev(len(kept) - 1)
        factor = kept.pop() * largest ** len(kept) / leading[-1]
        for k, coefficient in enumerate(leading[:-1]):
            kept[k] -= factor * coefficient / largest**k
    return [float(coefficient) for coefficient in kept]


def _chebyshev(degree: int) -> list[int]:
    """Coefficients of T(2x − 1), the Chebyshev polynomial of one degree for 0 ≤ x ≤ 1."""
    before, now = [1], [-1, 2]
    for _ in range(degree - 1):
        following = [0] * (len(now) + 1)
        for k, coefficient in enumerate(now):  # 2 (2x − 1) T − what was before
            following[k] -= 2 * coefficient
            following[k + 1] += 4 * coefficient
        for k, coefficient in enumerate(before):
            following[k] -= coefficient
        before, now = now, following
    return now


# −2 log((1 + s)/(1 − s)) = s · polynomial(s²) for |s| ≤ 3 − 2√2; sine and cosine of up to 2²⁹ parts, 2³² to a turn
LOGARITHM = economised([Fraction(-4, 2 * k + 1) for k in range(20)], Fraction(17157288, 10**8) ** 2, 6)
PART = Fraction(2.0 * math.pi / 2.0**32)
SINE = economised([PART * (-(PART**2)) ** k / math.factorial(2 * k + 1) for k in range(16)], Fraction(2**58), 6)
COSINE = economised([(-(PART**2)) ** k / math.factorial(2 * k) for k in range(16)], Fraction(2**58), 6)


class Words:
    """Emits integer instructions on 64-bit numbers, eight for each group."""

    def __init__(self, builder: Any, groups: int = 1) -> None:
        self.b, self.width = builder, LANES * groups
        self.vector = ir.VectorType(INT64, self.width)

    def constant(self, value: int) -> Any:
        """The same number in every place."""
        return ir.Constant(self.vector, [value] * self.width)

    def low(self, x: Any) -> Any:
        """The lower 32 bits."""
        return self.b.and_(x, self.constant(LOW))

    def high(self, x: Any) -> Any:
        """The upper 32 bits."""
        return self.b.lshr(x, self.constant(32))

    def splat(self, scalar: Any) -> Any:
        """A number that is known only when running, in every place."""
        first = self.b.insert_element(ir.Constant(self.vector, ir.Undefined), scalar, INT32(0))
        return self.b.shuffle_vector(first, first, ir.Constant(ir.VectorType(INT32, self.width), [0] * self.width))

    def exact(self, x: Any, less: float = 0.0) -> Any:
        """Whole numbers from 0 to 2⁵² − 1 as doubles, less a multiple of one half."""
        doubles = ir.VectorType(DOUBLE, self.width)
        shifted = self.b.bitcast(self.b.or_(x, self.constant(TWO_52)), doubles)
        return self.b.fsub(shifted, ir.Constant(doubles, [2.0**52 + less] * self.width))


def philox(w: Words, block: Any, counter: list[Any], key: list[Any]) -> list[Any]:
    """The four words of each block; bits above the 32nd are left as they come until the end."""
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


def squared_radius(w: Words, f: Lanes, word: Any) -> Any:
    """−2 log((word + ½)/2³²): word + ½ = 2ᵉ m with m in [√½, √2), m = (1 + s)/(1 − s) with s = (m − 1)/(m + 1)."""
    b = w.b
    bits = b.bitcast(w.exact(word, -0.5), w.vector)
    off = b.sub(bits, w.constant(ROOT_HALF))
    m = b.bitcast(b.sub(bits, b.and_(off, w.constant(EXPONENT))), f.vector)
    s = b.fdiv(b.fsub(m, f.constant(1.0)), b.fadd(m, f.constant(1.0)))
    series = b.fmul(s, horner(f, LOGARITHM, b.fmul(s, s)))
    e = b.bitcast(b.add(b.ashr(off, w.constant(52)), w.constant(TWO_52 + 64)), f.vector)  # 2⁵² + 64 + e
    whole = b.fsub(e, f.constant(2.0**52 + 96.0))
    return f.multiply_add(whole, f.constant(-2.0 * math.log(2.0)), series)


def turned(w: Words, f: Lanes, word: Any) -> tuple[Any, Any]:
    """Cosine and sine of 2π word/2³²: the nearest quarter turn, and polynomials for the rest."""
    b = w.b
    ahead = b.add(word, w.constant(1 << 29))
    rest = w.exact(b.and_(ahead, w.constant((1 << 30) - 1)), float(1 << 29))
    square = b.fmul(rest, rest)
    sine = b.fmul(rest, horner(f, SINE, square))
    cosine = horner(f, COSINE, square)
    odd = b.icmp_unsigned("!=", b.and_(ahead, w.constant(1 << 30)), w.constant(0))
    first, second = b.select(odd, sine, cosine), b.select(odd, cosine, sine)
    # the cosine is negative in quarters 1 and 2, the sine in 2 and 3
    flip_sine = b.shl(ahead, w.constant(32))
    flip_cosine = b.add(flip_sine, w.constant(1 << 62))
    found = (
        b.xor(b.bitcast(v, w.vector), b.and_(flip, w.constant(TOP)))
        for v, flip in ((first, flip_cosine), (second, flip_sine))
    )
    first, second = (b.bitcast(v, f.vector) for v in found)
    return first, second


def horner(f: Lanes, coefficients: list[float], x: Any) -> Any:
    """c₀ + c₁x + c₂x² + ... with one operation a term: operations wait in line, but others run meanwhile."""
    total = f.constant(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = f.multiply_add(total, x, f.constant(coefficient))
    return total


def normal_pairs(w: Words, f: Lanes, words: list[Any], scale: Any) -> list[Any]:
    """Four vectors of normal numbers, times `scale`, from the four words of each block."""
    b = w.b
    found = []
    for u, v in ((words[0], words[1]), (words[2], words[3])):
        radius = b.fmul(scale, f.call("sqrt", squared_radius(w, f, u)))
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
            for group, words in _words_of_groups(w, first_, groups_, key_, counter_):
                begin = builder.mul(group, INT64(GROUP))
                places = [builder.add(begin, INT64(k * LANES)) for k in range(4)]
                tables = [_as_doubles(f, given.load(table_, place)) for place in places]
                numbers = make(w, f, words, f.splat(scale_), tables)
                for vector, place in zip(numbers, places, strict=True):
                    stored.store(narrowed(stored, vector), out_, place)
            return context.get_dummy_value()

        return types.void(out, table, types.int64, types.int64, TWO, THREE, types.float64), generate

    return draw


def _words_of_groups(w: Words, first: Any, groups: Any, key: Any, counter: Any) -> Iterator[tuple[Any, list[Any]]]:
    """Emits a loop over groups from block `first` on, as many at once as w has; gives the first and the words."""
    b = w.b
    keys = [w.splat(b.extract_value(key, i)) for i in range(2)]
    counters = [w.splat(b.extract_value(counter, i)) for i in range(3)]
    lane = ir.Constant(w.vector, list(range(w.width)))
    with cgutils.for_range_slice(b, INT64(0), groups, INT64(w.width // LANES), INT64) as (group, _):
        block = b.add(first, b.mul(group, INT64(LANES)))
        yield group, philox(w, b.add(w.splat(block), lane), counters, keys)


def _as_doubles(f: Lanes, vector: Any) -> Any:
    return vector if vector.type == f.vector else f.builder.fpext(vector, f.vector)


@intrinsic
def draw_step_noise(
    typing_context: Any, out: Any, first: Any, groups: Any, key: Any, counter: Any, scale: Any
) -> Any:
    """Draws an even number of groups of `core.random.noise`, from block `first` on, times the scale.

    Words are drawn for two groups side by side: one's operations run while the other's wait.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        out_, first_, groups_, key_, counter_, scale_ = args
        w, f = Words(builder), Lanes(builder, DOUBLE, LANES)
        stored = Lanes(builder, context.get_data_type(out.dtype), LANES)
        quarter = builder.fmul(f.splat(scale_), f.constant(0.25))
        coefficients = [
            builder.fmul(quarter, f.constant(c / HALF_RANGE ** (2 * k + 1))) for k, c in enumerate(NEARLY_NORMAL)
        ]
        for group, words in _words_of_groups(Words(builder, 2), first_, groups_, key_, counter_):
            for g in range(2):
                lanes = ir.Constant(ir.VectorType(INT32, LANES), list(range(g * LANES, (g + 1) * LANES)))
                own = [builder.shuffle_vector(word, word, lanes) for word in words]
                parts = [nearly_normal(w, f, word, byte, coefficients) for word in own for byte in range(4)]
                begin = builder.mul(builder.add(group, INT64(g)), INT64(NOISE_GROUP))
                for k, vector in enumerate(mixed(builder, parts)):
                    stored.store(narrowed(stored, vector), out_, builder.add(begin, INT64(k * LANES)))
        return context.get_dummy_value()

    return types.void(out, types.int64, types.int64, TWO, THREE, types.float64), generate


def nearly_normal(w: Words, f: Lanes, word: Any, byte: int, coefficients: list[Any]) -> Any:
    """c₀x + c₁x³ + c₂x⁵ + ... of x = b + ½ − 2⁷, where b is a byte of each word, the lowest first.

    A byte becomes a number by lying in some bits of a power of two, with lower ones for the half.
    """
    b = w.b
    place = 8 if byte < 2 else 24  # where the byte begins; bytes 0 and 2 are brought to the next one's place
    found = word if byte % 2 else b.shl(word, w.constant(8))
    bits = b.or_(b.and_(found, w.constant(0xFF << place)), w.constant(TWO_52 - (place << 52)))
    x = b.fsub(b.bitcast(bits, f.vector), f.constant(2.0 ** (52 - place) + HALF_RANGE - 0.5))
    square = b.fmul(x, x)
    total = coefficients[-1]
    for coefficient in reversed(coefficients[:-1]):
        total = f.multiply_add(total, square, coefficient)
    return b.fmul(x, total)


def mixed(b: Any, parts: list[Any]) -> list[Any]:
    """Sums of sixteen vectors with the signs of `core.random.noise`, by sums of two for one bit at a time."""
    for bit in (1, 2, 4, 8):
        for i in range(MIXED):
            if not i & bit:
                x, y = parts[i], parts[i + bit]
                parts[i], parts[i + bit] = b.fadd(x, y), b.fsub(y, x) if i & bit >> 1 else b.fsub(x, y)
    return parts


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
