/* Changes of low rank that differ from row to row of a batch, added to what a frozen matrix gave: y[b] += (x[b] Aᵀ · s) Bᵀ. The
   matrices are read where they lie: to gather them takes nearly as long as to multiply by them.

   Shapes: R rows of T tokens, x [R, T, K], y [R, T, N]; a row's own A [r, K] and B [N, r]. */

#include <omp.h>

#include "vector.h"

enum { WORTH = 40000 };
/* multiplications that are worth a second thread */

typedef struct {
    const float *A, *B;
    long rank;
} change; /* of a row; of rank 0 there is none */

/* `most` is the largest rank. Rows are shared among the threads, or where there are few rows the tokens of each. Gives 1 where there is no memory, else 0. */
EXPORT int add_changes(const float *x, const change *changes, const float *s, float *y, long R, long T, long N, long K,
                       long most) {
    float *work = malloc(sizeof(float) * T * most * omp_get_max_threads());
    if (!work) return 1;
#pragma omp parallel if (R >= omp_get_max_threads() && R * T * (N + K) * most > WORTH)
    {
        float *u = work + omp_get_thread_num() * T * most;
#pragma omp for schedule(dynamic)
        for (long b = 0; b < R; b++) {
            const change *c = &changes[b];
            if (!c->rank) continue;
            linear(x + b * T * K, c->A, NULL, NULL, u, T, c->rank, K);
            for (long i = 0; i < T * c->rank; i++) u[i] *= s[b];
            add_linear(u, c->B, y + b * T * N, T, N, c->rank);
        }
    }
    free(work);
    return 0;
}
