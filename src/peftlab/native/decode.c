/* A block of a decoder for one token more of each text: the same as models/decoder.py's DecoderBlock, sublayer by
   sublayer, in one call. A step of writing computes little, and asking for it piece by piece takes as long as the work.

   Shapes: R = B · g tokens, g hypotheses of each of B texts; D width; t keys so far, those of these tokens included; S
   tokens of the source. */

#include "vector.h"

enum { WORTH = 16384 };

typedef struct {
    const float *weight;
    const panels *packed;
    const float *bias;
    long outputs, inputs;
} map;

typedef struct {
    map q, k, v, o;
    long heads;
    float scale;
} attention;

typedef struct {
    attention own, cross;
    map up, down;
    norm after_own, after_cross, after_inner;
    int crossed, first, activation;
} block;
/* `crossed`: it attends to a source; `first`: norms stand before the sublayers */

enum { RELU, GELU, SILU, GELU_NEW };

typedef struct {
    long B, g, t, S;
    float *keys, *values;
    long row;
    const uint8_t *seen;
    long seen_row, seen_query;
    const float *source_keys, *source_values;
    long source_row;
    const uint8_t *source_seen;
    long source_seen_row;
} place;
/* `keys` and `values` [B, room, D] with `row` numbers a text; `seen` [B, g, t], `source_seen` [B, S], or NULL for all */

static void apply(const map *m, const float *x, float *y, long R) {
    linear(x, m->weight, m->packed, m->bias, y, R, m->outputs, m->inputs);
}

INLINE vec activated(int which, vec x) {
    vec u = x;
    if (which == RELU) return larger(x, all(0.0f));
    if (which == GELU_NEW) u = all(1.5957691f) * (x + all(0.044715f) * x * x * x); /* 2 · √(2/π) */
    return x / (all(1.0f) + exponential(where_less(u, all(-88.0f), all(88.0f), -u)));
}

/* In place. */
static void activate(int which, float *x, long n) {
    if (which == GELU) {
        gelu(x, x, n);
        return;
    }
    long whole = n / LANES * LANES;
#pragma omp parallel for schedule(static) if (n > WORTH)
    for (long i = 0; i < whole; i += LANES) store(x + i, activated(which, load(x + i)));
    for (long i = whole; i < n; i++) x[i] = activated(which, all(x[i]))[0];
}

/* The feed-forward network's first map with its activation; of packed weights GELU is taken while a block of the product is
   in the cache. */
static void widen(const map *m, int activation, const float *x, float *y, long R) {
    if (activation == GELU && m->packed) {
        linear_gelu(x, m->weight, m->packed, m->bias, y, NULL, R, m->outputs, m->inputs);
    } else {
        apply(m, x, y, R);
        activate(activation, y, R * m->outputs);
    }
}

/* What a sublayer is given: x, or x normed into `room`. */
static const float *received(const block *b, const norm *n, const float *x, float *room, long R, long D) {
    if (!b->first) return x;
    normalise(x, n->scale, n->shift, n->eps, room, R, D);
    return room;
}

/* x becomes x + y, normed where norms stand behind. */
static void leave(const block *b, const norm *n, float *x, const float *y, long R, long D) {
    if (b->first)
        for (long i = 0; i < R * D; i++) x[i] += y[i];
    else
        join(x, y, NULL, 1.0f, n->scale, n->shift, n->eps, x, NULL, x, R, D);
}

/* To Tk keys in rows of D numbers, by the queries of `from` [R, D]; `work` has room for 2 · R · D. */
static int look(const attention *a, const float *from, const float *keys, const float *values, long row, shape s,
                 float *y, float *work, long D) {
    long R = s.B * s.Tq, d = D / a->heads;
    float *q = work, *mixed = work + R * D;
    apply(&a->q, from, q, R);
    s.H = a->heads, s.d = d, s.scale = a->scale, s.growth = 1.0f, s.keep = NULL;
    long all_of = s.Tq * D;
    heads queries = {q, all_of, d, D}, of_keys = {keys, row, d, D}, of_values = {values, row, d, D};
    if (attend(queries, of_keys, of_values, (into){mixed, all_of, d, D}, &s)) return 1;
    apply(&a->o, mixed, y, R);
    return 0;
}

/* x [R, D] is what enters the block, and then what leaves it. `work` has room for R · (4 · D + inner). Gives 1 where
   memory does not suffice, else 0. */
EXPORT int decode(const block *b, const place *p, float *x, float *work) {
    long D = b->own.q.inputs, R = p->B * p->g, size = R * D;
    float *given = work, *y = work + size, *rest = work + 2 * size;

    const float *from = received(b, &b->after_own, x, given, R, D);
    apply(&b->own.k, from, y, R);
    apply(&b->own.v, from, rest, R);
#pragma omp parallel for schedule(static) if (size > WORTH)
    for (long n = 0; n < p->B; n++) {
        long to = n * p->row + (p->t - p->g) * D, part = n * p->g * D;
        memcpy(p->keys + to, y + part, sizeof(float) * p->g * D);
        memcpy(p->values + to, rest + part, sizeof(float) * p->g * D);
    }
    shape own = {.B = p->B, .Tq = p->g, .Tk = p->t, .seen = p->seen, .seen_row = p->seen_row, .seen_query = p->seen_query};
    if (look(&b->own, from, p->keys, p->values, p->row, own, y, rest, D)) return 1;
    leave(b, &b->after_own, x, y, R, D);

    if (b->crossed) {
        from = received(b, &b->after_cross, x, given, R, D);
        shape cross = {.B = p->B, .Tq = p->g, .Tk = p->S, .seen = p->source_seen, .seen_row = p->source_seen_row};
        if (look(&b->cross, from, p->source_keys, p->source_values, p->source_row, cross, y, rest, D)) return 1;
        leave(b, &b->after_cross, x, y, R, D);
    }

    from = received(b, &b->after_inner, x, given, R, D);
    widen(&b->up, b->activation, from, rest, R);
    apply(&b->down, rest, y, R);
    leave(b, &b->after_inner, x, y, R, D);
    return 0;
}
