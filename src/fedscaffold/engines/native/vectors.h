/* Vectors of 32 bytes and the few operations on them that the kernel needs, with the same bits on every machine.
 *
 * A vector has four doubles or eight floats in the source whatever registers the machine has; those of AVX-512 may hold two,
 * side by side, each with its operations. A product is fused with
 * a sum where `fused` is written and nowhere else (the build passes -ffp-contract=off); without FMA instructions the
 * C library rounds it once, too. */
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))
#define NOINLINE static __attribute__((noinline))
#define INLINED __attribute__((always_inline)) /* behind a lambda's parameters */
#define UNROLL _Pragma("GCC unroll 32")
#define SHUFFLE __builtin_shufflevector

namespace {

typedef int64_t Int;
typedef double Double4 __attribute__((vector_size(32)));
typedef float Float8 __attribute__((vector_size(32)));
typedef float Float4 __attribute__((vector_size(16)));
typedef uint64_t Word4 __attribute__((vector_size(32)));

template <class T, int SIDES> struct VectorOf;
template <> struct VectorOf<double, 1> { typedef Double4 type; };
template <> struct VectorOf<float, 1> { typedef Float8 type; };
template <> struct VectorOf<double, 2> { typedef double type __attribute__((vector_size(64))); };
template <> struct VectorOf<float, 2> { typedef float type __attribute__((vector_size(64))); };
template <class T, int SIDES = 1> using Vector = typename VectorOf<T, SIDES>::type;
template <class T> constexpr int LANES = 32 / sizeof(T);
#if defined(__AVX512F__)
constexpr int MOST_SIDES = 2;
#else
constexpr int MOST_SIDES = 1;
#endif

template <class V> INLINE V read_as(const void *p) { V v; memcpy(&v, p, sizeof v); return v; }
template <class T> INLINE Vector<T> read(const T *p) { return read_as<Vector<T>>(p); }
template <class V> INLINE void write(void *p, V v) { memcpy(p, &v, sizeof v); }
template <class V, class T> INLINE V all(T a) { return a - V{}; }
INLINE Double4 all(double a) { return Double4{a, a, a, a}; }
INLINE Float8 all(float a) { return Float8{a, a, a, a, a, a, a, a}; }
INLINE Word4 all(uint64_t a) { return Word4{a, a, a, a}; }
INLINE Int smaller(Int a, Int b) { return a < b ? a : b; }
INLINE Int larger(Int a, Int b) { return a > b ? a : b; }
INLINE Int rounded_up(Int n, Int unit) { return (n + unit - 1) / unit * unit; }

#if defined(__clang__)
template <class V> INLINE V fused(V a, V b, V c) { return __builtin_elementwise_fma(a, b, c); }
INLINE Double4 root(Double4 x) { return __builtin_elementwise_sqrt(x); }
#elif defined(__FMA__)
INLINE Double4 fused(Double4 a, Double4 b, Double4 c) { return (Double4)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c); }
INLINE Float8 fused(Float8 a, Float8 b, Float8 c) { return (Float8)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
#if defined(__AVX512F__)
INLINE Vector<double, 2> fused(Vector<double, 2> a, Vector<double, 2> b, Vector<double, 2> c) { return (Vector<double, 2>)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c); }
INLINE Vector<float, 2> fused(Vector<float, 2> a, Vector<float, 2> b, Vector<float, 2> c) { return (Vector<float, 2>)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
#endif
INLINE Double4 root(Double4 x) { return (Double4)_mm256_sqrt_pd((__m256d)x); }
#else
#if defined(__aarch64__)
#define FUSED INLINE
#else
#define FUSED NOINLINE /* a call of the C library for each number */
#endif
FUSED Double4 fused(Double4 a, Double4 b, Double4 c) { for (int i = 0; i < 4; i++) a[i] = __builtin_fma(a[i], b[i], c[i]); return a; }
FUSED Float8 fused(Float8 a, Float8 b, Float8 c) { for (int i = 0; i < 8; i++) a[i] = __builtin_fmaf(a[i], b[i], c[i]); return a; }
INLINE Double4 root(Double4 x) { for (int i = 0; i < 4; i++) x[i] = sqrt(x[i]); return x; }
#endif
/* Two vectors side by side in a register of 64 bytes, where there are such. With one side, W is V. */
template <class W, class V> INLINE W on_sides(V v) {
#if defined(__AVX512F__)
    if constexpr (sizeof(W) != sizeof(V)) return (W)_mm512_maskz_broadcast_f64x4(0xFF, (__m256d)v); else
#endif
    return v;
}
template <class W, class T> INLINE W on_sides(T first, T second) { /* each in all elements of its side */
    typedef Vector<double, sizeof(W) / 32> D;
    if constexpr (sizeof(W) == 64) return (W)SHUFFLE((D)all<W>(first), (D)all<W>(second), 0, 1, 2, 3, 12, 13, 14, 15); else return all<W>(first);
}
template <class V, class W> INLINE V side(W w, int s) {
    typedef Vector<double, sizeof(W) / 32> D;
    if constexpr (sizeof(W) != sizeof(V)) return s ? (V)SHUFFLE((D)w, (D)w, 4, 5, 6, 7) : (V)SHUFFLE((D)w, (D)w, 0, 1, 2, 3); else return w;
}
/* Four whole numbers of 32 bits as words. */
INLINE Word4 words_of(const int32_t *p) {
#if defined(__AVX2__)
    return (Word4)_mm256_cvtepu32_epi64(read_as<__m128i>(p));
#else
    return Word4{(uint32_t)p[0], (uint32_t)p[1], (uint32_t)p[2], (uint32_t)p[3]};
#endif
}
/* The products of the lower halves of 64-bit words. */
INLINE Word4 low_product(Word4 a, Word4 b) {
#if defined(__AVX2__)
    return (Word4)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#else
    return (a & 0xFFFFFFFFu) * (b & 0xFFFFFFFFu);
#endif
}

/* Element i of the result is the sum of two neighbouring parts of a, or of b if bit 0, 1 or 2 of i is set: a blend and one
   shuffle, since processors shuffle on one port only. */
INLINE Double4 halve1(Double4 a, Double4 b) { return SHUFFLE(a, b, 0, 5, 2, 7) + SHUFFLE(a, b, 1, 4, 3, 6); }
INLINE Double4 halve2(Double4 a, Double4 b) { return SHUFFLE(a, b, 0, 1, 6, 7) + SHUFFLE(a, b, 2, 3, 4, 5); }
INLINE Float8 halve1(Float8 a, Float8 b) { return SHUFFLE(a, b, 0, 9, 2, 11, 4, 13, 6, 15) + SHUFFLE(a, b, 1, 8, 3, 10, 5, 12, 7, 14); }
INLINE Float8 halve2(Float8 a, Float8 b) { return SHUFFLE(a, b, 0, 1, 10, 11, 4, 5, 14, 15) + SHUFFLE(a, b, 2, 3, 8, 9, 6, 7, 12, 13); }
INLINE Float8 halve4(Float8 a, Float8 b) { return SHUFFLE(a, b, 0, 1, 2, 3, 12, 13, 14, 15) + SHUFFLE(a, b, 4, 5, 6, 7, 8, 9, 10, 11); }
#define HALVE(halve, n) UNROLL for (int i = 0; 2 * i < (n); i++) a[i] = halve(a[2 * i], a[2 * i + 1 < (n) ? 2 * i + 1 : 2 * i]);
/* Replace n vectors by their n sums over elements, in order, in vectors a[0], a[1], ... */
template <int n> INLINE void sums(Double4 *a) { HALVE(halve1, n) HALVE(halve2, (n + 1) / 2) }
template <int n> INLINE void sums(Float8 *a) { HALVE(halve1, n) HALVE(halve2, (n + 1) / 2) HALVE(halve4, (n + 3) / 4) }

/* Four doubles in memory of either type. */
INLINE void write4(double *p, Double4 v) { write(p, v); }
INLINE void write4(float *p, Double4 v) { write(p, __builtin_convertvector(v, Float4)); }
INLINE Double4 read4(const double *p) { return read(p); }
INLINE Double4 read4(const float *p) { return __builtin_convertvector(read_as<Float4>(p), Double4); }

/* c[0] + c[1] x + ... by Estrin's scheme, which waits less than Horner's. */
template <int n, class T, class V> INLINE V polynomial(const T (&coefficients)[n], V x) {
    V c[n];
    UNROLL for (int i = 0; i < n; i++) c[i] = all<V>(coefficients[i]);
    UNROLL for (int left = n; left > 1; left = (left + 1) / 2, x = x * x)
        UNROLL for (int i = 0; 2 * i < left; i++) c[i] = 2 * i + 1 < left ? fused(c[2 * i + 1], x, c[2 * i]) : c[2 * i];
    return c[0];
}

/* x between -most and most, and NaN if x is. */
#if defined(__AVX__)
INLINE Double4 clamped(Double4 x, double most) { return (Double4)_mm256_min_pd((__m256d)all(most), _mm256_max_pd((__m256d)all(-most), (__m256d)x)); }
INLINE Float8 clamped(Float8 x, float most) { return (Float8)_mm256_min_ps((__m256)all(most), _mm256_max_ps((__m256)all(-most), (__m256)x)); }
#endif
template <class V, class T> INLINE V clamped(V x, T most) { x = x < -most ? all<V>(-most) : x; return x > most ? all<V>(most) : x; }

/* e^x + plus by x = k ln 2 + r with |r| <= ln 2 / 2, the polynomial nearest to e^r there, and 2^k from its bits; relative errors
   are below 1e-15, or 1e-7 in single precision. Beyond BOUND it is e^BOUND. */
template <class T> struct Exponent;
template <> struct Exponent<double> {
    static constexpr double SERIES[] = {0x1p+0, 0x1.0000000000029p+0, 0x1.000000000004bp-1, 0x1.5555555548ca1p-3, 0x1.555555552faadp-5,
        0x1.1111113370bb1p-7, 0x1.6c16c20d51d5ap-10, 0x1.a01967c777449p-13, 0x1.a017fc452199p-16, 0x1.730bd3065ea1p-19, 0x1.2a468f8626cafp-22};
    static constexpr double BOUND = 708.0, ROUND_AND_BIAS = 0x1.8p52 + 1023.0, LN2 = 0x1.62e42feep-1, LN2_REST = 0x1.a39ef35793c76p-33;
    static constexpr int SHIFT = 52;
};
template <> struct Exponent<float> {
    static constexpr float SERIES[] = {0x1p+0f, 0x1.000000d5p+0f, 0x1.00000174p-1f, 0x1.5553c1p-3f, 0x1.55516p-5f, 0x1.12903cp-7f, 0x1.709ab2p-10f};
    static constexpr float BOUND = 87.0f, ROUND_AND_BIAS = 0x1.8p23f + 127.0f, LN2 = 0x1.62e4p-1f, LN2_REST = 0x1.7f7d1cp-20f;
    static constexpr int SHIFT = 23;
};
template <class T, class V> INLINE V exponential_of(V x, T plus) {
    typedef Exponent<T> E;
    x = clamped(x, E::BOUND);
    const V shifted = fused(x, all<V>((T)0x1.71547652b82fep+0), all<V>(E::ROUND_AND_BIAS)); /* a whole number, whose low bits are 2^k's exponent */
    const V k = shifted - E::ROUND_AND_BIAS, r = fused(k, all<V>(-E::LN2_REST), fused(k, all<V>(-E::LN2), x));
    return fused(polynomial(E::SERIES, r), (V)((decltype(x < x))shifted << E::SHIFT), all<V>(plus));
}
INLINE Double4 exponential(Double4 x, double plus = 0) { return exponential_of(x, plus); }
INLINE Float8 exponential(Float8 x, float plus = 0) { return exponential_of(x, plus); }

/* Whole numbers below 2^52 as doubles. */
INLINE Double4 as_doubles(Word4 x) { return (Double4)(x | (0x433ull << 52)) - 0x1p52; }

/* The two normal numbers that Box and Muller make of words u and v: core.random.normals. */
INLINE void normal_pair(Word4 u, Word4 v, Double4 *pair) {
    static constexpr double ATANH[] = {2.0, 2.0 / 3, 2.0 / 5, 2.0 / 7, 2.0 / 9, 2.0 / 11, 2.0 / 13, 2.0 / 15, 2.0 / 17};
    static constexpr double SINE[] = {1.0, -1.0 / 6, 1.0 / 120, -1.0 / 5040, 1.0 / 362880, -1.0 / 39916800, 1.0 / 6227020800.0, -1.0 / 1307674368000.0};
    static constexpr double COSINE[] = {1.0, -1.0 / 2, 1.0 / 24, -1.0 / 720, 1.0 / 40320, -1.0 / 3628800, 1.0 / 479001600.0,
                                        -1.0 / 87178291200.0, 1.0 / 20922789888000.0};
    const uint64_t root_half = 0x3FE6A09E667F3BCDull;
    /* log of (u + 1/2)/2^32 = 2^e m, sqrt(1/2) <= m < sqrt(2), by log m = 2 artanh((m - 1)/(m + 1)) */
    const Word4 bits = (Word4)((as_doubles(u & 0xFFFFFFFFu) + 0.5) * 0x1p-32), exponent = (bits - root_half + (64ull << 52)) >> 52;
    const Double4 m = (Double4)(bits - ((exponent - 64) << 52)), e = as_doubles(exponent) - 64.0, s = (m - 1.0) / (m + 1.0);
    const Double4 log = fused(e, all(0x1.62e42fefa39efp-1), s * polynomial(ATANH, s * s)), radius = root(log * -2.0);
    /* 2 pi v/2^32 = a quarter turn times `turn` + angle, |angle| <= pi/4 */
    const Word4 ahead = (v & 0xFFFFFFFFu) + (1u << 29), turn = ahead >> 30;
    const Double4 angle = (as_doubles(ahead & 0x3FFFFFFFu) - 0x1p29) * 0x1.921fb54442d18p-30, square = angle * angle;
    const Double4 sine = angle * polynomial(SINE, square), cosine = polynomial(COSINE, square);
    const auto odd = (turn & 1) != all((uint64_t)0);
    const Word4 flip_cosine = ((turn + 1) & 2) << 62, flip_sine = (turn & 2) << 62;
    pair[0] = radius * (Double4)((Word4)(odd ? sine : cosine) ^ flip_cosine);
    pair[1] = radius * (Double4)((Word4)(odd ? cosine : sine) ^ flip_sine);
}

/* ------------------------------------------------- the random stream, Philox4x32-10: core.random.stream */
struct Key { /* the ten round keys of a seed */
    uint64_t word[10][2];
    explicit Key(uint64_t seed) {
        for (int r = 0; r < 10; r++)
            word[r][0] = (uint32_t)(seed + r * 0x9E3779B9ull), word[r][1] = (uint32_t)((seed >> 32) + r * 0xBB67AE85ull);
    }
};
struct Stream { /* the words of one client in one round of one repetition */
    const Key *key;
    uint64_t round, client, repetition;
};
/* Words 0, ..., 3 of the eight blocks from `block` on, in halves of four; only the lower 32 bits of a word count. */
struct Blocks { Word4 word[4][2]; };
INLINE Blocks eight_blocks(const Stream &s, uint64_t block) {
    Blocks found;
    UNROLL for (int half = 0; half < 2; half++) {
        Word4 a = all(block + 4 * half) + Word4{0, 1, 2, 3}, b = all(s.round), c = all(s.client), d = all(s.repetition);
        UNROLL for (int r = 0; r < 10; r++) {
            const Word4 p = low_product(a, all((uint64_t)0xD2511F53u)), q = low_product(c, all((uint64_t)0xCD9E8D57u));
            a = (q >> 32) ^ b ^ s.key->word[r][0], b = q, c = (p >> 32) ^ d ^ s.key->word[r][1], d = p;
        }
        found.word[0][half] = a, found.word[1][half] = b, found.word[2][half] = c, found.word[3][half] = d;
    }
    return found;
}

} // namespace
