/* Changes of low rank that differ from text to text of a batch, added to what a matrix gave that is the same for all: of text b
   y[b] += (x[b] Aᵀ · factor) Bᵀ. The matrices are read where they lie: to gather them takes nearly as long as to multiply by
   them. x is [M, K] and y [M, N] with the tokens of all texts. Of a rank that `linear` does not take for thin, the last bits depend
   on where a text is cut. */

#include "mixed.h"

#include <omp.h>

enum { WORTH = 40000 };
/* multiplications that are worth a second thread */

void change_rows(const changes *c, const float *x, float *y, long from, long rows, long N, long K) {
    for (long m = from, some; m < from + rows; m += some, x += some * K, y += some * N) {
        long text = m / c->T, member = c->which[text], rank;
        some = least((text + 1) * c->T, from + rows) - m;
        if (member < 0) continue;
        float *u = c->room + m * c->most;
        rank = c->ranks[member];
        linear(x, c->A[member], NULL, NULL, u, some, rank, K);
        for (long i = 0; i < some * rank; i++) u[i] *= c->factors[member];
        add_linear(u, c->B[member], y, some, N, rank);
    }
}

/* Texts are shared among the threads, or where there are few of them the tokens of each. */
EXPORT void add_changes(const changes *c, const float *x, float *y, long M, long N, long K) {
    long texts = M / c->T;
#pragma omp parallel for schedule(dynamic) if (texts >= omp_get_max_threads() && M * (N + K) * c->most > WORTH)
    for (long b = 0; b < texts; b++) change_rows(c, x + b * c->T * K, y + b * c->T * N, b * c->T, c->T, N, K);
}
