/* One round of local steps, as Python hands it to the kernel: eight-byte fields only, in the order of library.JOB. */
#pragma once
#include <stdint.h>

enum Loss { RIDGE, LOGISTIC, POISSON, GAMMA, SOFTMAX, LINEAR_SYSTEM };
enum Sampling { FULL, WITH_REPLACEMENT, WITHOUT_REPLACEMENT, BY_PROBABILITY, ALONG_CHAIN };

typedef struct {
    /* Records, client after client: x (and m, whose products with the model are the margins) with `features` numbers each,
       y with `columns`: a target, or a target, an offset and a weight. Of a linear system x is A and y is b. */
    int64_t loss, single_precision, features, classes, columns, batch, sampling, unpenalised;
    const void *x, *m, *y;
    const int64_t *offsets;
    double l2;
    /* Draws by probability (core.random.draws), with `guide` as a first guess of where a word's record is. */
    const uint64_t *ends, *chain_ends;
    const int32_t *guide, *follows;
    int64_t branching;
    /* Record-level privacy: the largest |slope| of each record or NULL, and the noise's deviation in a batch's sum. */
    const void *limits;
    double noise;
    uint64_t noise_seed;
    /* Clients that are distributions: identities or NULL for tables, and the law that they are drawn from. */
    const int64_t *ids;
    uint64_t law_seed;
    double scale_spread, heterogeneity, target_noise;
    const double *roots, *centre, *tilt;
    /* The round. Strides count numbers; 0 repeats one row for all repetitions or clients. */
    int64_t repetitions, count;
    const double *theta;
    int64_t theta_repetition, theta_client;
    const double *correction;
    int64_t correction_repetition, correction_client;
    const double *anchor; /* one model per repetition, or NULL */
    const int64_t *steps;
    int64_t steps_repetition, steps_client;
    const int64_t *clients;
    int64_t clients_repetition;
    double step_size, pull;
    int64_t first_step;
    uint64_t seed;
    int64_t round, first_client;
    double *out;
} Job;

#ifdef __cplusplus
extern "C" {
#endif
/* Clients begin, ..., end - 1 of the job; returns 0, or 1 if there is no memory. One copy per instruction set. */
int fs_steps_avx512(const Job *job, int64_t begin, int64_t end);
int fs_steps_avx2(const Job *job, int64_t begin, int64_t end);
int fs_steps_portable(const Job *job, int64_t begin, int64_t end);
#ifdef __cplusplus
}
#endif
