/* The two sublayers of a block whose own weights are frozen, forward and back, each in one call: norm(x + dropout(f(x))).
   Beside frozen weights little learns, and to ask for the kernels one by one takes Python an eighth of a step, in which
   all threads but one wait.

   Shapes: M = B · T tokens of width D; a map from K to N; r the rank of its change. */

#include "vector.h"

/* y = x wᵀ + b, and with a rank + u Bᵀ, where u = factor · x Aᵀ [M, r]. `panels` are w's, for y or for x's gradient, whichever
   is asked for. Gradients that are NULL are not wanted. */
typedef struct {
    const float *w, *panels, *bias, *A, *B;
    long N, K, rank;
    float factor;
    float *dA, *dB, *db;
} map;

/* Values of which `cut` of 65,536 are dropped; drawn anew unless `seeds` is NULL. None are where `keep` is NULL. */
typedef struct {
    uint8_t *keep;
    const uint64_t *seeds;
    long cut;
} dropping;

static float growth(const dropping *d) {
    return d->keep ? (float)(65536.0 / (double)(d->cut < 65536 ? 65536 - d->cut : 1)) : 1.0f;
}

static void draw_both(const dropping *one, long of_one, const dropping *two, long of_two) {
#pragma omp parallel sections
    {
#pragma omp section
        if (one->keep) draw_kept(one->seeds, one->cut, one->keep, of_one);
#pragma omp section
        if (two->keep) draw_kept(two->seeds, two->cut, two->keep, of_two);
    }
}

/* to[N] = the sums over the rows of g[M, N] */
static void column_sums(const float *g, float *to, long M, long N) {
#pragma omp parallel for schedule(static)
    for (long n = 0; n < N; n += 8 * LANES) {
        long end = least(N, n + 8 * LANES);
        for (long i = n; i < end; i++) to[i] = 0.0f;
        for (long m = 0; m < M; m++)
            for (long i = n; i < end; i++) to[i] += g[m * N + i];
    }
}

/* to[N, M] = from[M, N]ᵀ · factor */
static void turned(const float *from, long M, long N, float factor, float *to) {
    for (long m = 0; m < M; m++)
        for (long n = 0; n < N; n++) to[n * M + m] = from[m * N + n] * factor;
}

static void ahead(const map *m, const float *x, float *u, float *y, long M) {
    linear(x, m->w, m->panels, m->bias, y, M, m->N, m->K);
    if (!m->rank) return;
    linear(x, m->A, NULL, NULL, u, M, m->rank, m->K);
    for (long i = 0; i < M * m->rank; i++) u[i] *= m->factor;
    add_linear(u, m->B, y, M, m->N, m->rank);
}

/* From y's gradient g: x's, in dx or added `onto` it, unless that is NULL, and those of what learns. `room` is for
   (M + N) · r. */
static void back(const map *m, const float *g, const float *x, const float *u, float *dx, int onto, float *room, long M) {
    if (dx && onto)
        add_linear_input(g, m->w, m->panels, dx, M, m->N, m->K);
    else if (dx)
        linear_input(g, m->w, m->panels, NULL, dx, M, m->N, m->K);
    if (m->db) column_sums(g, m->db, M, m->N);
    if (!m->rank) return;
    float *du = room, *thin = room + M * m->rank;
    turned(m->B, m->N, m->rank, m->factor, thin);
    linear(g, thin, NULL, NULL, du, M, m->rank, m->N);
    if (dx) add_linear_input(du, m->A, NULL, dx, M, m->rank, m->K);
    if (m->dA) linear_weight(du, x, m->dA, M, m->rank, m->K);
    if (m->dB) {
        linear_weight(u, g, thin, M, m->rank, m->N);
        turned(thin, m->rank, m->N, 1.0f, m->dB);
    }
}

/* What attention leaves for its gradients: q, k and v [M, D], u of each map [M, r], and of the norm the sum [M, D] and two
   numbers a row, which come last: there are none without a norm. */
typedef struct {
    float *q, *k, *v, *u[4], *sum, *stats;
} places;

static places within(float *kept, const map maps[4], long M, long D) {
    places p = {.q = kept, .k = kept + M * D, .v = kept + 2 * M * D};
    float *next = kept + 3 * M * D;
    for (int i = 0; i < 4; i++) p.u[i] = next, next += M * maps[i].rank;
    p.sum = next, p.stats = next + M * D;
    return p;
}

static heads by_head(const float *at, const shape *s) { return (heads){at, s->Tq * s->H * s->d, s->d, s->H * s->d}; }
static into to_heads(float *at, const shape *s) { return (into){at, s->Tq * s->H * s->d, s->d, s->H * s->d}; }

/* norm(x + dropout(o(attention of q(x), k(x), v(x)))), or without a norm what it would be given; `maps` are q, k, v and o;
   `weights` and `values` say what is dropped of them. `mixed` [M, D] is what o is given. Gives 1 where there is no memory. */
EXPORT int attended(const float *x, const map maps[4], const shape *given, const norm *n, const dropping *weights,
                    const dropping *values, float *kept, float *mixed, float *out) {
    shape s = *given;
    long M = s.B * s.Tq, D = s.H * s.d;
    places p = within(kept, maps, M, D);
    draw_both(weights, s.B * s.H * s.Tq * s.Tk, values, M * D);
    s.keep = weights->keep, s.growth = growth(weights);
    ahead(&maps[0], x, p.u[0], p.q, M);
    ahead(&maps[1], x, p.u[1], p.k, M);
    ahead(&maps[2], x, p.u[2], p.v, M);
    if (attend(by_head(p.q, &s), by_head(p.k, &s), by_head(p.v, &s), to_heads(mixed, &s), &s)) return 1;
    ahead(&maps[3], mixed, p.u[3], out, M);
    if (n) join(x, out, values->keep, growth(values), n->scale, n->shift, n->eps, p.sum, p.stats, out, M, D);
    return 0;
}

/* From the gradient g of what `attended` gave: x's in dx, whole only where it is wanted (`to_x`), the norm's, and those of the
   maps. `room` is for 5 · M · D and what `back` needs. */
EXPORT int attended_back(const float *g, const float *x, const map maps[4], const shape *given, const norm *n,
                         const dropping *weights, const dropping *values, float *kept, const float *mixed, int to_x,
                         float *dx, float *dscale, float *dshift, float *room) {
    shape s = *given;
    long M = s.B * s.Tq, D = s.H * s.d, size = M * D;
    places p = within(kept, maps, M, D);
    s.keep = weights->keep, s.growth = growth(weights);
    float *dmixed = room, *dq = room + size, *dk = room + 2 * size, *dv = room + 3 * size, *rest = room + 5 * size;
    const float *dy = g;
    if (n) {
        float *dropped = values->keep ? room + 4 * size : dx;
        join_back(g, p.sum, p.stats, n->scale, values->keep, growth(values), dx, dropped, M, D);
        dy = dropped;
        if (dscale || dshift) join_affine(g, p.sum, p.stats, dscale, dshift, M, D);
    }
    back(&maps[3], dy, mixed, p.u[3], dmixed, 0, rest, M); /* dy may be dx, to which is added only after this */
    if (attend_back(by_head(p.q, &s), by_head(p.k, &s), by_head(p.v, &s), by_head(dmixed, &s), to_heads(dq, &s),
                    to_heads(dk, &s), to_heads(dv, &s), &s))
        return 1;
    float *to = to_x ? dx : NULL;
    back(&maps[0], dq, x, p.u[0], to, n != NULL, rest, M);
    back(&maps[1], dk, x, p.u[1], to, 1, rest, M);
    back(&maps[2], dv, x, p.u[2], to, 1, rest, M);
    return 0;
}

/* norm(x + dropout(W₂ · gelu(W₁x + b₁) + b₂)) with maps that nothing changes; GELU's slope [M, inner], the norm's sum [M, D]
   and its two numbers a row are left in `kept`; `inner` has room. */
EXPORT void fed_forward(const float *x, const map maps[2], const norm *n, const dropping *values, float *kept, float *inner,
                        float *out, long M) {
    const map *up = maps, *down = maps + 1;
    long D = up->K;
    float *slope = kept, *sum = kept + M * up->N, *stats = sum + M * D;
    if (values->keep) draw_kept(values->seeds, values->cut, values->keep, M * D);
    linear_gelu(x, up->w, up->panels, up->bias, inner, slope, M, up->N, D);
    linear(inner, down->w, down->panels, down->bias, out, M, D, down->K);
    join(x, out, values->keep, growth(values), n->scale, n->shift, n->eps, sum, stats, out, M, D);
}

/* As `attended_back`; `room` is for M · (D + inner). */
EXPORT void fed_forward_back(const float *g, const map maps[2], const norm *n, const dropping *values, const float *kept,
                             int to_x, float *dx, float *dscale, float *dshift, float *room, long M) {
    const map *up = maps, *down = maps + 1;
    long D = up->K;
    const float *slope = kept, *sum = kept + M * up->N, *stats = sum + M * D;
    float *dy = values->keep ? room : dx, *dinner = room + M * D;
    join_back(g, sum, stats, n->scale, values->keep, growth(values), dx, dy, M, D);
    if (dscale || dshift) join_affine(g, sum, stats, dscale, dshift, M, D);
    if (down->db) column_sums(dy, down->db, M, D);
    linear_input(dy, down->w, down->panels, slope, dinner, M, D, down->K);
    if (to_x) add_linear_input(dinner, up->w, up->panels, dx, M, up->N, D);
    if (up->db) column_sums(dinner, up->db, M, up->N);
}
