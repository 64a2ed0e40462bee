"""Normal numbers of the compiled engine: polynomials against NumPy's functions, also at the ends."""

from fractions import Fraction
from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

from fedscaffold.core.random.noise import NOISE_GROUP, RECORD_KEY, step_noise
from fedscaffold.core.random.normals import LANES
from fedscaffold.core.random.stream import Stream
from fedscaffold.engines.numba_ import drawing
from fedscaffold.engines.numba_.intrinsics import pointer
from fedscaffold.engines.numba_.simd import DOUBLE, INT64, Lanes

QUARTERS = [q * 2**29 + k for q in range(8) for k in (-1, 0, 1)]
WORDS = np.array([k % 2**32 for k in QUARTERS], dtype=np.int64).reshape(-1, LANES)  # with 0 and 2³² − 1


def _pairs_of_words(typing_context: Any, words: Any, out: Any) -> Any:
    """The normal numbers of eight words u and the eight behind them, v: eight cosines, then eight sines."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        w, f = drawing.Words(builder), Lanes(builder, DOUBLE, LANES)
        u, v = (
            builder.load(
                builder.bitcast(builder.gep(args[0], [INT64(k)]), w.vector.as_pointer()), align=8
            )
            for k in (0, LANES)
        )  # fmt: skip
        for k, part in enumerate(drawing.normal_pairs(w, f, [u, v, u, v], f.constant(1.0))[:2]):
            f.store(part, args[1], INT64(k * LANES))
        return context.get_dummy_value()

    return types.void(words, out), generate


pairs_of_words: Any = intrinsic(_pairs_of_words)
address: Any = pointer


@njit
def transform(words: Any, out: Any) -> None:
    pairs_of_words(address(words), address(out))


def test_words_become_normal_numbers_as_in_the_definition() -> None:
    rng = np.random.default_rng(0)
    some = rng.integers(0, 2**32, size=(500, LANES))
    for u in (*WORDS, *some[:20]):
        for v in (*WORDS, *some):
            out = np.empty((2, LANES))
            transform(np.concatenate([u, v]), out.reshape(-1))
            radius = np.sqrt(-2.0 * np.log((u + 0.5) / 2.0**32))
            angle = v * (2.0 * np.pi / 2.0**32)
            np.testing.assert_allclose(out[0], radius * np.cos(angle), rtol=0, atol=1e-12)
            np.testing.assert_allclose(out[1], radius * np.sin(angle), rtol=0, atol=1e-12)


draw_step_noise: Any = drawing.draw_step_noise


@njit
def draw(out: Any, first: int, groups: int, key: Any, counter: Any, scale: float) -> None:
    draw_step_noise(address(out), first, groups, key, counter, scale)


def test_noise_is_that_of_the_definition() -> None:
    stream, first, groups = Stream(seed=2**50 + 3, repetition=4, round=2**32 - 2, client=70_000), 6, 4
    key = ((stream.seed ^ RECORD_KEY) % 2**32, (stream.seed ^ RECORD_KEY) >> 32)
    expected = np.concatenate([step_noise(stream, first + g, NOISE_GROUP) for g in range(groups)])
    for dtype, tolerance in ((np.float64, 1e-13), (np.float32, 1e-6)):
        out: Any = np.empty(groups * NOISE_GROUP, dtype)
        draw(out, first * LANES, groups, key, (stream.round, stream.client, stream.repetition), 0.5)
        np.testing.assert_allclose(out, 0.5 * expected, rtol=0, atol=tolerance)


def test_a_series_with_fewer_terms_is_nearly_as_good_as_any_of_so_many() -> None:
    exponential = [Fraction(1)]
    for k in range(1, 15):
        exponential.append(exponential[-1] / k)
    x = np.linspace(0.0, 2.0, 1001)
    worst = np.abs(np.polynomial.Polynomial(drawing.economised(exponential, Fraction(2), 5))(x) - np.exp(x)).max()
    best = np.abs(np.polynomial.Chebyshev.interpolate(np.exp, 4, [0.0, 2.0])(x) - np.exp(x)).max()
    assert worst < 1.2 * best
