/* What the kernels of attention share: products of a single head, and what becomes of its scores. */

#ifndef PEFTLAB_HEADS_H
#define PEFTLAB_HEADS_H

#include <float.h>
#include <omp.h>

#define VECTORS 2
#include "vector.h"

static const float ZEROS[NR];

INLINE long padded(long n) { return (n + NR - 1) / NR * NR; }
INLINE long whole(long n) { return (n + LANES - 1) / LANES * LANES; }

/* Room for each thread, or NULL. */
INLINE float *room(long floats) {
    return aligned_alloc(64, (sizeof(float) * floats * omp_get_max_threads() + 63) / 64 * 64);
}

/* All panels of w's rows (`turned`), or of its columns: [padded(N) / NR] × K × NR. */
static inline void pack(const float *w, long ld, long N, long K, int turned, float *b) {
    for (long n = 0; n < N; n += NR) {
        int width = (int)least(NR, N - n);
        if (turned)
            pack_rows(w + n * ld, ld, width, K, b + n * K);
        else
            pack_columns(w + n, ld, width, K, b + n * K);
    }
}

/* c[M, N] (+)= a · the packed panels; `start` is ZEROS, or NULL to add to c. */
static inline void times(const float *a, long row, long step, const float *b, long M, long N, long K, float *c, long ldc,
                         const float *start) {
    for (long n = 0; n < N; n += NR)
        rows_of(M, a, row, step, b + n * K, K, c + n, ldc, start, (int)least(NR, N - n));
}

/* The most that each of `used` scores may be: the least number where a key may not be seen, or there is none. Gives
   whether one may be seen. */
INLINE int limits(const uint8_t *seen, long Tk, long used, float *most) {
    uint8_t any = !seen;
    for (long j = 0; j < Tk; j++) most[j] = !seen || seen[j] ? FLT_MAX : -FLT_MAX;
    for (long j = 0; seen && j < Tk; j++) any |= seen[j];
    for (long j = Tk; j < used; j++) most[j] = -FLT_MAX;
    return any;
}

/* Which of a vector's weights stay: all ones where a byte of `keep` is 1. Behind a query's keys they are those of the next query,
   and none behind the last. */
INLINE ivec staying(const uint8_t *keep, const uint8_t *end) {
    if (keep + LANES <= end) return -whole_numbers(keep);
    uint8_t rest[LANES] = {0};
    for (int j = 0; keep + j < end; j++) rest[j] = keep[j];
    return -whole_numbers(rest);
}

/* Scores [count, ld] of some queries become weights, zeros where nothing may be seen; `left` is what dropout leaves of them,
   grown, and may be their own place. `most` has room for ld. */
static inline void weigh(float *scores, float *left, long count, long ld, const shape *s, long pair, long query,
                         float *most) {
    long b = pair / s->H, used = whole(s->Tk);
    int any = 0;
    for (long i = 0; i < count; i++) {
        float *row = scores + i * ld;
        if (i == 0 || s->seen_query)
            any = limits(s->seen ? s->seen + b * s->seen_row + (query + i) * s->seen_query : NULL, s->Tk, used, most);
        vec high = all(-FLT_MAX);
        for (long j = 0; j < used; j += LANES) {
            vec score = smaller(load(most + j), load(row + j));
            high = larger(high, score);
            store(row + j, score);
        }
        vec total = all(0.0f), scale = all(s->scale), top = largest(high);
        for (long j = 0; j < used; j += LANES) {
            vec e = exponential((load(row + j) - top) * scale);
            total += e;
            store(row + j, e);
        }
        vec share = all(any ? 1.0f / sum(total) : 0.0f);
        for (long j = 0; j < used; j += LANES) store(row + j, load(row + j) * share);
        if (!s->keep) continue;
        const uint8_t *keep = s->keep + (pair * s->Tq + query + i) * s->Tk;
        const uint8_t *end = s->keep + s->B * s->H * s->Tq * s->Tk;
        for (long j = 0; j < used; j += LANES)
            store(left + i * ld + j, (vec)((ivec)(load(row + j) * all(s->growth)) & staying(keep + j, end)));
    }
}

#endif
