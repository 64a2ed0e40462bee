/* The practical limit of the local-SGD kernel: hand-written AVX-512 C for one core, compiled for one shape
 * (gcc -O3 -march=native -ffast-math -shared -fPIC -DDIM=20 -DBATCH=10 limit.c -o limit.so). Needs gamma >= 0.
 *
 * For each client c, from theta: H times draw BATCH records, g = mean of their loss gradients + l2 * theta_c,
 * theta_c -= gamma * (g + xi_c); theta_c is written to out[c]. Losses: 0.5 (x.theta - y)^2, and log(1 + exp(-y x.theta))
 * with y = +-1. Draw s = h * BATCH + slot of client c is word s % 4 of Philox4x32-10 with key `seed` and counter
 * (s / 4, round, c, 0), and picks record (word * n) >> 32.
 *
 * What makes it fast:
 * - every vector load is 64-byte aligned: numpy's arrays are not, and a load across two cache lines costs two. Short rows
 *   (DIM <= 32) are copied once per client into aligned rows, long ones are read in aligned vectors from their line's start;
 * - that copy also puts in what each step would repeat: the row is scaled by sqrt(gamma / BATCH) and followed by y, which
 *   meets theta's extra entry -1, so that the dot product is the scaled residual (logistic: the row is multiplied by -y);
 * - the next client's records are copied, or prefetched, and its indices drawn, in slices between the steps of this one:
 *   they fill the gaps that the chain of dependent operations (dot product, residual, update, dot product) leaves;
 * - for logistic, whose chain is longer, two clients advance side by side (for ridge two clients' rows, which overflow the
 *   first-level cache, cost more than this gains);
 * - all dot products of a batch come first, their horizontal sums share vectors, and theta stays in registers (short rows);
 * - Philox makes 32 draws per call; exp is a 16-entry table in two registers and a polynomial of degree 6. */
#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#define PACKED (DIM <= 32)                      /* short rows: copied */
#define NV (DIM / 8 + 1)                        /* vectors in a copied row: x, then y or 0, then zeros */
#define ROW (NV * 8)
#define MASK(v) ((__mmask8)((v) == NV - 1 ? (1 << DIM % 8) - 1 : 255))
#define YLANE ((__mmask8)(1 << DIM % 8))
#define CHUNK 128                               /* at most so many steps' indices at once */
#define DRAWS ((CHUNK * BATCH + 31) / 32 * 32)
#define KMAX (PACKED ? 2 : 1)
#define AHEAD 65536                             /* prefetch distance of the copy, in bytes */
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define UNROLL _Pragma("GCC unroll 64")
#define INLINE static inline __attribute__((always_inline))
#define ALIGNED __attribute__((aligned(64)))
#define BARRIER(r) __asm__ volatile("" :: "r"(r) : "memory")  /* else gcc keeps pass one's rows for pass two, and spills */
typedef __m512d V;
typedef __m512i I;

typedef struct {                                /* one call */
    const double *X, *y, *theta, *xi;
    double *out, gamma, l2;
    int64_t N, n, H;
    uint32_t round;
    uint64_t key[20];                           /* Philox round keys */
} Job;
typedef struct {                                /* m <= CHUNK steps from step h of clients c .. c + k - 1 */
    int64_t c, k, h, m;
    double *rows;                               /* their copied records */
    uint32_t (*idx)[DRAWS];                     /* per client, the drawn records' numbers, times ROW for copied ones */
} Part;

/* 32 draws from the 8 Philox blocks at `block`: one 32-bit word per 64-bit lane, whose high half is rubbish that no later
   multiplication reads. Not inlined, so that its constants do not take the registers of the steps. */
static __attribute__((noinline)) void draw32(const Job *j, uint32_t client, uint32_t block, uint32_t *idx) {
    const I M0 = _mm512_set1_epi64(0xD2511F53), M1 = _mm512_set1_epi64(0xCD9E8D57), n = _mm512_set1_epi64(j->n);
    const I step = _mm512_set1_epi32(PACKED ? ROW : 1);
    I c0 = _mm512_add_epi64(_mm512_set1_epi64(block), _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7));
    I c1 = _mm512_set1_epi64(j->round), c2 = _mm512_set1_epi64(client), c3 = _mm512_setzero_si512();
    UNROLL for (int i = 0; i < 10; i++) {
        I p0 = _mm512_mul_epu32(c0, M0), p1 = _mm512_mul_epu32(c2, M1);
        c0 = _mm512_ternarylogic_epi64(_mm512_srli_epi64(p1, 32), c1, _mm512_set1_epi64(j->key[2 * i]), 0x96);  /* a^b^c */
        c2 = _mm512_ternarylogic_epi64(_mm512_srli_epi64(p0, 32), c3, _mm512_set1_epi64(j->key[2 * i + 1]), 0x96);
        c1 = p1, c3 = p0;
    }
    c0 = _mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(_mm512_mul_epu32(c0, n), 32), _mm512_mul_epu32(c1, n));
    c2 = _mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(_mm512_mul_epu32(c2, n), 32), _mm512_mul_epu32(c3, n));
    c0 = _mm512_mullo_epi32(c0, step), c2 = _mm512_mullo_epi32(c2, step);
    _mm512_store_si512(idx, _mm512_permutex2var_epi64(c0, _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11), c2));
    _mm512_store_si512(idx + 16, _mm512_permutex2var_epi64(c0, _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15), c2));
}
/* Draws more of part p's indices until at least `to` (or all) are there; returns how many are. */
INLINE int64_t draw(const Job *j, const Part *p, int64_t drawn, int64_t to) {
    for (to = MIN(to, p->m * BATCH); drawn < to; drawn += 32)
        for (int k = 0; k < p->k; k++) draw32(j, p->c + k, (p->h * BATCH + drawn) / 4, p->idx[k] + drawn);
    return drawn;
}

/* Lanes 0 .. m-1: the horizontal sums of a[0 .. m-1], m <= 8. A blend runs on two ports, a shuffle on one. */
INLINE V fold1(V a, V b) { return _mm512_mask_blend_pd(0xaa, a, b) + _mm512_shuffle_pd(a, b, 0x55); }
INLINE V fold2(V a, V b) {
    return _mm512_mask_blend_pd(0xcc, a, b) + _mm512_permutex2var_pd(a, _mm512_setr_epi64(2, 3, 8, 9, 6, 7, 12, 13), b);
}
INLINE V fold4(V a, V b) { return _mm512_mask_blend_pd(0xf0, a, b) + _mm512_shuffle_f64x2(a, b, 0x4e); }
INLINE V sums(const V *a, int m) {
    V t[4], u;
    UNROLL for (int i = 0; i < 4; i++) t[i] = 2 * i < m ? fold1(a[2 * i], a[MIN(2 * i + 1, m - 1)]) : t[i - 1];
    u = fold2(t[0], t[1]);
    return fold4(u, m > 4 ? fold2(t[2], t[3]) : u);
}

/* k / (1 + exp(-m)), with exp(-m) = 2^(f / 16) exp(r), f whole and |r| < ln2 / 32. */
INLINE V sigmoid(V m, V k) {
    const V magic = _mm512_set1_pd(0x1.8p52);
    const V lo = _mm512_setr_pd(1.0, 1.0442737824274138, 1.0905077326652577, 1.1387886347566916,
                                1.189207115002721, 1.241857812073484, 1.2968395546510096, 1.3542555469368927);
    const V hi = _mm512_setr_pd(1.4142135623730951, 1.4768261459394993, 1.5422108254079407, 1.6104903319492543,
                                1.681792830507429, 1.7562521603732995, 1.8340080864093424, 1.9152065613971474);
    V q = _mm512_fnmadd_pd(m, _mm512_set1_pd(23.083120654223414), magic);       /* its low bits are f */
    V f = _mm512_sub_round_pd(q, magic, _MM_FROUND_CUR_DIRECTION);              /* opaque to -ffast-math */
    V r = _mm512_fnmadd_pd(f, _mm512_set1_pd(0x1.62e42fefap-5), -m);            /* ln2 / 16 in two parts */
    r = _mm512_fnmadd_pd(f, _mm512_set1_pd(0x1.cf79abc9e3b3ap-44), r);
    V T = _mm512_permutex2var_pd(lo, _mm512_castpd_si512(q), hi), r2 = r * r;
    V p = ((r * (1. / 720) + 1. / 120) * r2 + (r * (1. / 24) + 1. / 6)) * (r2 * r) + (r2 * .5 + (1. + r));
    return k / (1. + _mm512_scalef_pd(p * T, f * 0.0625));
}

/* ---- short rows ---- */
/* Copies records `from` .. `to` - 1 of all clients' to q. */
INLINE double *copy(const int logistic, const Job *j, int64_t from, int64_t to, double *q) {
    const V root = _mm512_set1_pd(sqrt(j->gamma / BATCH));
    for (int64_t i = from; i < to; i++, q += ROW) {
        const double *x = j->X + i * DIM;
        const V y = _mm512_set1_pd(j->y[i]), factor = logistic ? -y : root;
        for (int b = 0; b < DIM * 8 + 63; b += 64) _mm_prefetch((const char *)x + AHEAD + b, _MM_HINT_T1);
        UNROLL for (int v = 0; v < NV; v++) {
            V z = _mm512_maskz_loadu_pd(MASK(v), x + 8 * v);
            if (v == NV - 1 && !logistic) z = _mm512_mask_mov_pd(z, YLANE, y);
            _mm512_store_pd(q + 8 * v, z * factor);
        }
    }
    return q;
}
/* The address, in a register of its own: gcc would put its sum into each of the row's loads, which makes them slower. */
INLINE const double *record(const double *x) { __asm__("" : "+r"(x)); return x; }

/* The steps of part p, K clients side by side; meanwhile copies records q .. q1 - 1 and draws indices for part `next`. */
INLINE void steps(const int logistic, const int K, const Job *j, Part p, Part next, int64_t q, const int64_t q1) {
    V theta[KMAX][NV], gxi[KMAX][NV];
    double r[KMAX * BATCH + 8] ALIGNED, *dst = next.rows;
    const int64_t n = j->n, slice = (q1 - q + p.m - 1) / p.m;
    int64_t drawn = 0;
    const V decay = _mm512_set1_pd(1 - j->gamma * j->l2), scale = _mm512_set1_pd(j->gamma / BATCH);
    UNROLL for (int k = 0; k < K; k++) UNROLL for (int v = 0; v < NV; v++) {
        const int64_t at = (p.c + k) * DIM + 8 * v;
        theta[k][v] = _mm512_maskz_loadu_pd(MASK(v), p.h ? j->out + at : j->theta + 8 * v);
        gxi[k][v] = _mm512_maskz_loadu_pd(MASK(v), j->xi + at) * j->gamma;
        if (v == NV - 1) theta[k][v] = _mm512_mask_mov_pd(theta[k][v], YLANE, _mm512_set1_pd(-1));
    }
    for (int64_t h = 0; h < p.m; h++) {
        V a[KMAX * BATCH];
        const int64_t q2 = MIN(q + slice, q1);
        dst = copy(logistic, j, q, q2, dst), q = q2;
        drawn = draw(j, &next, drawn, (h + 1) * BATCH);
        UNROLL for (int k = 0; k < K; k++) UNROLL for (int b = 0; b < BATCH; b++) {
            const double *x = record(p.rows + k * n * ROW + p.idx[k][h * BATCH + b]);
            V s = _mm512_load_pd(x) * theta[k][0];
            UNROLL for (int v = 1; v < NV; v++) s = _mm512_fmadd_pd(_mm512_load_pd(x + 8 * v), theta[k][v], s);
            a[k * BATCH + b] = s;
        }
        UNROLL for (int i = 0; i < K * BATCH; i += 8) {
            V s = sums(a + i, MIN(8, K * BATCH - i));
            _mm512_store_pd(r + i, logistic ? sigmoid(s, scale) : s);
        }
        BARRIER(r);
        UNROLL for (int k = 0; k < K; k++) {
            V g[2][NV];                         /* two chains of additions, of even and odd b */
            UNROLL for (int v = 0; v < NV; v++) g[0][v] = gxi[k][v] - theta[k][v] * decay;
            UNROLL for (int b = 0; b < BATCH; b++) {
                const double *x = record(p.rows + k * n * ROW + p.idx[k][h * BATCH + b]);
                const V rb = _mm512_set1_pd(r[k * BATCH + b]);
                UNROLL for (int v = 0; v < NV; v++) {
                    const V z = _mm512_load_pd(x + 8 * v);
                    g[b % 2][v] = b == 1 ? _mm512_mul_pd(rb, z) : _mm512_fmadd_pd(rb, z, g[b % 2][v]);
                }
            }
            UNROLL for (int v = 0; v < NV; v++) {
                const V rest = BATCH > 1 ? g[1][v] : (V){0};
                theta[k][v] = _mm512_mask_sub_pd(theta[k][v], MASK(v), -g[0][v], rest);
            }
        }
        BARRIER(r);
    }
    draw(j, &next, drawn, DRAWS);
    UNROLL for (int k = 0; k < K; k++) UNROLL for (int v = 0; v < NV; v++)
        _mm512_mask_storeu_pd(j->out + (p.c + k) * DIM + 8 * v, MASK(v), theta[k][v]);
}

/* ---- long rows: one client, read in place; if rows are whole vectors, from the line's start, theta shifted alike ---- */
INLINE void wide_steps(const int logistic, const Job *j, Part p, Part next, int64_t q, const int64_t q1) {
    double theta[DIM + 16] ALIGNED = {0}, gxi[DIM + 16] ALIGNED = {0}, r[BATCH + 8] ALIGNED, y[BATCH + 8] ALIGNED;
    const int shift = DIM % 8 ? 0 : (uintptr_t)j->X % 64 / 8, last = (shift + DIM - 1) / 8;
    const __mmask8 head = 255 << shift, tail = 255 >> (7 - (shift + DIM - 1) % 8);
    const V decay = _mm512_set1_pd(1 - j->gamma * j->l2), scale = _mm512_set1_pd(j->gamma / BATCH);
    const char *f = (const char *)(j->X + q * DIM), *const f1 = (const char *)(j->X + q1 * DIM);
    const int64_t slice = (f1 - f) / p.m / (last + 1) + 64;
    int64_t drawn = 0;
    for (int64_t i = q; i < q1; i += 8) _mm_prefetch(j->y + i, _MM_HINT_T1);
    for (int i = 0; i < DIM; i++) {
        theta[shift + i] = p.h ? j->out[p.c * DIM + i] : j->theta[i];
        gxi[shift + i] = j->xi[p.c * DIM + i] * j->gamma;
    }
    for (int64_t h = 0; h < p.m; h++) {
        const double *x[BATCH];
        V a[BATCH], rb[BATCH];
        drawn = draw(j, &next, drawn, (h + 1) * BATCH);
        UNROLL for (int b = 0; b < BATCH; b++) {
            const int64_t i = p.c * j->n + p.idx[0][h * BATCH + b];
            x[b] = j->X + i * DIM - shift, y[b] = j->y[i], a[b] = _mm512_setzero_pd();
        }
#define DOT(v, m) UNROLL for (int b = 0; b < BATCH; b++) \
            a[b] = _mm512_fmadd_pd(_mm512_maskz_loadu_pd(m, x[b] + 8 * (v)), _mm512_load_pd(theta + 8 * (v)), a[b]);
        DOT(0, head)
        for (int v = 1; v < last; v++) {
            for (const char *e = MIN(f + slice, f1); f < e; f += 64) _mm_prefetch(f, _MM_HINT_T1);
            DOT(v, 255)
        }
        DOT(last, tail)
        UNROLL for (int i = 0; i < BATCH; i += 8) {
            V s = sums(a + i, MIN(8, BATCH - i)), y8 = _mm512_load_pd(y + i);
            _mm512_store_pd(r + i, logistic ? -y8 * sigmoid(-y8 * s, scale) : (s - y8) * scale);
        }
        BARRIER(r);
        UNROLL for (int b = 0; b < BATCH; b++) rb[b] = _mm512_set1_pd(r[b]);
#define UPDATE(v, m) {                                                                                              \
            V g = _mm512_load_pd(gxi + 8 * (v)) - _mm512_load_pd(theta + 8 * (v)) * decay, g1 = _mm512_setzero_pd(); \
            UNROLL for (int b = 0; b < BATCH; b++) {                                                                \
                const V z = _mm512_maskz_loadu_pd(m, x[b] + 8 * (v));                                               \
                if (b % 2) g1 = _mm512_fmadd_pd(rb[b], z, g1); else g = _mm512_fmadd_pd(rb[b], z, g);               \
            }                                                                                                       \
            _mm512_store_pd(theta + 8 * (v), -g - g1);                                                              \
        }
        UPDATE(0, head)
        for (int v = 1; v < last; v++) UPDATE(v, 255)
        UPDATE(last, tail)
    }
    draw(j, &next, drawn, DRAWS);
    for (int i = 0; i < DIM; i++) j->out[p.c * DIM + i] = theta[shift + i];
}

/* Goes through the parts in turn; every part prepares the one after it, and an empty one the first. */
INLINE void run(const int logistic, const int K, const Job *j) {
    uint32_t idx[2][KMAX][DRAWS] ALIGNED;
    double *rows[2] = {0};
    Part p = {0, 0, j->H, 0, 0, idx[1]};
    for (int i = 0; i < 2 && PACKED; i++) rows[i] = aligned_alloc(64, K * j->n * ROW * 8);
    for (;;) {
        Part next = {p.c, p.k, p.h + p.m, 0, p.rows, p.idx == idx[0] ? idx[1] : idx[0]};
        int64_t q = 0, q1 = 0;                  /* records that part p has to copy or prefetch */
        if (next.h >= j->H) {
            next.c += p.k, next.h = 0, next.rows = p.rows == rows[0] ? rows[1] : rows[0];
            next.k = next.c + K <= j->N ? K : next.c < j->N;
            q = next.c * j->n, q1 = q + next.k * j->n;
        }
        next.m = MIN(CHUNK, j->H - next.h) * (next.k > 0);
        if (!p.m) {
            if (PACKED) copy(logistic, j, q, q1, next.rows);
            draw(j, &next, 0, DRAWS);
            for (int64_t i = 0; i < p.k * DIM; i++) j->out[p.c * DIM + i] = j->theta[i % DIM];      /* H = 0 */
        }
        else if (!PACKED) wide_steps(logistic, j, p, next, q, q1);
        else if (p.k == K) steps(logistic, K, j, p, next, q, q1);
        else steps(logistic, 1, j, p, next, q, q1);
        if (!next.k) break;
        p = next;
    }
    free(rows[0]), free(rows[1]);
}

#define EXPORT(name, logistic, K)                                                                                   \
    void name(const double *X, const double *y, int64_t n_clients, int64_t n, const double *theta, const double *xi, \
              double *out, double gamma, int64_t H, double l2, uint64_t seed, uint32_t round) {                     \
        Job j = {X, y, theta, xi, out, gamma, l2, n_clients, n, H, round};                                          \
        for (int i = 0; i < 10; i++) {                                                                              \
            j.key[2 * i] = (uint32_t)seed + i * 0x9E3779B9u;                                                        \
            j.key[2 * i + 1] = (uint32_t)(seed >> 32) + i * 0xBB67AE85u;                                            \
        }                                                                                                           \
        run(logistic, K, &j);                                                                                       \
    }
EXPORT(local_sgd_ridge, 0, 1)
EXPORT(local_sgd_logistic, 1, KMAX)
