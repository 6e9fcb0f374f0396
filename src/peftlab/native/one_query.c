/* Attention of one query a row to the tokens themselves, without keys and values, and its gradients; layers/one_query.py
   says how that can be.

   Shapes: B rows, H heads of width d, T tokens x [B, T, D] of width D = H · d; q and mixed [B, H, d]; the matrices of the keys
   and the values k and v [D, D], of which a head has d rows. In `shape` each
   head counts as a query of a single head: its H is 1, its Tq is H. */

#include "heads.h"

/* What waits for the gradients: what is asked of tokens [B, H, D], the sums of tokens [B, H, D], the weights and what dropout
   left of them [B, H, wide]. */
typedef struct {
    float *asked, *sums, *weights, *left;
} waiting;

static waiting within(float *kept, const shape *s) {
    long size = s->B * s->Tq * s->Tq * s->d, scores = s->B * s->Tq * padded(s->Tk);
    float *weights = kept + 2 * size;
    return (waiting){kept, kept + size, weights, s->keep ? weights + scores : weights};
}

/* A head's scores are padded to a multiple of this. */
EXPORT long panel(void) { return NR; }

/* What a thread needs. */
static long needed(const shape *s) {
    long H = s->Tq, D = H * s->d, wide = padded(s->Tk);
    return padded(D) * (s->d + s->B + s->Tk + H) + padded(s->d) * D + wide * (D + H + 1);
}

/* Σ over a query's weights, of T and zeros behind them */
INLINE float total(const float *weights, long T) {
    vec all_of = all(0.0f);
    for (long j = 0; j < whole(T); j += LANES) all_of += load(weights + j);
    return sum(all_of);
}

/* For one head h, all rows: to[B, h, D] = from[B, h, d] · w_h [d, D] */
static void to_tokens(const float *from, const float *w, float *to, long h, const shape *s, float *panels) {
    long d = s->d, D = s->Tq * d;
    pack(w + h * d * D, D, D, d, 0, panels);
    times(from + h * d, D, 1, panels, s->B, D, d, to + h * D, s->Tq * D, ZEROS);
}

/* to[B, h, d] = from[B, h, D] · w_hᵀ */
static void from_tokens(const float *from, const float *w, float *to, long h, const shape *s, float *panels) {
    long d = s->d, D = s->Tq * d;
    pack(w + h * d * D, D, d, D, 1, panels);
    times(from + h * D, s->Tq * D, 1, panels, s->B, d, D, to + h * d, D, ZEROS);
}

/* dw_h[d, D] = Σ over rows of narrow[b, h, d]ᵀ · wide[b, h, D] */
static void of_matrix(const float *narrow, const float *wide, float *dw, long h, const shape *s, float *panels) {
    long d = s->d, D = s->Tq * d;
    pack(wide + h * D, s->Tq * D, D, s->B, 0, panels);
    times(narrow + h * d, 1, D, panels, d, D, s->B, dw + h * d * D, D, ZEROS);
}

/* `bias` [D] is the values', or NULL; `kept` has room for 2 · B · H · (D + wide). Gives 1 where there is no memory for it. */
EXPORT int ask_tokens(const float *q, const float *x, const float *k, const float *v, const float *bias, const shape *s,
                      float *kept, float *mixed) {
    long H = s->Tq, T = s->Tk, d = s->d, D = H * d, wide = padded(T), each = needed(s);
    waiting w = within(kept, s);
    float *work = room(each);
    if (!work) return 1;
#pragma omp parallel
    {
        float *panels = work + omp_get_thread_num() * each, *most = panels + padded(D) * T + wide * D;
#pragma omp for schedule(dynamic)
        for (long h = 0; h < H; h++) to_tokens(q, k, w.asked, h, s, panels);
#pragma omp for schedule(dynamic)
        for (long b = 0; b < s->B; b++) {
            float *weights = w.weights + b * H * wide, *left = w.left + b * H * wide;
            pack(x + b * T * D, D, T, D, 1, panels);
            times(w.asked + b * H * D, D, 1, panels, H, wide, D, weights, wide, ZEROS);
            weigh(weights, left, H, wide, s, b, 0, most);
            pack(x + b * T * D, D, D, T, 0, panels);
            times(left, wide, 1, panels, H, D, T, w.sums + b * H * D, D, ZEROS);
        }
#pragma omp for schedule(dynamic)
        for (long h = 0; h < H; h++) {
            from_tokens(w.sums, v, mixed, h, s, panels);
            for (long b = 0; bias && b < s->B; b++) {
                float share = total(w.left + (b * H + h) * wide, T);
                for (long i = h * d; i < (h + 1) * d; i++) mixed[b * D + i] += share * bias[i];
            }
        }
    }
    free(work);
    return 0;
}

/* From the gradient g of `mixed`; those of x, k, v and the bias are made where they are not NULL. `between` has room for
   2 · B · H · D. */
EXPORT int ask_tokens_back(const float *g, const float *q, const float *x, const float *k, const float *v,
                           const float *bias, const shape *s, float *kept, float *dq, float *dx, float *dk, float *dv,
                           float *dbias, float *between) {
    long H = s->Tq, T = s->Tk, d = s->d, D = H * d, wide = padded(T), used = whole(T), each = needed(s);
    waiting w = within(kept, s);
    float *dsums = between, *dasked = between + s->B * H * D, *work = room(each);
    if (!work) return 1;
#pragma omp parallel
    {
        float *panels = work + omp_get_thread_num() * each, *t = panels + padded(D) * (T + H) + wide * D;
#pragma omp for schedule(dynamic)
        for (long h = 0; h < H; h++) {
            to_tokens(g, v, dsums, h, s, panels);
            if (dv) of_matrix(g, w.sums, dv, h, s, panels);
            if (!dbias) continue;
            for (long i = h * d; i < (h + 1) * d; i++) dbias[i] = 0.0f;
            for (long b = 0; b < s->B; b++) {
                float share = total(w.left + (b * H + h) * wide, T);
                for (long i = h * d; i < (h + 1) * d; i++) dbias[i] += share * g[b * D + i];
            }
        }
#pragma omp for schedule(dynamic)
        for (long b = 0; b < s->B; b++) {
            const float *weights = w.weights + b * H * wide, *left = w.left + b * H * wide, *xb = x + b * T * D;
            pack(xb, D, T, D, 1, panels);
            times(dsums + b * H * D, D, 1, panels, H, wide, D, t, wide, ZEROS);
            for (long h = 0; h < H; h++) {
                float *th = t + h * wide, of_bias = 0.0f;
                const float *wh = weights + h * wide, *lh = left + h * wide;
                for (long i = h * d; bias && i < (h + 1) * d; i++) of_bias += g[b * D + i] * bias[i];
                vec products = all(0.0f), scale = all(s->scale), more = all(of_bias);
                for (long j = 0; j < used; j += LANES) products += load(lh + j) * (load(th + j) + more);
                vec mean = all(sum(products));
                for (long j = 0; j < used; j += LANES)
                    store(th + j, (load(lh + j) * (load(th + j) + more) - load(wh + j) * mean) * scale);
            }
            pack(xb, D, D, T, 0, panels);
            times(t, wide, 1, panels, H, D, T, dasked + b * H * D, D, ZEROS);
            if (!dx) continue;
            pack(dsums + b * H * D, D, D, H, 0, panels);
            times(left, 1, wide, panels, T, D, H, dx + b * T * D, D, ZEROS);
            pack(w.asked + b * H * D, D, D, H, 0, panels);
            times(t, 1, wide, panels, T, D, H, dx + b * T * D, D, NULL);
        }
#pragma omp for schedule(dynamic)
        for (long h = 0; h < H; h++) {
            from_tokens(dasked, k, dq, h, s, panels);
            if (dk) of_matrix(q, dasked, dk, h, s, panels);
        }
    }
    free(work);
    return 0;
}
