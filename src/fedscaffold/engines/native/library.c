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

/* Clients are divided into blocks, which threads take one after another; helpers live as long as the call. */
typedef struct {
    const Job *job;
    Steps steps;
    int64_t first, last, blocks; /* clients, and the parts that they are divided into */
    _Atomic int64_t next;
    _Atomic int failed; /* whether a block had no memory */
} Round;

static void *take_blocks(void *given) {
    Round *round = given;
    const int64_t n = round->last - round->first;
    for (int64_t b; (b = atomic_fetch_add(&round->next, 1)) < round->blocks;)
        if (round->steps(round->job, round->first + n * b / round->blocks, round->first + n * (b + 1) / round->blocks))
            atomic_store(&round->failed, 1);
    return NULL;
}

/* Run clients first, ..., last - 1 in `blocks` parts on up to `threads` threads; return 0, or 1 if there was no memory. */
EXPORT int fs_round(const Job *job, int64_t first, int64_t last, int64_t blocks, int threads, int most_level) {
    Round round = {job, steps_of(fs_level(most_level)), first, last, blocks, 0, 0};
#if defined(_WIN32)
    (void)threads;
    take_blocks(&round);
#else
    enum { MOST_HELPERS = 255 };
    pthread_t helpers[MOST_HELPERS];
    int started = 0;
    while (started < threads - 1 && started < blocks - 1 && started < MOST_HELPERS && !pthread_create(&helpers[started], NULL, take_blocks, &round)) started++;
    take_blocks(&round);
    for (int i = 0; i < started; i++) pthread_join(helpers[i], NULL);
#endif
    return round.failed;
}
