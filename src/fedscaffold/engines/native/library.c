/* The library's interface: which instruction set this machine runs, and a round of local steps on several threads. */
#include "job.h"
#include <stdatomic.h>
#include <stddef.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#include <pthread.h>
#include <sched.h>
#endif

typedef int (*Steps)(const Job *, int64_t, int64_t);

EXPORT int64_t fs_job_bytes(void) { return sizeof(Job); } /* so that Python can check its own description */

/* 0 for any machine's instructions, 1 for AVX2 with FMA, 2 for AVX-512; `at_most` lets tests choose less. */
EXPORT int fs_level(int at_most) {
    static _Atomic int found = -1; /* asking takes as long as some hundred steps */
    int level = atomic_load(&found);
    if (level >= 0) return level < at_most ? level : at_most;
    level = 0;
#if defined(__x86_64__)
    unsigned a, b, c = 0, d, low = 0, high;
    const unsigned fma_xsave_avx = 1u << 12 | 1u << 27 | 1u << 28, avx2 = 1u << 5, avx512_f_dq_bw_vl = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;
    if (__get_cpuid(1, &a, &b, &c, &d) && (c & fma_xsave_avx) == fma_xsave_avx && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & avx2)) {
        __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0)); /* which registers the operating system keeps */
        if ((low & 0x6) == 0x6) level = (b & avx512_f_dq_bw_vl) == avx512_f_dq_bw_vl && (low & 0xe6) == 0xe6 ? 2 : 1;
    }
#endif
    atomic_store(&found, level);
    return level < at_most ? level : at_most;
}

static Steps steps_of(int level) {
#if defined(__x86_64__)
    if (level == 2) return fs_steps_avx512;
    if (level == 1) return fs_steps_avx2;
#endif
    (void)level;
    return fs_steps_portable;
}

/* Clients are divided into blocks, which threads take one after another. The helpers live as long as the process: they
   look for work for a moment after each round, since waking up takes as long as a short round, and then sleep. */
#define NO_BLOCK 0xFFFFFFFFu
static struct {
    const Job *job;
    Steps steps;
    int64_t first, last, blocks; /* clients, and the parts that they are divided into */
    _Atomic uint64_t next; /* the round's number in the upper half, the next block in the lower one */
    _Atomic int64_t done;
    _Atomic int failed, places; /* whether a block had no memory; helpers that may still join */
} work;

/* Take blocks of round `turn` until there are none; a late helper finds another round's number and takes none. */
static void take_blocks(uint64_t turn) {
    for (;;) {
        uint64_t seen = atomic_load(&work.next);
        if (seen >> 32 != turn || (int64_t)(seen & NO_BLOCK) >= work.blocks) return;
        if (!atomic_compare_exchange_weak(&work.next, &seen, seen + 1)) continue;
        const int64_t b = seen & NO_BLOCK, n = work.last - work.first;
        if (work.steps(work.job, work.first + n * b / work.blocks, work.first + n * (b + 1) / work.blocks)) atomic_store(&work.failed, 1);
        atomic_fetch_add(&work.done, 1);
    }
}

#if !defined(_WIN32)
enum { MOST_HELPERS = 255, LOOKS = 20000 }; /* looks of a few nanoseconds: about a tenth of a millisecond */
static pthread_mutex_t rounds = PTHREAD_MUTEX_INITIALIZER, sleep_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER;
static _Atomic int asleep;
static int helpers;

static void *help(void *last) {
    uint64_t turn = (uint64_t)(uintptr_t)last;
    for (;;) {
        int looks = 0;
        while (atomic_load(&work.next) >> 32 == turn && ++looks < LOOKS) {
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
        }
        if (looks == LOOKS) {
            pthread_mutex_lock(&sleep_lock);
            atomic_fetch_add(&asleep, 1);
            while (atomic_load(&work.next) >> 32 == turn) pthread_cond_wait(&wake, &sleep_lock);
            atomic_fetch_sub(&asleep, 1);
            pthread_mutex_unlock(&sleep_lock);
        }
        turn = atomic_load(&work.next) >> 32;
        if (atomic_fetch_sub(&work.places, 1) > 0) take_blocks(turn);
    }
    return NULL;
}

static void forget_helpers(void) { /* in the child of a fork, which has none */
    helpers = 0, asleep = 0;
    pthread_mutex_init(&rounds, NULL), pthread_mutex_init(&sleep_lock, NULL), pthread_cond_init(&wake, NULL);
}

static void start_helpers(int wanted, uint64_t turn) {
    static int registered;
    if (!registered) pthread_atfork(NULL, NULL, forget_helpers), registered = 1;
    for (; helpers < wanted && helpers < MOST_HELPERS; helpers++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, help, (void *)(uintptr_t)turn)) return;
        pthread_detach(thread);
    }
}
#endif

/* Run clients first, ..., last - 1 in `blocks` parts on up to `threads` threads; return 0, or 1 if there was no memory. */
EXPORT int fs_round(const Job *job, int64_t first, int64_t last, int64_t blocks, int threads, int most_level) {
    const int64_t n = last - first;
    const Steps steps = steps_of(fs_level(most_level));
#if !defined(_WIN32)
    if (threads > 1 && blocks > 1 && pthread_mutex_trylock(&rounds) == 0) { /* else another round has the helpers */
        const uint64_t turn = (atomic_load(&work.next) >> 32) + 1;
        start_helpers(threads - 1, turn - 1);
        work.job = job, work.steps = steps, work.first = first, work.last = last, work.blocks = blocks;
        atomic_store(&work.done, 0), atomic_store(&work.failed, 0), atomic_store(&work.places, threads - 1);
        atomic_store(&work.next, turn << 32);
        if (atomic_load(&asleep)) pthread_mutex_lock(&sleep_lock), pthread_cond_broadcast(&wake), pthread_mutex_unlock(&sleep_lock);
        take_blocks(turn);
        while (atomic_load(&work.done) < blocks) sched_yield();
        atomic_store(&work.next, turn << 32 | NO_BLOCK); /* so that a late helper cannot take one of the next round's */
        const int failed = atomic_load(&work.failed);
        pthread_mutex_unlock(&rounds);
        return failed;
    }
#endif
    (void)threads;
    for (int64_t b = 0; b < blocks; b++)
        if (steps(job, first + n * b / blocks, first + n * (b + 1) / blocks)) return 1;
    return 0;
}
