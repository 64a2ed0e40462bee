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

/* A call's clients, of which each thread takes a part again and again: half of its share of those that are left. So parts
   are few, threads finish together, and one that wakes up late leaves its share to the others. */
typedef struct {
    const Job *job;
    Steps steps;
    int64_t last, threads;
    _Atomic int64_t next;
    _Atomic int failed; /* whether a part had no memory */
    int64_t places, at_work; /* how many more helpers may join, and how many have; behind the pool's lock */
} Round;

static void take_parts(Round *round) {
    enum { TOGETHER = 4 }; /* clients whose steps may be taken side by side */
    int64_t begin = atomic_load(&round->next), end;
    while (begin < round->last) {
        const int64_t share = (round->last - begin) / (2 * round->threads) / TOGETHER * TOGETHER + TOGETHER;
        end = round->threads == 1 || share > round->last - begin ? round->last : begin + share;
        if (!atomic_compare_exchange_weak(&round->next, &begin, end)) continue; /* `begin` is what it is now */
        if (round->steps(round->job, begin, end)) atomic_store(&round->failed, 1);
        begin = atomic_load(&round->next);
    }
}

#if !defined(_WIN32)
/* Helpers sleep between calls: waking one takes microseconds, starting and joining one some tens of them. They serve one call at a
   time, whose thread takes parts like them and waits for those alone that have joined; other calls meanwhile have no helpers. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work = PTHREAD_COND_INITIALIZER, done = PTHREAD_COND_INITIALIZER;
static Round *posted;
static int64_t helpers;

static void *help(void *unused) {
    pthread_mutex_lock(&lock);
    for (;;) {
        while (!posted || !posted->places) pthread_cond_wait(&work, &lock);
        Round *round = posted;
        round->places--, round->at_work++;
        pthread_mutex_unlock(&lock);
        take_parts(round);
        pthread_mutex_lock(&lock);
        if (--round->at_work == 0) pthread_cond_signal(&done);
    }
    return unused;
}
static void forget_helpers(void) { /* in a process that was forked, which has none of the threads */
    static const pthread_mutex_t free_lock = PTHREAD_MUTEX_INITIALIZER;
    static const pthread_cond_t nobody = PTHREAD_COND_INITIALIZER;
    lock = free_lock, work = done = nobody, posted = NULL, helpers = 0;
}
static int post(Round *round) {
    static int prepared;
    pthread_mutex_lock(&lock);
    const int mine = !posted;
    if (mine) {
        if (!prepared++) pthread_atfork(NULL, NULL, forget_helpers);
        for (pthread_t helper; helpers < round->places && !pthread_create(&helper, NULL, help, NULL); helpers++) pthread_detach(helper);
        posted = round;
        pthread_cond_broadcast(&work);
    }
    pthread_mutex_unlock(&lock);
    return mine;
}
static void wait_for_helpers(Round *round) {
    pthread_mutex_lock(&lock);
    posted = NULL;
    while (round->at_work) pthread_cond_wait(&done, &lock);
    pthread_mutex_unlock(&lock);
}
#endif

/* Run clients first, ..., last - 1 on up to `threads` threads; return 0, or 1 if there was no memory. */
EXPORT int fs_round(const Job *job, int64_t first, int64_t last, int64_t threads, int most_level) {
    Round round = {job, steps_of(fs_level(most_level)), last, threads, first, 0, threads - 1, 0};
#if defined(_WIN32)
    round.threads = 1;
    take_parts(&round);
#else
    const int helped = threads > 1 && post(&round);
    if (!helped) round.threads = 1;
    take_parts(&round);
    if (helped) wait_for_helpers(&round);
#endif
    return round.failed;
}
