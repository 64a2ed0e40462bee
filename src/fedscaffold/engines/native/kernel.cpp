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

/* ------------------------------------------------- losses: the derivative in the margin, of a vector of records */
struct Ridge { template <class V> INLINE V slope(V margin, V y) { return margin - y; } };
struct Logistic { template <class V> INLINE V slope(V margin, V y) { return -y / exponential(y * margin, 1); } };
struct Poisson { template <class V> INLINE V slope(V margin, V y) { return exponential(margin) - y; } };
struct Gamma { template <class V> INLINE V slope(V margin, V y) { return 1 - y * exponential(-margin); } };

template <class V> INLINE V slope_of(Int loss, V margin, V y) {
    switch (loss) {
    case RIDGE: return Ridge::slope(margin, y);
    case LOGISTIC: return Logistic::slope(margin, y);
    case POISSON: return Poisson::slope(margin, y);
    default: return Gamma::slope(margin, y);
    }
}

constexpr Int LINE = 64; /* bytes of a cache line */
constexpr Int LEAD = 4;  /* steps between fetching a single record and using it */

/* ------------------------------------------------- what steps work on */
enum Column { TARGET, OFFSET, WEIGHT, LIMIT, AT_ANCHOR, COLUMNS };

template <class T> struct Run { /* shared by all clients of a call */
    const Job &job;
    Int vectors, tall, split, tail; /* of a row: vectors, their numbers, those before the last vector, where that begins */
    Int batch, block;               /* records of a step, and how many fit the first-level cache */
    Int span, step, stride;         /* places in lists: of a client's rows, of a step's columns, of a class's slopes */
    Word4 mask;                     /* of the last vector's own numbers */
    T scale, *decay;
    Int sides;                      /* classes whose vectors are side by side in a model */
    Int place(Int i) const { return i < split ? i : i - tail + split; } /* of coordinate i in a model */
    Int place(Int k, Int i) const { /* and in class k's */
        const Int at = place(i), within = at % LANES<T>;
        return (k / sides * tall + at - within) * sides + k % sides * LANES<T> + within;
    }
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
template <int MOST, class F> INLINE void in_groups(Int begin, Int end, F f) { /* of MOST, then of half as many, ..., then single ones */
    for (; begin + MOST <= end; begin += MOST) f(begin, Size<MOST>());
    if constexpr (MOST > 1) in_groups<MOST / 2>(begin, end, f);
}
template <int BEGIN, int END, int MOST, class F> INLINE void in_fixed_groups(F f) { /* the same, known to the compiler */
    if constexpr (BEGIN + MOST <= END) f(Size<BEGIN>(), Size<MOST>()), in_fixed_groups<BEGIN + MOST, END, MOST>(f);
    else if constexpr (MOST > 1) in_fixed_groups<BEGIN, END, MOST / 2>(f);
}
template <int NV, class T, class F> INLINE void for_vectors(const Run<T> &run, F f, Int v = 0) { /* f(which, where in a row, whether it is the last) */
    if constexpr (NV > 0) { UNROLL for (int v = 0; v < NV; v++) f(v, v + 1 < NV ? v * LANES<T> : run.tail, v + 1 == NV); }
    else {
        for (; v + 1 < run.vectors; v++) f(v, v * LANES<T>, false);
        f(v, run.tail, true);
    }
}
template <bool MANY> constexpr int SIDES = MANY ? MOST_SIDES : 1;
template <int NV, bool MANY, class T, class F> INLINE void for_sides(const Run<T> &run, F f) { /* the same with the type of a register: a vector, two, or two classes' */
    Int v = 0;
    if constexpr (NV == 0 && !MANY) for (; v + MOST_SIDES < run.vectors; v += MOST_SIDES) f(v, v * LANES<T>, false, Vector<T, MOST_SIDES>{});
    for_vectors<NV>(run, [&](Int v, Int at, bool last) INLINED { f(v, at, last, Vector<T, SIDES<MANY>>{}); }, v);
}
template <int S = 1, class T> INLINE void clear_repeated(const Run<T> &run, T *theta) {
    T *last = theta + run.split * S;
    UNROLL for (int s = 0; s < S; s++) write(last + s * LANES<T>, read_as<Word4>(last + s * LANES<T>) & run.mask);
}

/* ------------------------------------------------- the parts of a step */
constexpr int RECORDS = 8; /* of a group; with several classes, as many of them as make 16 sums, but at most eight, or five pairs */
template <int G, bool MANY> constexpr int CLASSES = !MANY ? 1 : G > 2 ? 16 / G : MOST_SIDES == 2 ? 5 : 8;

constexpr auto as_it_is = [](Int, auto margin) INLINED { return margin; };
/* z_kb = finish(b, rows_b . theta_k) for n records b and all classes k. */
template <class T, int NV, bool MANY, class R, class F> INLINE void margins(const Run<T> &run, const R rows, Int n, const T *theta, T *z, F finish) {
    constexpr int L = LANES<T>, S = SIDES<MANY>;
    typedef Vector<T> V;
    typedef Vector<T, S> W;
    constexpr bool KEPT = NV > 0 && !MANY; /* a short model stays in registers */
    W kept[KEPT ? NV : 1];
    if constexpr (KEPT) UNROLL for (int v = 0; v < NV; v++) kept[v] = read(theta + v * L);
    in_groups<RECORDS>(0, n, [&](Int b, auto size) INLINED {
        constexpr int G = decltype(size)::n;
        const T *x[G];
        UNROLL for (int g = 0; g < G; g++) x[g] = rows[b + g];
        in_groups<CLASSES<G, MANY>>(0, MANY ? (run.job.classes + S - 1) / S : 1, [&](Int k, auto some) INLINED {
            constexpr int C = decltype(some)::n;
            W a[C * G];
            V part[C * S * G];
            UNROLL for (int i = 0; i < C * G; i++) a[i] = W{};
            for_vectors<NV>(run, [&](Int v, Int at, bool) INLINED {
                W model[C];
                UNROLL for (int c = 0; c < C; c++) model[c] = KEPT ? kept[v] : read_as<W>(theta + ((k + c) * run.tall + v * L) * S);
                UNROLL for (int g = 0; g < G; g++) {
                    const W row = on_sides<W>(read(x[g] + at));
                    UNROLL for (int c = 0; c < C; c++) a[c * G + g] = fused(row, model[c], a[c * G + g]);
                }
            });
            UNROLL for (int i = 0; i < C * S * G; i++) part[i] = side<V>(a[i / (S * G) * G + i % G], i / G % S);
            if (MANY && G == 1 && run.stride == 1) { /* the classes of a single record, side by side */
                sums<C * S>(part);
                UNROLL for (int i = 0; i * L < C * S; i++) write(z + k * S + i * L, part[i]);
            } else UNROLL for (int c = 0; c < C * S; c++) {
                sums<G>(part + c * G);
                UNROLL for (int i = 0; i * L < G; i++) write(z + (k * S + c) * run.stride + b + i * L, finish(b + i * L, part[c * G + i]));
            }
        });
    });
}

/* now_c <- now_c + sum_g slopes_cg x_g, in two chains, so that a sum waits half as long for the one before. */
template <int G, int C, bool MANY, class T, class W, class V> INLINE void add_group(const T *const *x, Int at, const W *slopes, V *now) {
    V chain[C][2];
    UNROLL for (int g = 0; g < G; g++) {
        V row;
        if constexpr (MANY) row = on_sides<V>(read(x[g] + at)); else row = read_as<V>(x[g] + at);
        UNROLL for (int c = 0; c < C; c++) {
            const V slope = side<V>(slopes[c * G + g], 0);
            if (G == 1) now[c] = fused(slope, row, now[c]);
            else chain[c][g % 2] = g < 2 ? slope * row : fused(slope, row, chain[c][g % 2]);
        }
    }
    if (G > 1) UNROLL for (int c = 0; c < C; c++) now[c] += chain[c][0] + chain[c][1];
}

/* to_k = from_k + sum_b z_kb rows_b, after decay and push if this is the step's first block of records. */
template <class T, int NV, bool MANY, class R>
INLINE void descend(const Run<T> &run, const R rows, Int n, bool first, const T *from, T *to, const T *push, const T *z) {
    constexpr int L = LANES<T>, S = SIDES<MANY>;
    typedef Vector<T, MANY || NV == 0 ? MOST_SIDES : 1> W;
    constexpr bool KEPT = NV > 0 && !MANY;
    W kept[KEPT ? NV : 1];
    auto begun = [&](Int k, Int v, auto zero) INLINED {
        typedef decltype(zero) U;
        const Int at = (k * run.tall + v * L) * S;
        if (!first) return read_as<U>(to + at);
        U decay;
        if constexpr (MANY) decay = on_sides<U>(read(run.decay + v * L)); else decay = read_as<U>(run.decay + v * L);
        return fused(decay, read_as<U>(from + at), read_as<U>(push + at));
    };
    if constexpr (KEPT) UNROLL for (int v = 0; v < NV; v++) kept[v] = begun(0, v, W{});
    in_groups<RECORDS>(0, n, [&](Int b, auto size) INLINED {
        constexpr int G = decltype(size)::n;
        const T *x[G];
        UNROLL for (int g = 0; g < G; g++) x[g] = rows[b + g];
        in_groups<CLASSES<G, MANY>>(0, MANY ? (run.job.classes + S - 1) / S : 1, [&](Int k, auto some) INLINED {
            constexpr int C = decltype(some)::n;
            W slopes[C * G];
            UNROLL for (int c = 0; c < C; c++) UNROLL for (int g = 0; g < G; g++) {
                const T *const first_side = z + (k + c) * S * run.stride + b + g;
                slopes[c * G + g] = on_sides<W>(*first_side, first_side[(S - 1) * run.stride]);
            }
            for_sides<NV, MANY>(run, [&](Int v, Int at, bool, auto zero) INLINED {
                typedef decltype(zero) U;
                T *const model = to + (k * run.tall + v * L) * S;
                U now[C];
                UNROLL for (int c = 0; c < C; c++) {
                    if constexpr (KEPT) now[c] = kept[v];
                    else now[c] = b == 0 ? begun(k + c, v, zero) : read_as<U>(model + c * run.tall * S);
                }
                add_group<G, C, MANY>(x, at, slopes, now);
                if constexpr (KEPT) kept[v] = now[0];
                else UNROLL for (int c = 0; c < C; c++) write(model + c * run.tall * S, now[c]);
            });
        });
    });
    if constexpr (KEPT) UNROLL for (int v = 0; v < NV; v++) write(to + v * L, kept[v]);
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
/* The loss if it is ridge or logistic regression without weights, limits and anchor, which is computed in registers; else -1. */
template <class T> INLINE Int common_loss(const Run<T> &run, const Lists<T> &lists) {
    return lists.column[WEIGHT] || lists.column[LIMIT] || lists.column[AT_ANCHOR] || run.job.loss > LOGISTIC ? -1 : run.job.loss;
}
template <class T> INLINE Vector<T> common_slopes(Int common, T scale, Vector<T> margin, const T *y) {
    if (common == RIDGE) return -scale * Ridge::slope(margin, read(y));
    return common == LOGISTIC ? -scale * Logistic::slope(margin, read(y)) : margin;
}

/* z_kb <- -(step size / B) weight (p_k - [y = k]) for the classes k of n records, of a norm up to their limit. */
template <class T, bool SINGLE> NOINLINE void softmax(const Run<T> &run, const Lists<T> &lists, Int at, Int n, T *z) {
    typedef Vector<T, SINGLE ? 1 : MOST_SIDES> V; /* of a single record's classes, or of records */
    constexpr Int L = sizeof(V) / sizeof(T);
    const Int classes = run.job.classes, stride = run.stride;
    const T *const weight = lists.column[WEIGHT], sign_and_scale = lists.column[LIMIT] ? (T)-1 : -run.scale;
    auto factor_of = [&](Int b) { return weight ? sign_and_scale * weight[at + b] : sign_and_scale; };
    V lanes, largest, total;
    for (int i = 0; i < L; i++) lanes[i] = i;
    const Int vectors = SINGLE ? (classes + L - 1) / L : classes, apart = SINGLE ? L : stride;
    if (SINGLE && classes % MOST_SIDES) for (Int k = classes; k < vectors * L; k++) z[k] = z[0]; /* else copies fill the last vector's places */
    for (Int b = 0; b < n; b += L) {
        largest = read_as<V>(z + b), total = V{};
        for (Int k = 1; k < vectors; k++) {
            const V next = read_as<V>(z + k * apart + b);
            largest = next > largest ? next : largest;
        }
        if (SINGLE) {
            for (int i = 1; i < L; i++) largest[0] = largest[i] > largest[0] ? largest[i] : largest[0];
            largest = all<V>(largest[0]);
        }
        for (Int k = 0; k < vectors; k++) {
            V e = exponential_of(read_as<V>(z + k * apart + b) - largest, (T)0);
            if (SINGLE) e = lanes + (T)(k * L) < all<V>((T)classes) ? e : V{};
            write(z + k * apart + b, e), total += e;
        }
        V factor = all<V>(SINGLE ? factor_of(0) : sign_and_scale);
        if constexpr (SINGLE) sums<1>(&total), total = all<V>(total[0]);
        else if (weight) factor *= read_as<V>(weight + at + b);
        const V share = factor / total;
        for (Int k = 0; k < vectors; k++) write(z + k * apart + b, read_as<V>(z + k * apart + b) * share);
    }
    for (Int b = 0; b < n; b++) {
        const T label = lists.column[TARGET][at + b];
        if (label >= 0 && label < classes) z[(Int)label * stride + b] -= factor_of(b);
        else z[b] = NAN; /* memory changed since labels were checked: the run ends as diverged */
        if (!lists.column[LIMIT]) continue;
        double square = 0.0;
        for (Int k = 0; k < classes; k++) square += (double)z[k * stride + b] * z[k * stride + b];
        const double shorter = fmin(1.0, lists.column[LIMIT][at + b] / fmax(sqrt(square), 1e-300));
        for (Int k = 0; k < classes; k++) z[k * stride + b] *= (T)(run.scale * shorter);
    }
}

template <class T> INLINE void fetch(Client<T> &c) {
    for (Int i = 0; i < c.portion; i += LINE / sizeof(T)) __builtin_prefetch(c.ahead + i, 0, 2);
    c.ahead += c.portion;
}

/* ------------------------------------------------- steps */
template <class T> using Steps = void (*)(const Run<T> &, const Lists<T> &, Client<T> *, Int count);

/* Steps on batches of any size, with a margin per record, or with MANY classes one for each. */
template <class T, int NV, bool MANY, bool LISTED> NOINLINE void steps(const Run<T> &shared, const Lists<T> &given, Client<T> *team, Int count) {
    const Run<T> run = shared; /* copies, which no store through a pointer can change */
    const Lists<T> lists = given;
    Client<T> c = *team;
    const Int d = run.job.features, common = common_loss(run, lists);
    T *const z = lists.z;
    for (Int h = 0; h < count; h++) {
        T *next = run.block < run.batch ? c.next : c.theta; /* further blocks need the model as it was */
        for (Int b = 0; b < run.batch; b += run.block) {
            const Int n = smaller(run.block, run.batch - b), at = h * run.step + b;
            if (MANY && run.batch == 1 && h + LEAD < count) /* teams need no such help */
                for (Int i = 0; i < d; i += LINE / sizeof(T)) __builtin_prefetch(lists.m[at + LEAD] + i);
            auto rows = [&](const T **list, const T *first) INLINED { return Rows<T, LISTED>{list + at, LISTED ? nullptr : first + b * d, d}; };
            const T *y = lists.column[TARGET] + at;
            margins<T, NV, MANY>(run, rows(lists.m, lists.all_m), n, c.theta, z, [&](Int i, Vector<T> margin) INLINED {
                return MANY ? margin : common_slopes(common, run.scale, margin, y + i);
            });
            if (MANY) (run.stride == 1 ? softmax<T, true> : softmax<T, false>)(shared, given, at, n, z);
            else if (common < 0) general_slopes(shared, given, at, n, z);
            descend<T, NV, MANY>(run, rows(lists.x, lists.all_x), n, b == 0, c.theta, next, c.push + h * c.push_stride, z);
        }
        if (next != c.theta) c.next = c.theta, c.theta = next;
        for (Int k = 0; k < run.job.classes; k += SIDES<MANY>) clear_repeated<SIDES<MANY>>(run, c.theta + k * run.tall);
        fetch(c);
    }
    *team = c;
}

/* The same on batches of B records for TEAM clients at once, whose operations run while another's wait: margins and slopes stay
   in registers, and so do short models. Only coordinates of a row's last vector may be unpenalised. */
template <class T, int NV, int B, int TEAM> NOINLINE void small_steps(const Run<T> &shared, const Lists<T> &given, Client<T> *team, Int count) {
    typedef Vector<T> V;
    constexpr int L = LANES<T>, N = TEAM * B, VS = (N + L - 1) / L;
    const Run<T> run = shared;
    const Lists<T> lists = given;
    const Int common = common_loss(run, lists);
    const V decay = all(run.decay[0]), last_decay = read(run.decay + run.split);
    Client<T> own[TEAM];
    V t[TEAM][NV ? NV : 1];
    UNROLL for (int s = 0; s < TEAM; s++) {
        own[s] = team[s];
        UNROLL for (int v = 0; v < NV; v++) t[s][v] = read(own[s].theta + v * L);
    }
    auto model = [&](int s, Int v) INLINED { return NV > 0 ? t[s][v] : read(own[s].theta + v * L); };
    for (Int h = 0; h < count; h++) {
        const T *row[N], *y = lists.column[TARGET] + h * run.step;
        V z[N];
        UNROLL for (int i = 0; i < N; i++) row[i] = lists.m[i / B * run.span + h * B + i % B], z[i] = V{};
        auto add = [&](int s, Int v, Int at) INLINED { UNROLL for (int i = s * B; i < (s + 1) * B; i++) z[i] = fused(read(row[i] + at), model(s, v), z[i]); };
        if constexpr (NV > 0) UNROLL for (int s = 0; s < TEAM; s++) for_vectors<NV>(run, [&](Int v, Int at, bool) INLINED { add(s, v, at); });
        else for_vectors<NV>(run, [&](Int v, Int at, bool) INLINED { UNROLL for (int s = 0; s < TEAM; s++) add(s, v, at); });
        sums<N>(z);
        UNROLL for (int s = 0; s < TEAM; s++) fetch(own[s]);
        if (common == RIDGE) UNROLL for (int i = 0; i < VS; i++) z[i] = common_slopes(RIDGE, run.scale, z[i], y + i * L);
        else if (common == LOGISTIC) UNROLL for (int i = 0; i < VS; i++) z[i] = common_slopes(LOGISTIC, run.scale, z[i], y + i * L);
        else {
            T kept[VS * L];
            UNROLL for (int i = 0; i < VS; i++) write(kept + i * L, z[i]);
            general_slopes(shared, given, h * run.step, N, kept);
            UNROLL for (int i = 0; i < VS; i++) z[i] = read(kept + i * L);
        }
        UNROLL for (int s = 0; s < TEAM; s++) {
            const T *push = own[s].push + h * own[s].push_stride;
            Vector<T, NV ? 1 : MOST_SIDES> each[B];
            UNROLL for (int g = 0; g < B; g++) row[g] = lists.x[s * run.span + h * B + g], each[g] = all<Vector<T, NV ? 1 : MOST_SIDES>>(z[(s * B + g) / L][(s * B + g) % L]);
            for_sides<NV, false>(run, [&](Int v, Int at, bool last, auto zero) INLINED {
                typedef decltype(zero) U;
                U now;
                if constexpr (NV > 0) now = t[s][v]; else now = read_as<U>(own[s].theta + v * L);
                now = fused(on_sides<U>(last ? last_decay : decay), now, read_as<U>(push + v * L));
                in_fixed_groups<0, B, RECORDS>([&](auto b, auto size) INLINED {
                    add_group<decltype(size)::n, 1, false>(row + decltype(b)::n, at, each + decltype(b)::n, &now);
                });
                if constexpr (NV > 0) t[s][v] = last ? (V)((Word4)now & run.mask) : now;
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

/* theta <- decay theta + push - scale sum_i (A_i theta - b_i); x lists the A_i, m the b_i. */
template <class T> NOINLINE void linear_steps(const Run<T> &run, const Lists<T> &lists, Client<T> *team, Int count) {
    Client<T> &c = *team;
    const Int d = run.job.features;
    for (Int h = 0; h < count; h++) {
        for (Int i = 0; i < d; i++) c.next[run.place(i)] = 0;
        for (Int b = 0; b < run.batch; b++) {
            const T *right = lists.m[h * run.step + b];
            margins<T, 0, false>(run, Rows<T, false>{nullptr, lists.x[h * run.step + b], d}, d, c.theta, lists.z, as_it_is);
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
/* Rows of some numbers of vectors have their own code, and small batches of them; teams pay for short steps, which wait most.
   Several classes of short rows have it in double precision alone, since it takes long to compile. */
#define SHORT_ROWS(f) f(0), f(1), f(2), f(3), f(4), f(5)
#define EACH(f) {SHORT_ROWS(f), f(8), f(16)}
#define OF_CLASSES(n) steps<T, sizeof(T) == 8 ? n : 0, true, true>
#define LISTED(n) steps<T, n, false, true>
#define IN_ORDER(n) steps<T, n, false, false>
#define TEAM_OF(n, b) (b == 1 ? 4 : n && n * b <= 30 ? 2 : 1)
#define SMALL(n, b) {small_steps<T, n, b, TEAM_OF(n, b)>, TEAM_OF(n, b)}
#define OF_SIZES(n) {SMALL(n, 1), SMALL(n, 8), SMALL(n, 10)}
template <class T> Plan<T> plan_for(const Run<T> &run) {
    const Job &job = run.job;
    if (job.loss == LINEAR_SYSTEM) return {linear_steps<T>, 1};
#if defined(__FMA__) || defined(__aarch64__)
    static constexpr Steps<T> listed[] = EACH(LISTED), in_order[] = EACH(IN_ORDER), of_classes[] = {SHORT_ROWS(OF_CLASSES)};
    static constexpr Int sizes[] = {1, 8, 10};
    static constexpr Plan<T> small[][3] = EACH(OF_SIZES);
    const Int nv = run.vectors <= 5 ? run.vectors : run.vectors == 8 ? 6 : run.vectors == 16 ? 7 : 0; /* which of EACH */
    const bool even = job.unpenalised <= job.features - run.split; /* all vectors but the last decay alike */
    if (job.loss == SOFTMAX) return {of_classes[nv <= 5 ? nv : 0], 1};
    if (job.sampling == FULL) return {in_order[nv], 1};
    if (job.batch == 1 && even && !job.ids && job.features > LONG_ROW) return {small_steps<T, 0, 1, 2>, 2};
    for (int i = 0; i < 3; i++) if (job.batch == sizes[i] && even && !job.ids) return small[nv][i];
    return {listed[nv], 1};
#else /* the time goes to fused products in software */
    if (job.loss == SOFTMAX) return {OF_CLASSES(0), 1};
    return {job.sampling == FULL ? IN_ORDER(0) : LISTED(0), 1};
#endif
}

/* ------------------------------------------------- drawing */
/* Words from position `first` on, a multiple of 4: whole groups of 32; as indices below n unless n is 0. */
void draw_words(const Stream &s, Int first, Int count, uint64_t n, uint32_t *out) {
    for (Int at = 0; at < count; at += 32) {
        const Blocks w = eight_blocks(s, (first + at) / 4);
        UNROLL for (int i = 0; i < 2; i++) {
            auto pair = [&](Word4 low, Word4 high) INLINED { /* two words, or the upper halves of their products with n */
                if (!n) return (low & 0xFFFFFFFFu) | high << 32;
                return low_product(low, all(n)) >> 32 | (low_product(high, all(n)) & ~0xFFFFFFFFull);
            };
            const Word4 ab = pair(w.word[0][i], w.word[1][i]), cd = pair(w.word[2][i], w.word[3][i]);
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
constexpr Int SECOND_LEVEL = 1 << 18;                      /* bytes of models that stay in a cache of 512 kilobytes beside records */
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
    Run<T> run{job, (d + L - 1) / L, 0, 0, larger(0, d - L), full ? largest : job.batch, 0, 0, 0, 0, {}, 0, nullptr, job.loss == SOFTMAX ? MOST_SIDES : 1};
    run.tall = run.vectors * L, run.split = run.tall - L;
    run.block = larger(8, FIRST_LEVEL / (Int)(d * sizeof(T)) / 8 * 8);
    run.scale = (T)(job.step_size / run.batch);
    T bits[32 / sizeof(T)] = {};
    for (Int i = 0; i < L; i++) if (d < L ? i < d : i >= run.split - run.tail) memset(bits + i, 0xFF, sizeof(T));
    run.mask = read_as<Word4>(bits);
    const Plan<T> plan = plan_for(run);
    run.stride = job.batch == 1 ? 1 : smaller(run.block, run.batch) + 2 * L;
    if (!full) run.step = plan.team * run.batch;
    const Key key(job.seed), noise_key(job.noise_seed), law_key(job.law_seed);
    const Int noisy = job.limits != nullptr, classes = rounded_up(job.classes, run.sides), model = classes * run.tall;
    const Int at_once = larger(1, smaller(longest, streamed ? NUMBERS_AT_ONCE / (run.batch * d) : full && !noisy ? longest : DRAWS_AT_ONCE / run.batch));
    const Int listed = larger(full ? largest : at_once * run.step, job.anchor ? largest : 0) + 3 * L;
    run.span = full ? 0 : rounded_up(at_once * run.batch, 4);
    const Int noise_count = noisy ? at_once * dim + 2 * NOISE_GROUP : 0, drawn = full ? 0 : at_once * run.batch;

    Memory memory;
    Client<T> team[LARGEST_TEAM] = {};
    Lists<T> lists = {};
    T *features, *margin;
    double *noise, *law;
    int32_t *order, *jumps, *rows;
    for (int pass = 0; pass < 2; pass++) {
        memory.take(run.decay, run.tall), memory.take(lists.x, plan.team * run.span + listed), lists.m = lists.x;
        if (job.m || job.loss == LINEAR_SYSTEM) memory.take(lists.m, plan.team * run.span + listed);
        for (int k = 0; k < COLUMNS; k++)
            if (k == TARGET || (k <= WEIGHT ? job.columns == 3 && job.loss != LINEAR_SYSTEM : k == LIMIT ? noisy : job.anchor != nullptr)) memory.take(lists.column[k], listed + (streamed ? 2 * GROUP : 0));
        memory.take(lists.z, larger(classes * run.stride, d) + 3 * L);
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
    for (Int i = 0; i < d; i++)
        run.decay[run.place(i)] = (T)(1.0 - job.step_size * ((i < d - job.unpenalised ? job.l2 : 0.0) + job.pull));

    /* `batches` batches of records of client s of a team, by index, into the lists. */
    const T *x = (const T *)job.x, *m = job.m ? (const T *)job.m : x, *y = (const T *)job.y;
    auto list = [&](const Client<T> &c, const int32_t *index, Int batches, Int batch, Int s) INLINED {
        auto rows = [&](const T **to, const T *from, Int width) INLINED { /* four at a time, also past the end */
            for (Int i = 0; i < batches * batch; i += 4)
                write(to + s * run.span + i, low_product(words_of(index + i), all((uint64_t)(width * sizeof(T)))) + (uint64_t)from);
        };
        auto column = [&](T *to, const T *from, Int width) INLINED {
            const Int length = plan.team == 1 ? batches * batch : batch;
            if (length == 1) for (Int h = 0; h < batches; h++) to[h * run.step + s] = from[index[h] * width];
            else for (Int h = 0; h * length < batches * batch; h++) in_groups<4>(0, length, [=](Int b, auto size) INLINED {
                UNROLL for (int i = 0; i < decltype(size)::n; i++) to[h * run.step + s * batch + b + i] = from[index[h * length + b + i] * width];
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
                const Int to = run.place(g, i), from = g * d + i;
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
            if (following != id && H && H * run.batch * width >= numbers) /* steps enough to use what is fetched */
                c.portion = (numbers - 1) / H + 1, c.ahead = x + job.offsets[following] * width;
            const Int models = job.count * R * dim * (Int)(sizeof(double) / sizeof(T));
            if (later >= items && end == job.count && H && s < 2 && models * (Int)sizeof(T) <= SECOND_LEVEL) /* of which sums come next */
                c.portion = (models - 1) / H + 1, c.ahead = (const T *)(s ? job.correction : job.out);
            if (full) run.batch = c.n, run.scale = (T)(job.step_size / c.n);
            if (job.anchor) {
                for (Int i = 0; i < d; i++) c.next[run.place(i)] = (T)job.anchor[r * dim + i];
                list(c, order, 1, c.n, 0);
                margins<T, 0, false>(run, Rows<T, false>{nullptr, m + c.base * d, d}, c.n, c.next, lists.column[AT_ANCHOR], as_it_is);
                for (Int i = 0; i < c.n; i += L) write(c.at_anchor + i, weighted_slopes(run, lists, i, read(lists.column[AT_ANCHOR] + i), (T)1, false));
            }
            if (full) list(c, order, 1, c.n, 0), lists.all_x = x + c.base * d, lists.all_m = m + c.base * d;
        }
        for (Int h = 0; h < H;) {
            const Int count = smaller(at_once, H - h), first = job.first_step + h, position = first * run.batch, n = count * run.batch;
            for (int s = 0; s < plan.team && noisy; s++) {
                Client<T> &c = team[s];
                const Int number = first * dim, skip = number % NOISE_GROUP;
                draw_noise(c.noise_words, number / NOISE_GROUP * 8, (skip + count * dim + NOISE_GROUP - 1) / NOISE_GROUP, noise);
                const double deviation = -job.step_size * job.noise / run.batch;
                for (Int step = 0; step < count; step++) for (Int g = 0; g < job.classes; g++) for (Int i = 0; i < d; i++) {
                    const Int to = run.place(g, i);
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
                margins<T, 0, false>(run, Rows<T, true>{lists.x, nullptr, 0}, n, c.next, target, as_it_is);
                for (Int i = 0; i < n; i += 4) {
                    const Double4 at = read4(target + i), drawn_numbers = read4(margin + aside + i);
                    const Double4 label = drawn_numbers * (1.0 + exponential(-at)) < all(1.0) ? all(1.0) : all(-1.0);
                    write4(target + i, job.loss == RIDGE ? at + job.target_noise * drawn_numbers : label);
                }
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
                list(c, rows + skip, count, run.batch, s);
            }
            plan.steps(run, lists, team, count);
            h += count;
        }
        for (int s = 0; s < together; s++) {
            const Int mine = item + s;
            double *out = job.out + (mine % R * job.count + begin + mine / R) * dim;
            for (Int g = 0; g < job.classes; g++) for (Int i = 0; i < d; i++) out[g * d + i] = team[s].theta[run.place(g, i)];
        }
        item += together;
    }
    return 0;
}

} // namespace

extern "C" int STEPS(const Job *job, int64_t begin, int64_t end) {
    return job->single_precision ? run_clients<float>(*job, begin, end) : run_clients<double>(*job, begin, end);
}
