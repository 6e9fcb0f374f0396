/* The likeliest tokens, found in one pass over the scores of a vocabulary.

   Shapes: R rows of V scores; in a beam R = B · g, g hypotheses of each of B texts. */

#include "vector.h"

/* log Σ eˢ of a row, and its largest score. */
static float log_sum(const float *row, long V, float *most) {
    vec high = all(-INFINITY);
    long v = 0;
    for (; v + LANES <= V; v += LANES) high = larger(load(row + v), high);
    float top = -INFINITY;
    for (int j = 0; j < LANES; j++) top = high[j] > top ? high[j] : top;
    for (long i = v; i < V; i++) top = row[i] > top ? row[i] : top;
    vec total = all(0.0f), shift = all(top);
    for (long i = 0; i < v; i += LANES) total += exponential(load(row + i) - shift);
    float rest = sum(total);
    for (long i = v; i < V; i++) rest += expf(row[i] - top);
    *most = top;
    return top + logf(rest);
}

/* Scores become log p, and −∞ for the token that is `never` taken. */
EXPORT void log_softmax(float *scores, long R, long V, long never) {
#pragma omp parallel for schedule(static) if (R > 1)
    for (long r = 0; r < R; r++) {
        float *row = scores + r * V, most, all_of = log_sum(row, V, &most);
        for (long v = 0; v < V; v++) row[v] -= all_of;
        if (never >= 0) row[never] = -INFINITY;
    }
}

/* The likeliest token of each row but `never`, and log p of it. */
EXPORT void likeliest(const float *scores, long R, long V, long never, long *tokens, float *log_p) {
#pragma omp parallel for schedule(static) if (R > 1)
    for (long r = 0; r < R; r++) {
        const float *row = scores + r * V;
        float top, all_of = log_sum(row, V, &top);
        long found = 0;
        if (never >= 0 && row[never] == top) {
            top = -INFINITY;
            for (long v = 0; v < V; v++)
                if (v != never && row[v] > top) top = row[v];
        }
        while (found < V - 1 && (row[found] != top || found == never)) found++;
        tokens[r] = found, log_p[r] = top - all_of;
    }
}

/* The `count` best of `totals` + log p over a text's hypotheses, the best first, and `which · V + token` of each. */
EXPORT void continuations(const float *scores, const float *totals, long B, long g, long V, long never, long count,
                          float *best, long *index) {
#pragma omp parallel for schedule(static) if (B > 1)
    for (long b = 0; b < B; b++) {
        float *top = best + b * count;
        long *which = index + b * count;
        for (long i = 0; i < count; i++) top[i] = -INFINITY, which[i] = 0;
        for (long h = 0; h < g; h++) {
            const float *row = scores + (b * g + h) * V;
            float most, before = totals[b * g + h];
            if (before == -INFINITY) continue;
            float change = before - log_sum(row, V, &most);
            for (long first = 0; first < V; first += LANES) {
                long end = least(V, first + LANES);
                if (end - first == LANES && !any_less(all(top[count - 1]), load(row + first) + all(change))) continue;
                for (long v = first; v < end; v++) {
                    float value = row[v] + change;
                    if (!(value > top[count - 1]) || v == never) continue;
                    long i = count - 1;
                    for (; i > 0 && value > top[i - 1]; i--) top[i] = top[i - 1], which[i] = which[i - 1];
                    top[i] = value, which[i] = h * V + v;
                }
            }
        }
    }
}
