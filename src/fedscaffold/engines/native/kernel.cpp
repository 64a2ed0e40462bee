/* Local steps  theta <- decay theta + push + sum_b z_b x_b,  z_b = -(step size / B) slope(x_b . theta, y_b),  of every client.
 *
 * decay = 1 - step size (l2 + pull) and push = -step size times the correction. The file is compiled once for each
 * instruction set (-DSTEPS=fs_steps_avx2 -mavx2 -mfma, ...); every number is computed by the same operations in the same
 * order on all of them. A row of d numbers is read as vectors 0, 4, 8, ... and, last, the vector that ends with it; the
 * model has zeros where that one repeats numbers, so no read leaves a row (a row shorter than a vector needs room behind
 * the table). Adding a loss: a struct below with its slope, a name in job.h, a line in `slope_of`. */
#include "job.h"
#include "vectors.h"
#include <stdlib.h>

namespace {

/* ------------------------------------------------- losses: the derivative in the margin */
struct Ridge { INLINE Double4 slope(Double4 margin, Double4 y) { return margin - y; } };
struct Logistic { INLINE Double4 slope(Double4 margin, Double4 y) { return -y / (1.0 + exponential(y * margin)); } };
struct Poisson { INLINE Double4 slope(Double4 margin, Double4 y) { return exponential(margin) - y; } };
struct Gamma { INLINE Double4 slope(Double4 margin, Double4 y) { return 1.0 - y * exponential(-margin); } };

template <class L> INLINE Double4 slope(Double4 margin, Double4 y) { return L::slope(margin, y); }
template <class L> INLINE Float8 slope(Float8 margin, Float8 y) {
    return joined(L::slope(half(margin, 0), half(y, 0)), L::slope(half(margin, 1), half(y, 1)));
}
template <> inline INLINED Float8 slope<Ridge>(Float8 margin, Float8 y) { return margin - y; }
template <class V> INLINE V slope_of(Int loss, V margin, V y) {
    switch (loss) {
    case RIDGE: return slope<Ridge>(margin, y);
    case LOGISTIC: return slope<Logistic>(margin, y);
    case POISSON: return slope<Poisson>(margin, y);
    default: return slope<Gamma>(margin, y);
    }
}
INLINE Double4 exponentials(Double4 x) { return exponential(x); }
INLINE Float8 exponentials(Float8 x) { return joined(exponential(half(x, 0)), exponential(half(x, 1))); }

constexpr Int LINE = 64; /* bytes of a cache line */

/* ------------------------------------------------- what steps work on */
enum Column { TARGET, OFFSET, WEIGHT, LIMIT, AT_ANCHOR, COLUMNS };

template <class T> struct Run { /* shared by all clients of a call */
    const Job &job;
    Int vectors, tall, split, tail; /* of a row: vectors, their numbers, those before the last vector, where that begins */
    Int batch, pad, block;          /* records of a step, room for them in lists, and how many fit the first-level cache */
    Word4 mask;                     /* of the last vector's own numbers */
    T scale, *decay;
    Int decay_step;                 /* 0 if all coordinates decay alike, so that one vector is read for all of a long row */
    template <int NV> INLINED Vector<T> decay_of(Int v) const { return read(decay + v * (NV > 0 ? LANES<T> : decay_step)); }
    Int place(Int i) const { return i < split ? i : i - tail + split; } /* of coordinate i in a model */
};

template <class T> struct Client {
    T *theta, *next, *push;   /* models as vectors; room for the next one; one push, or one for each step */
    T *at_anchor;             /* slopes of all records at the anchor */
    const T *ahead;           /* records of the next client, of which each step fetches a portion */
    Int portion, push_stride, base, n, last;
    Stream words, noise_words;
};

template <class T> struct Lists { /* records of some steps: step after step, client after client */
    const T **x, **m, *all_x, *all_m; /* where they are, or where all of a client's are, one after another */
    T *column[COLUMNS], *z; /* z has one step's margins, then slopes */
};

/* The rows of some records: those of a list, or one after another. */
template <class T, bool LISTED> struct Rows {
    const T *const *list, *first;
    Int width;
    INLINED const T *operator[](Int b) const { return LISTED ? list[b] : first + b * width; }
};

template <int N> struct Size { static constexpr int n = N; };
template <class F> INLINE void in_groups(Int n, F f) { /* of eight records, then four, two and one */
    Int b = 0;
    for (; b + 8 <= n; b += 8) f(b, Size<8>());
    if (n & 4) f(b, Size<4>()), b += 4;
    if (n & 2) f(b, Size<2>()), b += 2;
    if (n & 1) f(b, Size<1>());
}
template <int NV, class T, class F> INLINE void for_vectors(const Run<T> &run, F f) {
    if constexpr (NV > 0) { UNROLL for (int v = 0; v < NV; v++) f(v, v + 1 < NV ? v * LANES<T> : run.tail); }
    else {
        Int v = 0;
        for (; v + 1 < run.vectors; v++) f(v, v * LANES<T>);
        f(v, run.tail);
    }
}
template <class T> INLINE void clear_repeated(const Run<T> &run, T *theta) {
    T *last = theta + run.split;
    write(last, read_as<Word4>(last) & run.mask);
}

/* z_cb = rows_b . theta_c for n records and C models. */
template <class T, int NV, int C, class R> INLINE void margins(const Run<T> &run, const R rows, Int n, const T *theta, T *z, Int stride) {
    typedef Vector<T> V;
    constexpr int L = LANES<T>;
    V kept[NV * C + 1];
    if constexpr (NV > 0) UNROLL for (int i = 0; i < NV * C; i++) kept[i] = read(theta + i * L);
    in_groups(n, [&](Int b, auto size) INLINED {
        constexpr int G = decltype(size)::n;
        const T *x[G];
        V a[C * G];
        UNROLL for (int g = 0; g < G; g++) x[g] = rows[b + g];
        UNROLL for (int i = 0; i < C * G; i++) a[i] = V{};
        for_vectors<NV>(run, [&](Int v, Int at) INLINED {
            V model[C];
            UNROLL for (int c = 0; c < C; c++) model[c] = NV > 0 ? kept[c * NV + v] : read(theta + c * run.tall + v * L);
            UNROLL for (int g = 0; g < G; g++) {
                const V row = read(x[g] + at);
                UNROLL for (int c = 0; c < C; c++) a[c * G + g] = fused(row, model[c], a[c * G + g]);
            }
        });
        UNROLL for (int c = 0; c < C; c++) {
            sums<G>(a + c * G);
            UNROLL for (int i = 0; i * L < G; i++) write(z + c * stride + b + i * L, a[c * G + i]);
        }
    });
}

/* to_c = from_c + sum_b z_cb rows_b, after decay and push if this is the step's first block of records. */
template <class T, int NV, int C, class R>
INLINE void descend(const Run<T> &run, const R rows, Int n, bool first, const T *from, T *to, const T *push, const T *z, Int stride) {
    typedef Vector<T> V;
    constexpr int L = LANES<T>;
    constexpr bool KEPT = NV > 0 && NV * C <= 8; /* short models stay in registers */
    V kept[KEPT ? NV * C : 1];
    auto begun = [&](int c, Int v) INLINED {
        const Int at = c * run.tall + v * L;
        return first ? fused(run.template decay_of<NV>(v), read(from + at), read(push + at)) : read(to + at);
    };
    if constexpr (KEPT) UNROLL for (int c = 0; c < C; c++) UNROLL for (int v = 0; v < NV; v++) kept[c * NV + v] = begun(c, v);
    in_groups(n, [&](Int b, auto size) INLINED {
        constexpr int G = decltype(size)::n;
        const T *x[G];
        V slopes[C * G];
        UNROLL for (int g = 0; g < G; g++) x[g] = rows[b + g];
        UNROLL for (int c = 0; c < C; c++) UNROLL for (int i = 0; i < G; i += L) {
            const V some = read(z + c * stride + b + i);
            UNROLL for (int g = 0; g < L; g++) if (i + g < G) slopes[c * G + i + g] = all(some[g]);
        }
        for_vectors<NV>(run, [&](Int v, Int at) INLINED {
            V chain[C][2]; /* two, so that a sum waits half as long for the one before */
            UNROLL for (int g = 0; g < G; g++) {
                const V row = read(x[g] + at);
                UNROLL for (int c = 0; c < C; c++) chain[c][g % 2] = g < 2 ? slopes[c * G + g] * row : fused(slopes[c * G + g], row, chain[c][g % 2]);
            }
            UNROLL for (int c = 0; c < C; c++) {
                const V down = G > 1 ? chain[c][0] + chain[c][1] : chain[c][0];
                if constexpr (KEPT) kept[c * NV + v] += down;
                else write(to + c * run.tall + v * L, (b == 0 ? begun(c, v) : read(to + c * run.tall + v * L)) + down);
            }
        });
    });
    if constexpr (KEPT) UNROLL for (int c = 0; c < C; c++) UNROLL for (int v = 0; v < NV; v++) write(to + c * run.tall + v * L, kept[c * NV + v]);
}

/* sign (step size / B) times the weighted slopes of some records, up to their limits, less those at the anchor. */
template <class T> INLINE Vector<T> weighted_slopes(const Run<T> &run, const Lists<T> &lists, Int at, Vector<T> margin, T sign, bool anchored) {
    Vector<T> factor = all(sign * run.scale), found;
    if (lists.column[WEIGHT]) margin += read(lists.column[OFFSET] + at), factor *= read(lists.column[WEIGHT] + at);
    found = factor * slope_of(run.job.loss, margin, read(lists.column[TARGET] + at));
    if (lists.column[LIMIT]) {
        const Vector<T> most = run.scale * read(lists.column[LIMIT] + at);
        found = found < -most ? -most : found;
        found = found > most ? most : found;
    }
    return anchored ? found + read(lists.column[AT_ANCHOR] + at) : found;
}
/* Replace the margins of n records from `at` on in the lists by what the step adds of each. */
template <class T> NOINLINE void general_slopes(const Run<T> &run, const Lists<T> &lists, Int at, Int n, T *z) {
    const bool anchored = lists.column[AT_ANCHOR];
    for (Int i = 0; i < n; i += LANES<T>) write(z + i, weighted_slopes(run, lists, at + i, read(z + i), (T)-1, anchored));
}
/* The same in registers: code for plain ridge and logistic regression stands in each kind of steps, the rest once. */
template <int N, class T> INLINE void slopes(const Run<T> &run, const Lists<T> &lists, Int common, Int at, Vector<T> *z) {
    constexpr int L = LANES<T>;
    const Vector<T> factor = all(-run.scale);
    const T *y = lists.column[TARGET] + at;
    if (common == RIDGE) UNROLL for (int i = 0; i < N; i++) z[i] = factor * slope<Ridge>(z[i], read(y + i * L));
    else if (common == LOGISTIC) UNROLL for (int i = 0; i < N; i++) z[i] = factor * slope<Logistic>(z[i], read(y + i * L));
    else {
        T kept[N * L];
        UNROLL for (int i = 0; i < N; i++) write(kept + i * L, z[i]);
        general_slopes(run, lists, at, N * L, kept);
        UNROLL for (int i = 0; i < N; i++) z[i] = read(kept + i * L);
    }
}
/* The loss, if its slopes need no weights, limits or anchor, else -1. */
template <class T> INLINE Int common_loss(const Run<T> &run, const Lists<T> &lists) {
    return lists.column[WEIGHT] || lists.column[LIMIT] || lists.column[AT_ANCHOR] ? -1 : run.job.loss;
}

template <class T> INLINE void fetch(Client<T> &c) {
    for (Int i = 0; i < c.portion; i += 64 / sizeof(T)) __builtin_prefetch(c.ahead + i, 0, 2);
    c.ahead += c.portion;
}

/* ------------------------------------------------- steps */
template <class T> using Steps = void (*)(const Run<T> &, const Lists<T> &, Client<T> *, Int count);

/* Steps of TEAM clients with a margin per record; one client's operations run while another's wait. */
template <class T, int NV, int TEAM, bool LISTED> NOINLINE void margin_steps(const Run<T> &shared, const Lists<T> &given, Client<T> *team, Int count) {
    const Run<T> run = shared; /* copies, which no store through a pointer can change */
    const Lists<T> lists = given;
    const Int batch = run.batch, block = run.block, d = run.job.features;
    const Int stride = run.job.sampling == FULL ? 0 : TEAM * run.pad, room = TEAM > 1 ? run.pad : 0;
    const Int common = common_loss(run, lists);
    const bool whole = block >= batch;
    T *theta[TEAM], *next[TEAM], *z = lists.z;
    UNROLL for (int s = 0; s < TEAM; s++) theta[s] = team[s].theta, next[s] = whole ? theta[s] : team[s].next;
    for (Int h = 0; h < count; h++) {
        for (Int b = 0; b < batch; b += block) {
            const Int n = smaller(block, batch - b), at = h * stride + b;
            auto rows = [&](const T **list, const T *first, int s) INLINED { return Rows<T, LISTED>{list + at + s * room, first + b * d, d}; };
            UNROLL for (int s = 0; s < TEAM; s++) margins<T, NV, 1>(run, rows(lists.m, lists.all_m, s), n, theta[s], z + s * room, 0);
            const Int m = TEAM > 1 ? TEAM * room : n;
            if (common != RIDGE && common != LOGISTIC) general_slopes(shared, given, at, m, z);
            else for (Int i = 0; i < m; i += LANES<T>) {
                Vector<T> some = read(z + i);
                slopes<1>(shared, given, common, at + i, &some), write(z + i, some);
            }
            UNROLL for (int s = 0; s < TEAM; s++)
                descend<T, NV, 1>(run, rows(lists.x, lists.all_x, s), n, b == 0, theta[s], next[s], team[s].push + h * team[s].push_stride, z + s * room, 0);
        }
        UNROLL for (int s = 0; s < TEAM; s++) {
            T *now = next[s];
            next[s] = theta[s], theta[s] = now;
            clear_repeated(run, now);
            fetch(team[s]);
        }
    }
    UNROLL for (int s = 0; s < TEAM; s++) team[s].theta = theta[s], team[s].next = whole ? team[s].next : next[s];
}

/* The same on batches of B records: margins and slopes stay in registers, and so do short models. */
template <class T, int NV, int B, int TEAM> NOINLINE void small_steps(const Run<T> &shared, const Lists<T> &given, Client<T> *team, Int count) {
    typedef Vector<T> V;
    constexpr int L = LANES<T>, VS = (B + L - 1) / L, PAD = VS * L;
    const Run<T> run = shared;
    const Lists<T> lists = given;
    const Int common = common_loss(run, lists);
    Client<T> own[TEAM];
    V t[TEAM][NV ? NV : 1];
    UNROLL for (int s = 0; s < TEAM; s++) {
        own[s] = team[s];
        UNROLL for (int v = 0; v < NV; v++) t[s][v] = read(own[s].theta + v * L);
    }
    for (Int h = 0; h < count; h++) {
        V a[TEAM][B];
        UNROLL for (int s = 0; s < TEAM; s++) {
            const T *const *m = lists.m + (h * TEAM + s) * PAD, *row[B];
            UNROLL for (int g = 0; g < B; g++) row[g] = m[g], a[s][g] = V{};
            for_vectors<NV>(run, [&](Int v, Int at) INLINED { UNROLL for (int g = 0; g < B; g++) a[s][g] = fused(read(row[g] + at), NV > 0 ? t[s][v] : read(own[s].theta + v * L), a[s][g]); });
            sums<B>(a[s]);
            fetch(own[s]);
        }
        V z[TEAM * VS];
        UNROLL for (int i = 0; i < TEAM * VS; i++) z[i] = a[i / VS][i % VS];
        slopes<TEAM * VS>(shared, given, common, h * TEAM * PAD, z);
        UNROLL for (int s = 0; s < TEAM; s++) {
            const T *const *x = lists.x + (h * TEAM + s) * PAD, *push = own[s].push + h * own[s].push_stride, *row[B];
            V each[B];
            UNROLL for (int g = 0; g < B; g++) row[g] = x[g], each[g] = all(z[s * VS + g / L][g % L]);
            for_vectors<NV>(run, [&](Int v, Int at) INLINED {
                V now = fused(run.template decay_of<NV>(v), NV > 0 ? t[s][v] : read(own[s].theta + v * L), read(push + v * L));
                int b = 0;
                UNROLL for (int size = 8; size; size /= 2) UNROLL for (int k = 0; k < 2; k++) if (B - b >= size) { /* in groups, as `descend` */
                    V chain[2];
                    UNROLL for (int g = 0; g < size; g++) {
                        const V one = read(row[b + g] + at);
                        chain[g % 2] = g < 2 ? each[b + g] * one : fused(each[b + g], one, chain[g % 2]);
                    }
                    now += size > 1 ? chain[0] + chain[1] : chain[0];
                    b += size;
                }
                if constexpr (NV > 0) t[s][v] = v + 1 < NV ? now : (V)((Word4)now & run.mask);
                else write(own[s].theta + v * L, now);
            });
            if constexpr (NV == 0) clear_repeated(run, own[s].theta);
        }
    }
    UNROLL for (int s = 0; s < TEAM; s++) {
        UNROLL for (int v = 0; v < NV; v++) write(own[s].theta + v * L, t[s][v]);
        team[s].ahead = own[s].ahead;
    }
}

/* The same for single records: one vector of slopes serves the team. Short models stay in registers; long rows of the next step
   are fetched meanwhile. */
template <class T, int NV, int TEAM> NOINLINE void single_steps(const Run<T> &shared, const Lists<T> &given, Client<T> *team, Int count) {
    typedef Vector<T> V;
    constexpr int L = LANES<T>;
    const Run<T> run = shared;
    const Lists<T> lists = given;
    const Int common = common_loss(run, lists);
    V t[TEAM][NV ? NV : 1];
    T *theta[TEAM];
    UNROLL for (int s = 0; s < TEAM; s++) theta[s] = team[s].theta;
    if constexpr (NV > 0) UNROLL for (int s = 0; s < TEAM; s++) UNROLL for (int v = 0; v < NV; v++) t[s][v] = read(theta[s] + v * L);
    for (Int h = 0; h < count; h++) {
        const T *const *x = lists.x + h * TEAM, *const *m = lists.m + h * TEAM;
        if (TEAM == 2 && h + 1 < count)
            UNROLL for (int s = 0; s < TEAM; s++) for (Int i = 0; i < run.tall; i += LINE / sizeof(T)) __builtin_prefetch(m[TEAM + s] + i);
        V a[TEAM];
        UNROLL for (int s = 0; s < TEAM; s++) a[s] = V{};
        for_vectors<NV>(run, [&](Int v, Int at) INLINED {
            UNROLL for (int s = 0; s < TEAM; s++) a[s] = fused(read(m[s] + at), NV > 0 ? t[s][v] : read(theta[s] + v * L), a[s]);
        });
        sums<TEAM>(a);
        slopes<1>(shared, given, common, h * TEAM, a);
        UNROLL for (int s = 0; s < TEAM; s++) {
            const V own = all(a[0][s]);
            const T *push = team[s].push + h * team[s].push_stride;
            for_vectors<NV>(run, [&](Int v, Int at) INLINED {
                const V begun = NV > 0 ? t[s][v] : read(theta[s] + v * L);
                const V now = fused(own, read(x[s] + at), fused(run.template decay_of<NV>(v), begun, read(push + v * L)));
                if constexpr (NV > 0) t[s][v] = v + 1 < NV ? now : (V)((Word4)now & run.mask);
                else write(theta[s] + v * L, now);
            });
            if constexpr (NV == 0) clear_repeated(run, theta[s]);
            fetch(team[s]);
        }
    }
    if constexpr (NV > 0) UNROLL for (int s = 0; s < TEAM; s++) UNROLL for (int v = 0; v < NV; v++) write(theta[s] + v * L, t[s][v]);
}

/* z_kb <- -(step size / B) weight (p_k - [y = k]) for the classes k of n records, of a norm up to their limit. */
template <class T> void softmax(const Run<T> &run, const Lists<T> &lists, Int at, Int n, Int stride) {
    typedef Vector<T> V;
    const Int classes = run.job.classes;
    for (Int b = 0; b < n; b += LANES<T>) {
        V largest = read(lists.z + b), total = {}, factor = all(lists.column[LIMIT] ? (T)-1 : -run.scale);
        for (Int k = 1; k < classes; k++) {
            const V z = read(lists.z + k * stride + b);
            largest = z > largest ? z : largest;
        }
        for (Int k = 0; k < classes; k++) {
            const V e = exponentials(read(lists.z + k * stride + b) - largest);
            write(lists.z + k * stride + b, e), total += e;
        }
        if (lists.column[WEIGHT]) factor *= read(lists.column[WEIGHT] + at + b);
        for (Int k = 0; k < classes; k++) write(lists.z + k * stride + b, read(lists.z + k * stride + b) / total * factor);
        for (Int i = b; i < smaller(n, b + LANES<T>); i++) {
            const T label = lists.column[TARGET][at + i];
            if (label >= 0 && label < classes) lists.z[(Int)label * stride + i] -= factor[i - b];
            else lists.z[i] = NAN; /* memory changed since labels were checked: the run ends as diverged */
        }
    }
    for (Int b = 0; lists.column[LIMIT] && b < n; b++) {
        double square = 0.0;
        for (Int k = 0; k < classes; k++) square += (double)lists.z[k * stride + b] * lists.z[k * stride + b];
        const double shorter = fmin(1.0, lists.column[LIMIT][at + b] / fmax(sqrt(square), 1e-300));
        for (Int k = 0; k < classes; k++) lists.z[k * stride + b] *= (T)(run.scale * shorter);
    }
}

/* Steps of multinomial regression: two classes for each time that a record is read. */
template <class T> NOINLINE void softmax_steps(const Run<T> &run, const Lists<T> &lists, Client<T> *team, Int count) {
    Client<T> &c = *team;
    const Int K = run.job.classes, step = run.job.sampling == FULL ? 0 : run.pad, stride = smaller(run.block, run.batch) + 2 * LANES<T>;
    for (Int h = 0; h < count; h++) {
        const T *push = c.push + h * c.push_stride;
        for (Int b = 0; b < run.batch; b += run.block) {
            const Int n = smaller(run.block, run.batch - b), at = h * step + b;
            const Rows<T, true> x{lists.x + at, nullptr, 0};
            Int k = 0;
            for (; k + 2 <= K; k += 2) margins<T, 0, 2>(run, x, n, c.theta + k * run.tall, lists.z + k * stride, stride);
            if (k < K) margins<T, 0, 1>(run, x, n, c.theta + k * run.tall, lists.z + k * stride, stride);
            softmax(run, lists, at, n, stride);
            for (k = 0; k + 2 <= K; k += 2)
                descend<T, 0, 2>(run, x, n, b == 0, c.theta + k * run.tall, c.next + k * run.tall, push + k * run.tall, lists.z + k * stride, stride);
            if (k < K) descend<T, 0, 1>(run, x, n, b == 0, c.theta + k * run.tall, c.next + k * run.tall, push + k * run.tall, lists.z + k * stride, stride);
        }
        T *now = c.next;
        c.next = c.theta, c.theta = now;
        for (Int k = 0; k < K; k++) clear_repeated(run, now + k * run.tall);
        fetch(c);
    }
}

/* theta <- decay theta + push - scale sum_i (A_i theta - b_i); x lists the A_i, m the b_i. */
template <class T> NOINLINE void linear_steps(const Run<T> &run, const Lists<T> &lists, Client<T> *team, Int count) {
    Client<T> &c = *team;
    const Int d = run.job.features, step = run.job.sampling == FULL ? 0 : run.pad;
    for (Int h = 0; h < count; h++) {
        for (Int i = 0; i < d; i++) c.next[run.place(i)] = 0;
        for (Int b = 0; b < run.batch; b++) {
            const T *right = lists.m[h * step + b];
            margins<T, 0, 1>(run, Rows<T, false>{nullptr, lists.x[h * step + b], d}, d, c.theta, lists.z, 0);
            for (Int i = 0; i < d; i++) c.next[run.place(i)] += lists.z[i] - right[i];
        }
        const T *push = c.push + h * c.push_stride;
        for (Int i = 0; i < run.tall; i++) c.theta[i] = run.decay[i] * c.theta[i] + push[i] - run.scale * c.next[i];
        clear_repeated(run, c.theta);
        fetch(c);
    }
}

constexpr Int LONG_ROW = 256; /* features, beyond which rows and models of four clients leave the first-level cache */
template <class T> struct Plan { Steps<T> steps; int team; };
#if defined(__FMA__) || defined(__aarch64__)
/* Rows of up to eight vectors of doubles have code of their own, and small batches of them. Teams pay for short steps, which
   wait most. */
#define EACH(f) {f(0), f(1), f(2), f(3), f(4), f(5), f(6), f(7), f(8)}
#define SINGLE(n) single_steps<T, n, 4>
#define ALONE(n) margin_steps<T, n, 1, true>
#define IN_ORDER(n) margin_steps<T, n, 1, false>
#define TEAM_OF(n, b) (n && n * b <= 30 ? 2 : 1)
#define SMALL(n, b) {small_steps<T, n, b, TEAM_OF(n, b)>, TEAM_OF(n, b)}
#define OF_SIZES(n) {SMALL(n, 4), SMALL(n, 5), SMALL(n, 8), SMALL(n, 10), SMALL(n, 16)}
template <class T> Plan<T> plan_for_doubles(const Run<T> &run) {
    static constexpr Steps<T> singles[] = EACH(SINGLE), alone[] = EACH(ALONE), in_order[] = EACH(IN_ORDER);
    static constexpr Int sizes[] = {4, 5, 8, 10, 16};
    static constexpr Plan<T> small[][5] = EACH(OF_SIZES);
    const Int nv = run.vectors <= 8 ? run.vectors : 0, batch = run.job.batch;
    if (run.job.sampling == FULL) return {in_order[nv], 1};
    if (run.job.ids) return {alone[nv], 1};
    if (batch == 1 && run.job.features > LONG_ROW) return {single_steps<T, 0, 2>, 2};
    if (batch == 1) return {singles[nv], 4};
    for (int i = 0; i < 5; i++) if (batch == sizes[i]) return small[nv][i];
    return {alone[nv], 1};
}
#endif
template <class T> Plan<T> plan_for(const Run<T> &run) {
    const Job &job = run.job;
    if (job.loss == SOFTMAX) return {softmax_steps<T>, 1};
    if (job.loss == LINEAR_SYSTEM) return {linear_steps<T>, 1};
#if defined(__FMA__) || defined(__aarch64__) /* elsewhere the time goes to fused products in software */
    if constexpr (sizeof(T) == 8) return plan_for_doubles(run);
#endif
    if (job.sampling == FULL) return {margin_steps<T, 0, 1, false>, 1};
    if (job.batch == 1 && !job.ids) return job.features > LONG_ROW ? Plan<T>{single_steps<T, 0, 2>, 2} : Plan<T>{single_steps<T, 0, 4>, 4};
    return {margin_steps<T, 0, 1, true>, 1};
}

/* ------------------------------------------------- drawing */
/* Words from position `first` on, a multiple of 4: whole groups of 32; as indices below n unless n is 0. */
void draw_words(const Stream &s, Int first, Int count, uint64_t n, uint32_t *out) {
    for (Int at = 0; at < count; at += 32) {
        const Blocks w = eight_blocks(s, (first + at) / 4);
        UNROLL for (int i = 0; i < 2; i++) {
            Word4 a = w.word[0][i], b = w.word[1][i], c = w.word[2][i], d = w.word[3][i];
            if (n) a = low_product(a, all(n)) >> 32, b = low_product(b, all(n)) >> 32, c = low_product(c, all(n)) >> 32, d = low_product(d, all(n)) >> 32;
            const Word4 ab = (a & 0xFFFFFFFFu) | b << 32, cd = (c & 0xFFFFFFFFu) | d << 32;
            write(out + at + 16 * i, SHUFFLE(ab, cd, 0, 4, 1, 5)), write(out + at + 16 * i + 8, SHUFFLE(ab, cd, 2, 6, 3, 7));
        }
    }
}
/* rows hold words, and get distinct indices within each batch; order is 0, ..., n - 1 before and after. */
void without_replacement(int32_t *rows, Int count, Int batch, int32_t *order, int32_t *jumps, uint64_t n) {
    for (Int begin = 0; begin < count; begin += batch) {
        for (Int b = 0; b < batch; b++) {
            const Int k = b + (Int)((uint32_t)rows[begin + b] * (n - b) >> 32);
            const int32_t found = order[k];
            jumps[b] = (int32_t)k, order[k] = order[b], order[b] = found, rows[begin + b] = found;
        }
        for (Int b = batch - 1; b >= 0; b--) { const int32_t found = order[jumps[b]]; order[jumps[b]] = order[b], order[b] = found; }
    }
}
/* rows hold words, and get the records whose intervals hold them; along a chain among those that may follow the last. */
void by_probability(const Job &job, Int base, uint64_t n, Int &last, int32_t *rows, Int count) {
    for (Int i = 0; i < count; i++) {
        const uint64_t w = (uint32_t)rows[i];
        if (job.sampling == BY_PROBABILITY || last < 0) {
            last = job.guide[base + (w * n >> 32)];
            while (job.ends[base + last] <= w) last++;
        } else {
            const Int begin = last = job.follows[base + last];
            for (Int k = 0; k + 1 < job.branching; k++) last += job.chain_ends[base + begin + k] <= w;
        }
        rows[i] = (int32_t)last;
    }
}

constexpr Int GROUP = 32, NOISE_GROUP = 128;      /* numbers of eight blocks: core.random.normals, core.random.noise */
constexpr uint64_t ASIDE = 1ull << 31, NO_ROUND = 0xFFFFFFFFu; /* where targets' numbers begin; the round of clients' laws */

/* Whole groups of 32 numbers from `block` on: make(words, half, four vectors) gives those of four blocks. */
template <class T, class F> INLINE void draw_groups(const Stream &s, uint64_t block, Int groups, T *out, F make) {
    for (Int g = 0; g < groups; g++) {
        const Blocks w = eight_blocks(s, block + 8 * g);
        UNROLL for (int half = 0; half < 2; half++) {
            Double4 four[4];
            make(w, half, four);
            UNROLL for (int k = 0; k < 4; k++) write4(out + g * GROUP + 8 * k + 4 * half, four[k]);
        }
    }
}
template <class T> NOINLINE void draw_normals(const Stream &s, uint64_t block, Int groups, T *out) {
    draw_groups(s, block, groups, out, [](const Blocks &w, int half, Double4 *four) INLINED {
        normal_pair(w.word[0][half], w.word[1][half], four), normal_pair(w.word[2][half], w.word[3][half], four + 2);
    });
}
template <class T> NOINLINE void draw_uniforms(const Stream &s, uint64_t block, Int groups, T *out) {
    draw_groups(s, block, groups, out, [](const Blocks &w, int half, Double4 *four) INLINED {
        UNROLL for (int k = 0; k < 4; k++) four[k] = (as_doubles(w.word[k][half] & 0xFFFFFFFFu) + 0.5) * 0x1p-32;
    });
}
/* Whole groups of 128 nearly normal numbers: core.random.noise. */
NOINLINE void draw_noise(const Stream &s, uint64_t block, Int groups, double *out) {
    static constexpr double NEARLY_NORMAL[] = {-4.078134140713756, 54.78427992632026, -138.3078491904034, 91.16643292704707};
    for (Int g = 0; g < groups; g++) {
        const Blocks w = eight_blocks(s, block + 8 * g);
        for (int half = 0; half < 2; half++) {
            Double4 y[16];
            UNROLL for (int j = 0; j < 16; j++) {
                const Double4 u = (as_doubles(w.word[j / 4][half] >> (8 * (j % 4)) & 0xFFu) + 0.5) * 0x1p-7 - 1.0;
                y[j] = u * polynomial(NEARLY_NORMAL, u * u);
            }
            UNROLL for (int bit = 1; bit < 16; bit *= 2) UNROLL for (int i = 0; i < 16; i++) if (!(i & bit)) { /* Hadamard's matrix */
                const Double4 a = y[i], b = y[i + bit];
                y[i] = a + b, y[i + bit] = a - b;
            }
            UNROLL for (int i = 0; i < 16; i++) { /* and the signs of Rudin and Shapiro */
                const double sign = __builtin_popcount(i & i >> 1) % 2 ? -0.25 : 0.25;
                write(out + g * NOISE_GROUP + 8 * i + 4 * half, sign * y[i]);
            }
        }
    }
}

/* ------------------------------------------------- rounds */
constexpr Int DRAWS_AT_ONCE = 512, NUMBERS_AT_ONCE = 4096; /* records listed, or features drawn, before their steps: some kilobytes */
constexpr Int FIRST_LEVEL = 26000;                         /* bytes of a batch that stay in a cache of 32 kilobytes */
constexpr int LARGEST_TEAM = 4;

class Memory { /* of a call: arrays are counted in a first pass and handed out in a second */
    char *begin = nullptr, *at = nullptr;
public:
    ~Memory() { free(begin); }
    template <class U> void take(U *&array, Int count) { array = begin ? (U *)at : nullptr, at += rounded_up(count * sizeof(U), LINE); }
    bool allocate() {
        const Int bytes = at - (char *)nullptr + LINE;
        begin = (char *)calloc(1, bytes);
        at = (char *)rounded_up((Int)begin, LINE);
        return begin;
    }
};

template <class T> int run_clients(const Job &job, Int begin, Int end) {
    const bool full = job.sampling == FULL && !job.ids, streamed = job.ids;
    const Int R = job.repetitions, L = LANES<T>, d = job.features, dim = d * job.classes, items = (end - begin) * R;
    auto steps_of = [&](Int i) { return job.steps[i % R * job.steps_repetition + (begin + i / R) * job.steps_client]; };
    auto client_of = [&](Int i) { return job.clients[i % R * job.clients_repetition + begin + i / R]; };
    Int largest = 1, longest = 1;
    for (Int i = 0; i < items; i++) {
        longest = larger(longest, steps_of(i));
        if (!streamed) largest = larger(largest, job.offsets[client_of(i) + 1] - job.offsets[client_of(i)]);
    }
    Run<T> run{job, (d + L - 1) / L, 0, 0, larger(0, d - L), full ? largest : job.batch, 0, 0, {}, 0, nullptr, job.unpenalised ? L : 0};
    run.tall = run.vectors * L, run.split = run.tall - L;
    run.pad = run.batch == 1 ? 1 : rounded_up(run.batch, L);
    run.block = larger(8, FIRST_LEVEL / (Int)(d * sizeof(T)) / 8 * 8);
    run.scale = (T)(job.step_size / run.batch);
    T bits[32 / sizeof(T)] = {};
    for (Int i = 0; i < L; i++) if (d < L ? i < d : i >= run.split - run.tail) memset(bits + i, 0xFF, sizeof(T));
    run.mask = read_as<Word4>(bits);
    const Plan<T> plan = plan_for(run);
    const Key key(job.seed), noise_key(job.noise_seed), law_key(job.law_seed);
    const Int noisy = job.limits != nullptr, model = job.classes * run.tall;
    const Int at_once = larger(1, smaller(longest, streamed ? NUMBERS_AT_ONCE / (run.batch * d) : full && !noisy ? longest : DRAWS_AT_ONCE / run.batch));
    const Int listed = larger((full ? 1 : at_once) * plan.team * run.pad, job.anchor ? rounded_up(largest, L) : 0) + 2 * L;
    const Int noise_count = noisy ? at_once * dim + 2 * NOISE_GROUP : 0, drawn = full ? 0 : at_once * run.batch;

    Memory memory;
    Client<T> team[LARGEST_TEAM] = {};
    Lists<T> lists = {};
    T *features, *margin;
    double *noise, *law;
    int32_t *order, *jumps, *rows;
    for (int pass = 0; pass < 2; pass++) {
        memory.take(run.decay, model), memory.take(lists.x, listed), lists.m = lists.x;
        if (job.m || job.loss == LINEAR_SYSTEM) memory.take(lists.m, listed);
        for (int k = 0; k < COLUMNS; k++)
            if (k == TARGET || (k <= WEIGHT ? job.columns == 3 && job.loss != LINEAR_SYSTEM : k == LIMIT ? noisy : job.anchor != nullptr)) memory.take(lists.column[k], listed + (streamed ? 2 * GROUP : 0));
        memory.take(lists.z, larger(job.classes * (smaller(run.block, run.batch) + 2 * L), plan.team * run.pad + rounded_up(d, 8)) + 2 * L);
        memory.take(order, largest + 4), memory.take(jumps, run.batch), memory.take(rows, rounded_up(drawn, 32) + 64), memory.take(noise, noise_count);
        memory.take(features, streamed ? drawn * d + 2 * GROUP : 0), memory.take(margin, streamed ? drawn + 2 * GROUP : 0), memory.take(law, streamed ? 2 * d + 2 * GROUP : 0);
        for (int s = 0; s < plan.team; s++) {
            Client<T> &c = team[s];
            c.push_stride = noisy ? model : 0;
            memory.take(c.theta, model), memory.take(c.next, model), memory.take(c.push, noisy ? (at_once + 1) * model : model);
            memory.take(c.at_anchor, job.anchor ? rounded_up(largest, L) : 0);
        }
        if (pass == 0 && !memory.allocate()) return 1;
    }
    for (Int i = 0; i < largest; i++) order[i] = (int32_t)i;
    for (Int k = 0; k < job.classes; k++) for (Int i = 0; i < d; i++)
        run.decay[k * run.tall + run.place(i)] = (T)(1.0 - job.step_size * ((i < d - job.unpenalised ? job.l2 : 0.0) + job.pull));

    /* Records of a client, by index, into the lists from `at` on: batch after batch of client s of the team. */
    const T *x = (const T *)job.x, *m = job.m ? (const T *)job.m : x, *y = (const T *)job.y;
    auto list = [&](const Client<T> &c, const int32_t *index, Int batches, Int batch, Int s, Int stride, Int pad) INLINED {
        auto each = [&](auto f) INLINED { /* four at a time, also past the end of a batch, where lists have room and draws are zero */
            if (batch == 1) { for (Int h = 0; h < batches; h++) f(h * stride + s, index + h, Size<1>()); }
            else if (index == order) { for (Int b = 0; b < batch; b++) f(b, index + b, Size<1>()); } /* past it is another client */
            else for (Int h = 0; h < batches; h++) for (Int b = 0; b < batch; b += 4) f(h * stride + s * pad + b, index + h * batch + b, Size<4>());
        };
        auto column = [&](T *to, const T *from, Int width) INLINED {
            each([=](Int at, const int32_t *row, auto size) INLINED { UNROLL for (int i = 0; i < decltype(size)::n; i++) to[at + i] = from[row[i] * width]; });
        };
        auto rows = [&](const T **to, const T *from, Int width) INLINED {
            each([=](Int at, const int32_t *row, auto size) INLINED {
                if (decltype(size)::n == 1) { to[at] = from + row[0] * width; return; }
                const Word4 four = {(uint32_t)row[0], (uint32_t)row[1], (uint32_t)row[2], (uint32_t)row[3]};
                write(to + at, low_product(four, all((uint64_t)(width * sizeof(T)))) + (uint64_t)from);
            });
        };
        if (job.loss == LINEAR_SYSTEM) return rows(lists.x, x + c.base * d * d, d * d), rows(lists.m, y + c.base * d, d);
        rows(lists.x, x + c.base * d, d);
        if (job.m) rows(lists.m, m + c.base * d, d);
        const T *own = y + c.base * job.columns;
        if (!lists.column[WEIGHT]) column(lists.column[TARGET], own, 1);
        else for (int k = TARGET; k <= WEIGHT; k++) column(lists.column[k], own + k, 3);
        if (noisy) column(lists.column[LIMIT], (const T *)job.limits + c.base, 1);
        if (job.anchor) column(lists.column[AT_ANCHOR], c.at_anchor, 1);
    };

    for (Int item = 0; item < items;) { /* an item is one repetition of one client */
        const Int H = steps_of(item);
        Int together = 1; /* items of this turn: those that follow and take as many steps */
        while (together < plan.team && item + together < items && steps_of(item + together) == H) together++;
        double root_scale = 1.0;
        for (int s = 0; s < plan.team; s++) { /* the last item fills places that are left */
            const Int mine = item + smaller(s, together - 1), r = mine % R, k = begin + mine / R, id = client_of(mine);
            Client<T> &c = team[s];
            const double *theta = job.theta + r * job.theta_repetition + k * job.theta_client;
            const double *correction = job.correction + r * job.correction_repetition + k * job.correction_client;
            T *push = c.push + (noisy ? at_once * model : 0); /* with noise a push for each step is made of it */
            for (Int g = 0; g < job.classes; g++) for (Int i = 0; i < d; i++) {
                const Int to = g * run.tall + run.place(i), from = g * d + i;
                c.theta[to] = (T)theta[from];
                const double l2 = i < d - job.unpenalised ? job.l2 : 0.0;
                push[to] = (T)(-job.step_size * (correction[from] - (job.anchor ? l2 * job.anchor[r * dim + from] : 0.0)));
            }
            c.words = {&key, (uint64_t)job.round, (uint64_t)(job.first_client + id), (uint64_t)r}, c.noise_words = c.words, c.noise_words.key = &noise_key;
            c.last = -1, c.portion = 0;
            if (streamed) { /* the client's model w, and the root of its features' scale */
                const Stream own = {&law_key, NO_ROUND, (uint64_t)job.ids[id], NO_ROUND};
                draw_normals(own, 0, (d + GROUP - 1) / GROUP, law);
                const double tau = 2.0 * (((eight_blocks(own, ASIDE).word[0][0][0] & 0xFFFFFFFFu) + 0.5) * 0x1p-32) - 1.0;
                for (Int i = 0; i < d; i++) c.next[run.place(i)] = (T)(job.centre[i] + job.heterogeneity * (law[i] / sqrt((double)d) + tau * job.tilt[i]));
                root_scale = sqrt(1.0 + job.scale_spread * tau);
                continue;
            }
            c.base = job.offsets[id], c.n = job.offsets[id + 1] - c.base;
            const Int later = mine + together, following = later < items ? client_of(later) : id;
            const Int width = job.loss == LINEAR_SYSTEM ? d * d : d, numbers = (job.offsets[following + 1] - job.offsets[following]) * width;
            if (following != id && H && 4 * H * run.batch * width >= numbers) /* steps enough to use what is fetched */
                c.portion = (numbers - 1) / H + 1, c.ahead = x + job.offsets[following] * width;
            if (full) run.batch = c.n, run.scale = (T)(job.step_size / c.n);
            if (job.anchor) {
                for (Int i = 0; i < d; i++) c.next[run.place(i)] = (T)job.anchor[r * dim + i];
                list(c, order, 1, c.n, 0, 0, 0);
                margins<T, 0, 1>(run, Rows<T, false>{nullptr, m + c.base * d, d}, c.n, c.next, lists.column[AT_ANCHOR], 0);
                for (Int i = 0; i < c.n; i += L) write(c.at_anchor + i, weighted_slopes(run, lists, i, read(lists.column[AT_ANCHOR] + i), (T)1, false));
            }
            if (full) list(c, order, 1, c.n, 0, 0, 0), lists.all_x = x + c.base * d, lists.all_m = m + c.base * d;
        }
        for (Int h = 0; h < H;) {
            const Int count = smaller(at_once, H - h), first = job.first_step + h, position = first * run.batch, n = count * run.batch;
            for (int s = 0; s < plan.team && noisy; s++) {
                Client<T> &c = team[s];
                const Int number = first * dim, skip = number % NOISE_GROUP;
                draw_noise(c.noise_words, number / NOISE_GROUP * 8, (skip + count * dim + NOISE_GROUP - 1) / NOISE_GROUP, noise);
                const double deviation = -job.step_size * job.noise / run.batch;
                for (Int step = 0; step < count; step++) for (Int g = 0; g < job.classes; g++) for (Int i = 0; i < d; i++) {
                    const Int to = g * run.tall + run.place(i);
                    c.push[step * model + to] = c.push[at_once * model + to] + (T)(deviation * noise[skip + step * dim + g * d + i]);
                }
            }
            if (streamed) {
                Client<T> &c = *team;
                const Int skip = position * d % GROUP, aside = position % GROUP, groups = (aside + n + GROUP - 1) / GROUP;
                draw_normals(c.words, position * d / GROUP * 8, (skip + n * d + GROUP - 1) / GROUP, features);
                for (Int i = 0; i < n; i++) for (Int j = 0; j < d; j++) features[skip + i * d + j] *= (T)(root_scale * job.roots[j]);
                const uint64_t block = ASIDE + position / GROUP * 8;
                T *target = lists.column[TARGET];
                if (job.loss == RIDGE) draw_normals(c.words, block, groups, margin);
                else draw_uniforms(c.words, block, groups, margin);
                for (Int i = 0; i < n; i++) lists.x[i] = features + skip + i * d;
                margins<T, 0, 1>(run, Rows<T, true>{lists.x, nullptr, 0}, n, c.next, target, 0);
                for (Int i = 0; i < n; i += 4) {
                    const Double4 at = read4(target + i), drawn_numbers = read4(margin + aside + i);
                    const Double4 label = drawn_numbers * (1.0 + exponential(-at)) < all(1.0) ? all(1.0) : all(-1.0);
                    write4(target + i, job.loss == RIDGE ? at + job.target_noise * drawn_numbers : label);
                }
                for (Int step = count - 1; step >= 0 && run.pad != run.batch; step--) for (Int b = run.batch - 1; b >= 0; b--) /* as lists lie */
                    target[step * run.pad + b] = target[step * run.batch + b], lists.x[step * run.pad + b] = lists.x[step * run.batch + b];
            }
            for (int s = 0; s < plan.team && !streamed && !full; s++) {
                Client<T> &c = team[s];
                const Int skip = position % 4;
                for (Int at = 0; job.sampling == ALONG_CHAIN && h == 0 && at < position; at += 32) { /* earlier steps of the chain */
                    draw_words(c.words, at, 32, 0, (uint32_t *)rows);
                    by_probability(job, c.base, c.n, c.last, rows, smaller(32, position - at));
                }
                draw_words(c.words, position - skip, skip + n, job.sampling == WITH_REPLACEMENT ? c.n : 0, (uint32_t *)rows);
                if (job.sampling == WITHOUT_REPLACEMENT) without_replacement(rows + skip, n, run.batch, order, jumps, c.n);
                else if (job.sampling != WITH_REPLACEMENT) by_probability(job, c.base, c.n, c.last, rows + skip, n);
                for (Int i = 0; i < 4; i++) rows[skip + n + i] = 0;
                list(c, rows + skip, count, run.batch, s, plan.team * run.pad, run.pad);
            }
            plan.steps(run, lists, team, count);
            h += count;
        }
        for (int s = 0; s < together; s++) {
            const Int mine = item + s;
            double *out = job.out + (mine % R * job.count + begin + mine / R) * dim;
            for (Int g = 0; g < job.classes; g++) for (Int i = 0; i < d; i++) out[g * d + i] = team[s].theta[g * run.tall + run.place(i)];
        }
        item += together;
    }
    return 0;
}

} // namespace

extern "C" int STEPS(const Job *job, int64_t begin, int64_t end) {
    return job->single_precision ? run_clients<float>(*job, begin, end) : run_clients<double>(*job, begin, end);
}
