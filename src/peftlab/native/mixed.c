/* Changes of low rank that differ from row to row of a batch, added to what a frozen matrix gave: y[b] += (x[b] A[b]ᵀ · s[b]) B[b]ᵀ.

   Shapes: R rows of T tokens, x [R, T, K], A [R, r, K], B [R, N, r], s [R], y [R, T, N]. */

#include <omp.h>

#include "vector.h"

enum { WORTH = 40000 };
/* multiplications that are worth a second thread */

/* Rows are shared among the threads, or where there are few rows the tokens of each. Gives 1 where there is no memory, else 0. */
EXPORT int add_changes(const float *x, const float *A, const float *B, const float *s, float *y, long R, long T, long N, long K,
                       long r) {
    float *work = malloc(sizeof(float) * T * r * omp_get_max_threads());
    if (!work) return 1;
#pragma omp parallel if (R >= omp_get_max_threads() && R * T * (N + K) * r > WORTH)
    {
        float *u = work + omp_get_thread_num() * T * r;
#pragma omp for schedule(dynamic)
        for (long b = 0; b < R; b++) {
            linear(x + b * T * K, A + b * r * K, NULL, NULL, u, T, r, K);
            for (long i = 0; i < T * r; i++) u[i] *= s[b];
            add_linear(u, B + b * N * r, y + b * T * N, T, N, r);
        }
    }
    free(work);
    return 0;
}
