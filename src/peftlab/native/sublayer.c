/* The two sublayers of a block whose own weights are frozen, forward and back, each in one call: norm(x + dropout(f(x))), and
   with a thin network behind f norm(x + y + s · (W₂ · gelu(W₁y + b₁) + b₂)), where y = dropout(f(x)).
   Beside frozen weights little learns, and to ask for the kernels one by one takes Python an eighth of a step, in which
   all threads but one wait.

   Shapes: M = B · T tokens of width D; a map from K to N; r the rank of its change; w the width of the thin network. */

#include "int16.h"

/* y = x wᵀ + b, and with a rank + u Bᵀ, where u = factor · x Aᵀ [M, r]. `packed` is w for y or for x's gradient, whichever is
   asked for. Of a thin network's second map, which learns itself as the first does, `factor` is s. `changes` are those that differ
   from text to text, or NULL; beside them nothing learns. Gradients that are NULL are not wanted. */
typedef struct {
    const float *w;
    const panels *packed;
    const float *bias, *A, *B;
    long N, K, rank;
    float factor;
    const changes *changes;
    float *dA, *dB, *db, *dw;
} map;

/* Values of which `cut` of 65,536 are dropped; `keep` is drawn from the seeds on the way forward, and read on the way back.
   None are dropped where it is NULL. */
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

/* to[N] = the sums over the rows of g[M, N], of some rows first, so that little is lost by rounding */
static void column_sums(const float *g, float *to, long M, long N) {
    enum { WIDE = 128, SOME = 32 };
#pragma omp parallel for schedule(static)
    for (long from = 0; from < N; from += WIDE) {
        float total[WIDE] = {0};
        long wide = least(WIDE, N - from);
        for (long first = 0; first < M; first += SOME) {
            float some[WIDE] = {0};
            for (long m = first; m < least(M, first + SOME); m++)
                for (long i = 0; i < wide; i++) some[i] += g[m * N + from + i];
            for (long i = 0; i < wide; i++) total[i] += some[i];
        }
        memcpy(to + from, total, sizeof(float) * wide);
    }
}

/* to[N, M] = from[M, N]ᵀ · factor */
static void turned(const float *from, long M, long N, float factor, float *to) {
    for (long m = 0; m < M; m++)
        for (long n = 0; n < N; n++) to[n * M + m] = from[m * N + n] * factor;
}

/* Maps of the same x, at most three. */
static void ahead(const map *maps, int count, const float *x, float *const *u, float *const *y, long M) {
    int16_product products[3];
    int integers = 1;
    for (int i = 0; i < count; i++) {
        const map *m = &maps[i];
        products[i] = (int16_product){x, m->packed, m->bias, y[i], m->N, m->K, {0}, 0, m->changes};
        integers &= in_integers(m->packed, M, m->N);
    }
    if (integers) int16_products(products, count, M);
    for (int i = 0; i < count; i++) {
        const map *m = &maps[i];
        if (!integers) linear(x, m->w, m->packed, m->bias, y[i], M, m->N, m->K);
        if (!integers && m->changes) add_changes(m->changes, x, y[i], M, m->N, m->K);
        if (!m->rank) continue;
        linear(x, m->A, NULL, NULL, u[i], M, m->rank, m->K);
        for (long j = 0; j < M * m->rank; j++) u[i][j] *= m->factor;
        add_linear(u[i], m->B, y[i], M, m->N, m->rank);
    }
}

/* From the gradients g of maps of the same x, at most three: x's, in dx or added `onto` it, unless that is NULL, and those of what
   learns. `room` is for (M + N) · r. */
static void back(const map *maps, int count, const float *const *g, const float *x, float *const *u, float *dx, int onto,
                 float *room, long M) {
    int16_product products[3];
    int integers = dx != NULL;
    for (int i = 0; i < count; i++) {
        const map *m = &maps[i];
        products[i] = (int16_product){g[i], m->packed, NULL, dx, m->K, m->N, {.onto = onto || i}, 0, NULL};
        integers = integers && in_integers(m->packed, M, m->K);
    }
    if (integers) int16_products(products, count, M);
    for (int i = 0; i < count; i++) {
        const map *m = &maps[i];
        if (dx && !integers && (onto || i))
            add_linear_input(g[i], m->w, m->packed, dx, M, m->N, m->K);
        else if (dx && !integers)
            linear_input(g[i], m->w, m->packed, NULL, dx, M, m->N, m->K);
        if (m->db) column_sums(g[i], m->db, M, m->N);
        if (!m->rank) continue;
        float *du = room, *thin = room + M * m->rank;
        turned(m->B, m->N, m->rank, m->factor, thin);
        linear(g[i], thin, NULL, NULL, du, M, m->rank, m->N);
        if (dx) add_linear_input(du, m->A, NULL, dx, M, m->rank, m->K);
        if (m->dA) linear_weight(du, x, m->dA, M, m->rank, m->K);
        if (m->dB) {
            linear_weight(u[i], g[i], thin, M, m->rank, m->N);
            turned(thin, m->rank, m->N, 1.0f, m->dB);
        }
    }
}

/* What a sublayer leaves for its gradients where it is joined: the sum [M, D], two numbers a row, and of a thin network y, what
   enters GELU and s times what leaves it. */
typedef struct {
    float *sum, *stats, *y, *inner, *z;
} joint;

static joint left(float *kept, const map *thin, long M, long D) {
    float *stats = kept + M * D, *y = stats + 2 * M, *inner = y + M * D;
    return (joint){kept, stats, y, inner, thin ? inner + M * thin->N : NULL};
}

/* out holds f(x), and then what leaves the block. Without a gradient to come `learning` is 0, and of what is left only the thin
   network's part is used. */
static void leave(const float *x, float *out, const norm *n, const dropping *values, const map *thin, float *kept, int learning,
                  long M, long D) {
    joint j = left(kept, thin, M, D);
    const uint8_t *keep = values->keep;
    float grown = growth(values);
    if (thin) {
        const map *down = thin, *up = thin + 1;
#pragma omp parallel for schedule(static)
        for (long m = 0; m < M; m++)
            for (long i = 0; i < D; i++) {
                float y = keep ? out[m * D + i] * (float)keep[m * D + i] * grown : out[m * D + i];
                j.y[m * D + i] = y, out[m * D + i] = y + up->factor * up->bias[i];
            }
        linear(j.y, down->w, NULL, down->bias, j.inner, M, down->N, D);
        gelu(j.inner, j.z, M * down->N);
        for (long i = 0; i < M * down->N; i++) j.z[i] *= up->factor;
        add_linear(j.z, up->w, out, M, D, down->N);
        keep = NULL;
    }
    float *sum = learning ? j.sum : out, *stats = learning ? j.stats : NULL;
    join(x, out, keep, grown, n->scale, n->shift, n->eps, sum, stats, out, M, D);
}

/* Gives f(x)'s gradient, in dy or in dx, from that of what leaves the block; dx is what leads past f to x. `room` is for
   (2 · M + D) · w. */
static const float *leave_back(const float *g, const norm *n, const dropping *values, const map *thin, float *kept, float *dx,
                               float *dy, float *dscale, float *dshift, float *room, long M, long D) {
    joint j = left(kept, thin, M, D);
    const uint8_t *keep = values->keep;
    float grown = growth(values);
    if (dscale || dshift) join_affine(g, j.sum, j.stats, dscale, dshift, M, D);
    if (!thin) {
        if (!keep) dy = dx;
        join_back(g, j.sum, j.stats, n->scale, keep, grown, dx, dy, M, D);
        return dy;
    }
    const map *down = thin, *up = thin + 1;
    long w = down->N;
    float *dz = room, *dinner = room + M * w, *turn = room + 2 * M * w;
    join_back(g, j.sum, j.stats, n->scale, NULL, 1.0f, dx, dx, M, D);
    turned(up->w, D, w, up->factor, turn);
    linear(dx, turn, NULL, NULL, dz, M, w, D);
    if (up->dw) {
        linear_weight(j.z, dx, turn, M, w, D);
        turned(turn, w, D, 1.0f, up->dw);
    }
    if (up->db) {
        column_sums(dx, up->db, M, D);
        for (long i = 0; i < D; i++) up->db[i] *= up->factor;
    }
    gelu_back(j.inner, dz, dinner, M * w);
    if (down->dw) linear_weight(dinner, j.y, down->dw, M, w, D);
    if (down->db) column_sums(dinner, down->db, M, w);
    memcpy(dy, dx, sizeof(float) * M * D);
    add_linear_input(dinner, down->w, NULL, dy, M, w, D);
    if (keep) apply_kept(dy, keep, grown, dy, M * D);
    return dy;
}

/* What attention leaves for its gradients: q, k and v [M, D], u of each map [M, r], and what is left where it is joined. */
typedef struct {
    float *q, *k, *v, *u[4], *joint;
} places;

static places within(float *kept, const map maps[4], long M, long D) {
    places p = {.q = kept, .k = kept + M * D, .v = kept + 2 * M * D};
    float *next = kept + 3 * M * D;
    for (int i = 0; i < 4; i++) p.u[i] = next, next += M * maps[i].rank;
    p.joint = next;
    return p;
}

static heads by_head(const float *at, const shape *s) { return (heads){at, s->Tq * s->H * s->d, s->d, s->H * s->d}; }
static into to_heads(float *at, const shape *s) { return (into){at, s->Tq * s->H * s->d, s->d, s->H * s->d}; }

/* Attention of q(x), k(x) and v(x), its result through o; without a norm that is all. `maps` are q, k, v and o, `thin` is a
   network's two or NULL; `weights` and `values` say what is dropped of them. `mixed` [M, D] is what o is given. Gives 1 where
   there is no memory. */
EXPORT int attended(const float *x, const map maps[4], const map *thin, const shape *given, const norm *n,
                    const dropping *weights, const dropping *values, float *kept, float *mixed, int learning, float *out) {
    shape s = *given;
    long M = s.B * s.Tq, D = s.H * s.d;
    places p = within(kept, maps, M, D);
    draw_both(weights, s.B * s.H * s.Tq * s.Tk, values, M * D);
    s.keep = weights->keep, s.growth = growth(weights);
    ahead(maps, 3, x, p.u, (float *[]){p.q, p.k, p.v}, M);
    if (attend(by_head(p.q, &s), by_head(p.k, &s), by_head(p.v, &s), to_heads(mixed, &s), &s)) return 1;
    ahead(&maps[3], 1, mixed, &p.u[3], &out, M);
    if (n) leave(x, out, n, values, thin, p.joint, learning, M, D);
    return 0;
}

/* From the gradient g of what `attended` gave: x's in dx, whole only where it is wanted (`to_x`), the norm's, and those of the
   maps. `room` is for 5 · M · D and what `back` or `leave_back` needs. */
EXPORT int attended_back(const float *g, const float *x, const map maps[4], const map *thin, const shape *given,
                         const norm *n, const dropping *weights, const dropping *values, float *kept, const float *mixed,
                         int to_x, float *dx, float *dscale, float *dshift, float *room) {
    shape s = *given;
    long M = s.B * s.Tq, D = s.H * s.d, size = M * D;
    places p = within(kept, maps, M, D);
    s.keep = weights->keep, s.growth = growth(weights);
    float *dmixed = room, *dq = room + size, *dk = room + 2 * size, *dv = room + 3 * size, *rest = room + 5 * size;
    const float *dy = g;
    if (n) dy = leave_back(g, n, values, thin, p.joint, dx, room + 4 * size, dscale, dshift, rest, M, D);
    back(&maps[3], 1, &dy, mixed, &p.u[3], dmixed, 0, rest, M); /* dy may be dx, to which is added only after this */
    if (attend_back(by_head(p.q, &s), by_head(p.k, &s), by_head(p.v, &s), by_head(dmixed, &s), to_heads(dq, &s),
                    to_heads(dk, &s), to_heads(dv, &s), &s))
        return 1;
    back(maps, 3, (const float *[]){dq, dk, dv}, x, p.u, to_x ? dx : NULL, n != NULL, rest, M);
    return 0;
}

/* The feed-forward network W₂ · gelu(W₁x + b₁) + b₂ of two maps that nothing changes. GELU's slope [M, inner] is left in
   `kept`, unless nothing learns, and then what is left where it is joined; `inner` has room. */
EXPORT void fed_forward(const float *x, const map maps[2], const map *thin, const norm *n, const dropping *values,
                        float *kept, float *inner, int learning, float *out, long M) {
    const map *up = maps, *down = maps + 1;
    long D = up->K;
    if (values->keep) draw_kept(values->seeds, values->cut, values->keep, M * D);
    float *slope = learning ? kept : NULL;
    if (in_integers(up->packed, M, up->N) && in_integers(down->packed, M, D)) {
        int16_product products[] = {{x, up->packed, up->bias, inner, up->N, D, {.gelu = 1, .slope = slope}, 1, NULL},
                                    {inner, down->packed, down->bias, out, D, down->K, {0}, 0, NULL}};
        int16_products(products, 2, M);
    } else {
        linear_gelu(x, up->w, up->packed, up->bias, inner, slope, M, up->N, D);
        linear(inner, down->w, down->packed, down->bias, out, M, D, down->K);
    }
    leave(x, out, n, values, thin, kept + (learning ? M * up->N : 0), learning, M, D);
}

/* As `attended_back`; `room` is for M · (D + inner) and what `leave_back` needs. */
EXPORT void fed_forward_back(const float *g, const map maps[2], const map *thin, const norm *n, const dropping *values,
                             float *kept, int to_x, float *dx, float *dscale, float *dshift, float *room, long M) {
    const map *up = maps, *down = maps + 1;
    long D = up->K;
    float *slope = kept, *dinner = room + M * D, *rest = dinner + M * up->N;
    const float *dy = leave_back(g, n, values, thin, kept + M * up->N, dx, room, dscale, dshift, rest, M, D);
    if (down->db) column_sums(dy, down->db, M, D);
    if (to_x && in_integers(down->packed, M, down->K) && in_integers(up->packed, M, D)) {
        int16_product products[] = {{dy, down->packed, NULL, dinner, down->K, D, {.times = slope}, !up->db, NULL},
                                    {dinner, up->packed, NULL, dx, D, up->N, {.onto = 1}, 0, NULL}};
        int16_products(products, 2, M);
    } else {
        linear_input(dy, down->w, down->packed, slope, dinner, M, D, down->K);
        if (to_x) add_linear_input(dinner, up->w, up->packed, dx, M, up->N, D);
    }
    if (up->db) column_sums(dinner, up->db, M, up->N);
}
