/* The practical limit of the local-SGD kernel in portable C: GCC's and Clang's vector types, compiled for one shape.
 *
 *   cc -O3 -march=native -fno-math-errno -shared -fPIC -DDIM=20 -DBATCH=10 -DLOSS=0 limit.c -o limit.so
 *
 * -DDIM         features
 * -DBATCH       records of a local step, or 0 for all RECORDS of the client (-DRECORDS)
 * -DLOSS        0: 0.5 (x.theta - y)^2    1: log(1 + exp(-y x.theta)), y = +-1    2: softmax, y = 0 .. CLASSES - 1
 * -DTOGETHER    clients side by side (1): hides the chain of dependent operations of small steps
 * -DAT_ONCE     classes that are taken together, for which a record is read once (1); divides CLASSES
 * -DVECTOR      bytes of a vector: 64 with AVX-512, 32 with AVX2, else 16
 * -DSINGLE      single precision; exponentials too
 *
 * For each client c, from theta: H times draw BATCH records, g = mean of their loss gradients + l2 * theta_c,
 * theta_c -= gamma * (g + xi_c); theta_c is written to out[c]. Draw s = h * BATCH + slot of client c is word s % 4 of
 * Philox4x32-10 with key `seed` and counter (s / 4, round, c, 0), and picks record (word * n) >> 32. The order of
 * additions is whatever is fastest. Rows are read in whole vectors: X must have a vector's room behind its last number. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#ifndef RECORDS
#define RECORDS 1
#endif
#ifdef SINGLE
#define REAL float
#else
#define REAL double
#endif
#ifndef TOGETHER
#define TOGETHER 1
#endif
#ifndef CLASSES
#define CLASSES 1
#endif
#ifndef AT_ONCE
#define AT_ONCE 1
#endif
#ifndef VECTOR
#if defined(__AVX512F__)
#define VECTOR 64
#elif defined(__AVX2__)
#define VECTOR 32
#else
#define VECTOR 16
#endif
#endif
#if VECTOR == 64 && defined(SINGLE)
#define LANES 16
#elif VECTOR == 64 || VECTOR == 32 && defined(SINGLE)
#define LANES 8
#elif VECTOR == 32 || defined(SINGLE)
#define LANES 4
#else
#define LANES 2
#endif
#define NV ((DIM + LANES - 1) / LANES)          /* vectors of a row */
#define B (BATCH ? BATCH : RECORDS)
#define CHUNK (BATCH ? 2048 / (BATCH < 64 ? BATCH : 64) : 1 << 30) /* steps whose indices are drawn at once */
#define MANY (BATCH ? CHUNK * BATCH + 32 : RECORDS + 8)
#define ROOM ((B + 15) / 16 * 16)
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define UNROLL _Pragma("GCC unroll 32")
#define INLINE static inline __attribute__((always_inline))
#define ALIGNED __attribute__((aligned(64)))
typedef REAL V __attribute__((vector_size(VECTOR)));
typedef REAL U __attribute__((vector_size(VECTOR), aligned(sizeof(REAL)), may_alias)); /* anywhere in memory */
#ifdef SINGLE
typedef int32_t Whole;
#else
typedef int64_t Whole;
#endif
typedef Whole I __attribute__((vector_size(VECTOR))); /* whole numbers of the same size: shuffles, masks, bits */

typedef struct {
    REAL theta[CLASSES][NV * LANES] ALIGNED, shift[CLASSES][NV * LANES] ALIGNED;
    REAL z[CLASSES][ROOM] ALIGNED, y[ROOM] ALIGNED;
    uint32_t rows[MANY] ALIGNED;
    const REAL *x, *targets;
} Client;

INLINE V load(const REAL *p) { return *(const U *)p; }
INLINE V splat(REAL a) { return a - (V){0}; }
#define choose(where, a, b) choose_((I)(where), a, b)
INLINE V choose_(I where, V a, V b) { return (V)((where & (I)a) | (~where & (I)b)); }

/* 32 draws from 8 blocks of Philox. */
static __attribute__((noinline)) void draw32(uint32_t *rows, uint32_t block, uint32_t round, uint32_t client,
                                             uint64_t seed, uint64_t n) {
    uint32_t c0[8], c1[8], c2[8], c3[8], k0 = seed, k1 = seed >> 32;
    for (int i = 0; i < 8; i++) c0[i] = block + i, c1[i] = round, c2[i] = client, c3[i] = 0;
    UNROLL for (int r = 0; r < 10; r++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u)
        for (int i = 0; i < 8; i++) {
            const uint64_t p = 0xD2511F53ull * c0[i], q = 0xCD9E8D57ull * c2[i];
            c0[i] = (uint32_t)(q >> 32) ^ c1[i] ^ k0, c1[i] = (uint32_t)q;
            c2[i] = (uint32_t)(p >> 32) ^ c3[i] ^ k1, c3[i] = (uint32_t)p;
        }
    for (int i = 0; i < 8; i++) {
        rows[4 * i] = c0[i] * n >> 32, rows[4 * i + 1] = c1[i] * n >> 32;
        rows[4 * i + 2] = c2[i] * n >> 32, rows[4 * i + 3] = c3[i] * n >> 32;
    }
}

/* out[0 .. m-1] = the horizontal sums of a[0 .. m-1], m <= 8, by halving; out has room for whole vectors. */
#define KEEP(i, s) ((i) + ((i) & (s) ? LANES : 0))
#define SWAP(i, s) (((i) ^ (s)) + ((i) & (s) ? LANES : 0))
#define LIST2(F, s, i) F(i, s), F(i + 1, s)
#define LIST4(F, s, i) LIST2(F, s, i), LIST2(F, s, i + 2)
#define LIST8(F, s, i) LIST4(F, s, i), LIST4(F, s, i + 4)
#define LIST16(F, s, i) LIST8(F, s, i), LIST8(F, s, i + 8)
#define LISTED(L) LIST##L
#define LIST(L) LISTED(L)
#define HALVE(s)                                                                                                    \
    if (s < LANES) {                                                                                                \
        UNROLL for (int i = 0; 2 * i < m; i++) {                                                                    \
            const V b = 2 * i + 1 < m ? a[2 * i + 1] : a[2 * i];                                                    \
            a[i] = __builtin_shuffle(a[2 * i], b, (I){LIST(LANES)(KEEP, s, 0)})                                     \
                 + __builtin_shuffle(a[2 * i], b, (I){LIST(LANES)(SWAP, s, 0)});                                    \
        }                                                                                                           \
        m = (m + 1) / 2;                                                                                            \
    }
INLINE void sums(V *a, int m, REAL *out) {
    HALVE(1) HALVE(2) HALVE(4) HALVE(8)
    UNROLL for (int i = 0; i < m; i++) *(U *)(out + i * LANES) = a[i];
}

/* exp of a vector, |x| < 700 (float: 87): x = k ln2 + r, a polynomial in r, and k written into the exponent's bits. */
INLINE V exponential(V x) {
    const int single = sizeof(REAL) == 4;
    const REAL magic = single ? 0x1.8p23f : 0x1.8p52;
    const V most = splat(single ? 87 : 700);
    x = choose(x < -most, -most, choose(x > most, most, x));
    V q = x * (REAL)1.4426950408889634 + magic;
    I bits = (I)q;
    __asm__("" : "+m"(q));                      /* the sum as rounded */
    const V k = q - magic;
    V r = x - k * (REAL)0.6931471803691238;
    r -= k * (REAL)1.9082149292705877e-10;
    const V r2 = r * r, r4 = r2 * r2;
    V p = (r * (REAL)(1. / 6) + (REAL)0.5) * r2 + (r + (REAL)1);
    V h = (r * (REAL)(1. / 5040) + (REAL)(1. / 720)) * r2 + (r * (REAL)(1. / 120) + (REAL)(1. / 24));
    if (!single) {
        V t = (r * (REAL)(1. / 39916800) + (REAL)(1. / 3628800)) * r2 + (r * (REAL)(1. / 362880) + (REAL)(1. / 40320));
        h += t * r4;
    }
    p += h * r4;
    return (V)((I)p + (bits << (single ? 23 : 52)));
}

/* z of classes k .. k + AT_ONCE - 1 for m <= 8 records from the b-th on; short rows of theta stay in registers. */
#define KEPT (NV * AT_ONCE <= 8)
#define OVER_CLASSES(q) UNROLL for (int q = 0; q < AT_ONCE; q++)
typedef V Rows[AT_ONCE][KEPT ? NV : 1];
INLINE void margins_of(Client *c, const uint32_t *rows, int k, int b, const int m, Rows theta) {
    const REAL *x[8];
    V a[AT_ONCE][8];
    UNROLL for (int g = 0; g < m; g++) {
        x[g] = c->x + (BATCH ? (int64_t)rows[b + g] : b + g) * DIM;
        OVER_CLASSES(q) a[q][g] = (V){0};
    }
    if (KEPT) {
        UNROLL for (int v = 0; v < NV; v++) UNROLL for (int g = 0; g < m; g++) {
            const V z = load(x[g] + v * LANES);
            OVER_CLASSES(q) a[q][g] += z * theta[q][v];
        }
    } else for (int v = 0; v < NV; v++) {
        V t[AT_ONCE];
        OVER_CLASSES(q) t[q] = load(c->theta[k + q] + v * LANES);
        UNROLL for (int g = 0; g < m; g++) {
            const V z = load(x[g] + v * LANES);
            OVER_CLASSES(q) a[q][g] += z * t[q];
        }
    }
    OVER_CLASSES(q) sums(a[q], m, c->z[k + q] + b);
}
INLINE void margins(Client *c, const uint32_t *rows) {
    for (int k = 0; k < CLASSES; k += AT_ONCE) {
        Rows theta;
        if (KEPT) OVER_CLASSES(q) UNROLL for (int v = 0; v < NV; v++) theta[q][v] = load(c->theta[k + q] + v * LANES);
        for (int b = 0; b + 8 <= B; b += 8) margins_of(c, rows, k, b, 8, theta);
        if (B % 8) margins_of(c, rows, k, B / 8 * 8, B % 8, theta);
    }
}

/* z <- scale * derivative of the loss at z. */
INLINE void derivatives(Client *c, const uint32_t *rows, REAL scale) {
    if (LOSS < 2) {
        UNROLL for (int b = 0; b < B; b++) c->y[b] = c->targets[BATCH ? rows[b] : b];
        for (int b = 0; b < B; b += LANES) {
            const V z = load(c->z[0] + b), y = load(c->y + b);
            *(U *)(c->z[0] + b) = LOSS ? -scale * y / ((REAL)1 + exponential(y * z)) : scale * (z - y);
        }
        return;
    }
    for (int b = 0; b < B; b += LANES) {
        V most = load(c->z[0] + b), total = {0};
        UNROLL for (int k = 1; k < CLASSES; k++) {
            const V z = load(c->z[k] + b);
            most = choose(z > most, z, most);
        }
        UNROLL for (int k = 0; k < CLASSES; k++) {
            const V e = exponential(load(c->z[k] + b) - most);
            *(U *)(c->z[k] + b) = e, total += e;
        }
        const V share = scale / total;
        UNROLL for (int k = 0; k < CLASSES; k++) *(U *)(c->z[k] + b) = load(c->z[k] + b) * share;
    }
    for (int b = 0; b < B; b++) c->z[(int)c->targets[BATCH ? rows[b] : b]][b] -= scale;
}

/* theta_k <- theta_k - sum of z x over m <= 8 records from the b-th on; before the first, decay and shift. */
INLINE void descend_by(Client *c, const uint32_t *rows, int k, int b, const int m, Rows theta, const int opening,
                       REAL decay) {
    const REAL *x[8];
    V r[AT_ONCE][8];
    UNROLL for (int g = 0; g < m; g++) {
        x[g] = c->x + (BATCH ? (int64_t)rows[b + g] : b + g) * DIM;
        OVER_CLASSES(q) r[q][g] = splat(c->z[k + q][b + g]);
    }
#define SUM(v) V even[AT_ONCE], odd[AT_ONCE];                                                                       \
    OVER_CLASSES(q) even[q] = odd[q] = (V){0};                                                                      \
    UNROLL for (int g = 0; g < m; g++) {                                                                            \
        const V z = load(x[g] + (v) * LANES);                                                                       \
        OVER_CLASSES(q) { if (g % 2) odd[q] += r[q][g] * z; else even[q] += r[q][g] * z; }                          \
    }
    if (KEPT) UNROLL for (int v = 0; v < NV; v++) { SUM(v) OVER_CLASSES(q) theta[q][v] -= even[q] + odd[q]; }
    else for (int v = 0; v < NV; v++) {
        SUM(v)
        OVER_CLASSES(q) {
            V t = load(c->theta[k + q] + v * LANES);
            if (opening) t = t * decay - load(c->shift[k + q] + v * LANES);
            *(U *)(c->theta[k + q] + v * LANES) = t - (even[q] + odd[q]);
        }
    }
}
INLINE void descend(Client *c, const uint32_t *rows, REAL decay) {
    for (int k = 0; k < CLASSES; k += AT_ONCE) {
        Rows theta;
        if (KEPT) OVER_CLASSES(q) UNROLL for (int v = 0; v < NV; v++)
            theta[q][v] = load(c->theta[k + q] + v * LANES) * decay - load(c->shift[k + q] + v * LANES);
        if (B >= 8) descend_by(c, rows, k, 0, 8, theta, 1, decay);
        for (int b = 8; b + 8 <= B; b += 8) descend_by(c, rows, k, b, 8, theta, 0, decay);
        if (B % 8) descend_by(c, rows, k, B / 8 * 8, B % 8, theta, B < 8, decay);
        if (KEPT) OVER_CLASSES(q) UNROLL for (int v = 0; v < NV; v++) *(U *)(c->theta[k + q] + v * LANES) = theta[q][v];
        if (DIM % LANES) OVER_CLASSES(q) {      /* what was read behind the rows does not count */
            I lane;
            UNROLL for (int i = 0; i < LANES; i++) lane[i] = i;
            U *last = (U *)(c->theta[k + q] + (NV - 1) * LANES);
            *last = choose(lane < DIM % LANES, *last, (V){0});
        }
    }
}

void local_sgd(const REAL *X, const REAL *y, int64_t n_clients, int64_t n, const double *theta, const double *xi,
               double *out, double gamma, int64_t H, double l2, uint64_t seed, uint32_t round) {
    Client all[TOGETHER];
    const REAL scale = gamma / B, decay = 1 - gamma * l2;
    for (int64_t first = 0; first < n_clients; first += TOGETHER) {
        memset(all, 0, sizeof(Client) - sizeof(all->rows) - sizeof(all->z));
        for (int k = 0; k < TOGETHER; k++) {
            const int64_t i = MIN(first + k, n_clients - 1);    /* at the end, one client twice */
            all[k].x = X + i * n * DIM, all[k].targets = y + i * n;
            for (int g = 0; g < CLASSES; g++) for (int v = 0; v < NV * LANES; v++) {
                const int64_t at = g * DIM + v;
                all[k].theta[g][v] = v < DIM ? theta[at] : 0;
                all[k].shift[g][v] = v < DIM ? gamma * xi[i * CLASSES * DIM + at] : 0;
            }
        }
        const char *ahead = (const char *)(X + MIN(first + TOGETHER, n_clients - 1) * n * DIM);
        const int64_t portion = H * B < n ? 0 : (TOGETHER * n * DIM * (int64_t)sizeof(REAL) / H + 63) / 64 * 64;
        for (int64_t h = 0; h < H; h += CHUNK) {
            const int64_t m = MIN(CHUNK, H - h);
            for (int k = 0; k < TOGETHER; k++) for (int64_t i = 0; BATCH && i < m * B; i += 32)
                draw32(all[k].rows + i, (h * B + i) / 4, round, MIN(first + k, n_clients - 1), seed, n);
            for (int64_t s = 0; s < m; s++) {
                if (BATCH) for (int64_t i = 0; i < portion; i += 64)
                    __builtin_prefetch(ahead + (h + s) * portion + i, 0, 2);
                UNROLL for (int k = 0; k < TOGETHER; k++) margins(all + k, all[k].rows + s * BATCH);
                UNROLL for (int k = 0; k < TOGETHER; k++) derivatives(all + k, all[k].rows + s * BATCH, scale);
                UNROLL for (int k = 0; k < TOGETHER; k++) descend(all + k, all[k].rows + s * BATCH, decay);
            }
        }
        for (int k = 0; k < TOGETHER; k++) for (int g = 0; g < CLASSES; g++) for (int j = 0; j < DIM; j++)
            out[(MIN(first + k, n_clients - 1) * CLASSES + g) * DIM + j] = all[k].theta[g][j];
    }
}
