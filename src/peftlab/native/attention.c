/* Attention, softmax(q kᵀ · scale) v, and its gradients; with `keep` some of its weights are dropped.

   A head's scores of a few queries are made, weighed and used while they are in the cache: none is kept, the backward
   pass makes them again (Dao et al. 2022, arXiv 2205.14135). Heads are shared among the threads.

   Shapes: B rows, H heads, Tq queries and Tk keys of width d. Each tensor has the strides (row, head, token) of its
   [B, H, T, d]; `seen` [B, Tq or 1, Tk] those of its two first, (row, query), and is 1 where a key may be seen;
   `keep` [B, H, Tq, Tk] follows itself. A query that may see nothing is given zeros. */

#include "heads.h"

enum { QUERIES = 48, FEW = 8 };
/* at once: their scores stay in the second-level cache; and up to how many nothing is packed for them */

/* Whether there is enough for a second thread. */
static int worth(const shape *s) { return s->B * s->H * s->Tq * s->Tk * s->d > 40000; }

/* Some vectors' width of Σ weights · values, by `share`: each is a sum of its own, so that none waits for another. */
INLINE void mix(int vectors, const float *v, long value, const float *weights, const int *seen, long count, vec share,
                float *to) {
    vec mixed[4];
    for (int n = 0; n < vectors; n++) mixed[n] = all(0.0f);
    for (long i = 0; i < count; i++) {
        const float *row = v + seen[i] * value;
        vec weight = all(weights[i]);
#pragma GCC unroll 4
        for (int n = 0; n < vectors; n++) mixed[n] += weight * load(row + n * LANES);
    }
    for (int n = 0; n < vectors; n++) store(to + n * LANES, mixed[n] * share);
}

/* A query and the keys that it sees, all read where they lie: nothing is packed for the few queries of a step of writing,
   and a hypothesis of a beam sees few of its text's keys. d is a multiple of LANES; `scores` and `seen` have room for Tk and
   a vector. */
static void ask(const float *q, const float *k, long key, const float *v, long value, float *to, const uint8_t *may,
                const shape *s, float *scores, int *seen) {
    long count = 0, d = s->d;
    for (long j = 0; j < s->Tk; j++)
        if (!may || may[j]) seen[count++] = (int)j;
    for (long i = 0; i < count; i += 4) {
        const float *key_of[4];
        vec c[4];
        for (int n = 0; n < 4; n++) key_of[n] = k + seen[least(i + n, count - 1)] * key, c[n] = all(0.0f);
        for (long x = 0; x < d; x += LANES) {
            vec one = load(q + x);
            for (int n = 0; n < 4; n++) c[n] += one * load(key_of[n] + x);
        }
        *(quad *)(scores + i) = sums(c[0], c[1], c[2], c[3]);
    }
    float most = -FLT_MAX;
    for (long i = 0; i < count; i++) most = scores[i] > most ? scores[i] : most;
    for (long i = count; i % LANES; i++) scores[i] = -INFINITY;
    vec total = all(0.0f);
    for (long i = 0; i < count; i += LANES) {
        vec e = exponential((load(scores + i) - all(most)) * all(s->scale));
        total += e;
        store(scores + i, e);
    }
    vec share = all(count ? 1.0f / sum(total) : 0.0f);
    long x = 0;
    for (; x + 4 * LANES <= d; x += 4 * LANES) mix(4, v + x, value, scores, seen, count, share, to + x);
    for (; x < d; x += LANES) mix(1, v + x, value, scores, seen, count, share, to + x);
}

static int attend_few(heads q, heads k, heads v, into mixed, const shape *s) {
    long each = 2 * (s->Tk + NR);
    float *work = room(each);
    if (!work) return 1;
#pragma omp parallel if (worth(s))
    {
        float *scores = work + omp_get_thread_num() * each;
        int *seen = (int *)(scores + s->Tk + NR);
#pragma omp for schedule(dynamic, 8)
        for (long pair = 0; pair < s->B * s->H; pair++) {
            long b = pair / s->H, h = pair % s->H;
            for (long i = 0; i < s->Tq; i++) {
                const uint8_t *may = s->seen ? s->seen + b * s->seen_row + i * s->seen_query : NULL;
                ask(q.at + b * q.row + h * q.head + i * q.token, k.at + b * k.row + h * k.head, k.token,
                    v.at + b * v.row + h * v.head, v.token, mixed.at + b * mixed.row + h * mixed.head + i * mixed.token,
                    may, s, scores, seen);
            }
        }
    }
    free(work);
    return 0;
}


/* Gives 1 where there is no memory for it, else 0. */
EXPORT int attend(heads q, heads k, heads v, into mixed, const shape *s) {
    if (s->Tq <= FEW && s->d % LANES == 0 && !s->keep) return attend_few(q, k, v, mixed, s);
    long wide = padded(s->Tk), deep = padded(s->d), each = wide * s->d + deep * s->Tk + (QUERIES + 1) * wide;
    float *work = room(each);
    if (!work) return 1;
#pragma omp parallel if (worth(s))
    {
        float *keys = work + omp_get_thread_num() * each, *values = keys + wide * s->d, *scores = values + deep * s->Tk;
        float *most = scores + QUERIES * wide;
#pragma omp for schedule(dynamic, 4)
        for (long pair = 0; pair < s->B * s->H; pair++) {
            long b = pair / s->H, h = pair % s->H;
            pack(k.at + b * k.row + h * k.head, k.token, s->Tk, s->d, 1, keys);
            pack(v.at + b * v.row + h * v.head, v.token, s->d, s->Tk, 0, values);
            for (long query = 0; query < s->Tq; query += QUERIES) {
                long count = least(QUERIES, s->Tq - query);
                const float *from = q.at + b * q.row + h * q.head + query * q.token;
                times(from, q.token, 1, keys, count, wide, s->d, scores, wide, ZEROS);
                weigh(scores, scores, count, wide, s, pair, query, most);
                float *to = mixed.at + b * mixed.row + h * mixed.head + query * mixed.token;
                times(scores, wide, 1, values, count, s->d, s->Tk, to, mixed.token, ZEROS);
            }
        }
    }
    free(work);
    return 0;
}

/* Through dropout and the softmax at once: with w the weights, l what is left of them and t = g vᵀ,
   the scores' gradient is (l·t − w·Σ l·t) · scale. */
EXPORT int attend_back(heads q, heads k, heads v, heads g, into dq, into dk, into dv, const shape *s) {
    long wide = padded(s->Tk), used = whole(s->Tk), deep = padded(s->d);
    long each = 2 * wide * s->d + deep * s->Tk + 2 * deep * QUERIES + (3 * QUERIES + 1) * wide;
    float *work = room(each);
    if (!work) return 1;
#pragma omp parallel if (worth(s))
    {
        float *keys = work + omp_get_thread_num() * each, *turned = keys + wide * s->d;
        float *values = turned + deep * s->Tk, *queries = values + wide * s->d, *given = queries + deep * QUERIES;
        float *weights = given + deep * QUERIES, *left = weights + QUERIES * wide, *t = left + QUERIES * wide;
        float *most = t + QUERIES * wide;
#pragma omp for schedule(dynamic, 4)
        for (long pair = 0; pair < s->B * s->H; pair++) {
            long b = pair / s->H, h = pair % s->H;
            const float *key = k.at + b * k.row + h * k.head, *value = v.at + b * v.row + h * v.head;
            pack(key, k.token, s->Tk, s->d, 1, keys);
            pack(key, k.token, s->d, s->Tk, 0, turned);
            pack(value, v.token, s->Tk, s->d, 1, values);
            for (long query = 0; query < s->Tq; query += QUERIES) {
                long count = least(QUERIES, s->Tq - query);
                const float *from = q.at + b * q.row + h * q.head + query * q.token;
                const float *gradient = g.at + b * g.row + h * g.head + query * g.token;
                times(from, q.token, 1, keys, count, wide, s->d, weights, wide, ZEROS);
                weigh(weights, left, count, wide, s, pair, query, most);
                const float *kept = s->keep ? left : weights;
                times(gradient, g.token, 1, values, count, wide, s->d, t, wide, ZEROS);

                const float *start = query ? NULL : ZEROS;
                pack(gradient, g.token, s->d, count, 0, given);
                times(kept, 1, wide, given, s->Tk, s->d, count, dv.at + b * dv.row + h * dv.head, dv.token, start);

                for (long i = 0; i < count; i++) {
                    float *ti = t + i * wide;
                    const float *wi = weights + i * wide, *li = kept + i * wide;
                    vec total = all(0.0f), scale = all(s->scale);
                    for (long j = 0; j < used; j += LANES) total += load(li + j) * load(ti + j);
                    vec mean = all(sum(total));
                    for (long j = 0; j < used; j += LANES)
                        store(ti + j, (load(li + j) * load(ti + j) - load(wi + j) * mean) * scale);
                }
                float *to = dq.at + b * dq.row + h * dq.head + query * dq.token;
                times(t, wide, 1, turned, count, s->d, s->Tk, to, dq.token, ZEROS);
                pack(from, q.token, s->d, count, 0, queries);
                times(t, 1, wide, queries, s->Tk, s->d, count, dk.at + b * dk.row + h * dk.head, dk.token, start);
            }
        }
    }
    free(work);
    return 0;
}
