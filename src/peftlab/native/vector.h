/* What the kernels share: vectors as the compiler knows them, and one tile of a product held in registers.

   Every matrix product here, large or a single head's, is made of `tile`:

       c[MR, NR] (+)= a[MR, K] · b[K, NR]

   a is read where it lies, by any two strides; b is a panel of NR columns, packed so that its rows follow each other.
   Three quarters of the registers are accumulators. 4 rows of 3 vectors need fewer loads than 6 of 2, which is what a Zen 3
   is short of (101 against 90 of 103 GFLOP/s); 6 of 2 leave less of a narrow matrix unused: whoever includes this file says
   how many VECTORS a panel is wide. The loop order, and panels that stay in the first-level cache, are Goto & van de Geijn
   2008 (doi 10.1145/1356052.1356053). */

#ifndef PEFTLAB_VECTOR_H
#define PEFTLAB_VECTOR_H

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "lanes.h"

#define EXPORT __attribute__((visibility("default")))

#ifndef VECTORS
#define VECTORS 3
#endif

enum { NR = VECTORS * LANES };

/* The rows of a tile, and something for each number of fewer ones. */
#if ACCUMULATORS / VECTORS == 4
#define MR 4
#define FEWER(THING) THING(1) THING(2) THING(3)
#elif ACCUMULATORS / VECTORS == 6
#define MR 6
#define FEWER(THING) THING(1) THING(2) THING(3) THING(4) THING(5)
#elif ACCUMULATORS / VECTORS == 8
#define MR 8
#define FEWER(THING) THING(1) THING(2) THING(3) THING(4) THING(5) THING(6) THING(7)
#else
#define MR 12
#define FEWER(THING)                                                                                                  \
    THING(1) THING(2) THING(3) THING(4) THING(5) THING(6) THING(7) THING(8) THING(9) THING(10) THING(11)
#endif
#define WITH(THING, ROWS) THING(ROWS) /* so that MR is a number before it becomes a part of a name */

/* eˣ to 2 units in the last place, for x ≤ 88: 2ⁿ · p(rest), p of degree 6 (Cephes' expf); 0 where x is below −87. */
INLINE vec exponential(vec x) {
    vec given = x;
    x = where_less(given, all(-87.0f), all(0.0f), x);
    vec shifted = x * all(1.44269504f) + all(12582912.0f); /* 1.5 · 2²³: rounds to a whole number */
    vec n = shifted - all(12582912.0f);
    vec r = x - n * all(0.693359375f) + n * all(2.12194440e-4f);
    vec p = all(1.9875691500e-4f);
    p = p * r + all(1.3981999507e-3f);
    p = p * r + all(8.3334519073e-3f);
    p = p * r + all(4.1665795894e-2f);
    p = p * r + all(1.6666665459e-1f);
    p = p * r + all(5.0000001201e-1f);
    p = p * r * r + r + all(1.0f);
    ivec power = ((ivec)shifted - (ivec)all(12582912.0f) + 127) << 23;
    return where_less(given, all(-87.0f), all(0.0f), p * (vec)power);
}

/* GELU is x · Φ(x), Φ the normal distribution (Hendrycks & Gimpel 2016, arXiv 1606.08415); its slope is Φ(x) + x · φ(x).
   Φ of −|x| is p(t) · e^(−x²/2) with t = 1 / (1 + c·|x|), within 1e-7 (Abramowitz & Stegun 1964, 7.1.26), which has the
   density's exponential in it. */
typedef struct {
    vec value, slope;
} activation;

INLINE activation gelu_of(vec x) {
    vec size = (vec)((ivec)x & 0x7fffffff), e = exponential(x * x * all(-0.5f));
    vec t = inverse_of(all(1.0f) + size * all(0.23164188f)); /* 0.3275911 / √2 */
    vec p = all(0.5307027145f);
    p = p * t + all(-0.7265760135f);
    p = p * t + all(0.7107068705f);
    p = p * t + all(-0.142248368f);
    p = p * t + all(0.127414796f);
    vec tail = p * t * e;
    vec phi = where_less(x, all(0.0f), tail, all(1.0f) - tail);
    return (activation){x * phi, phi + x * e * all(0.39894228f)};
}

/* Each number of rows is a function of its own, so that the accumulators are registers. The sums are added to `start`
   (a bias), or to c where `start` is NULL. */
#define UNROLLED _Pragma("GCC unroll 12") for
#define TILE(ROWS)                                                                                                    \
    static __attribute__((noinline, unused)) void tile##ROWS(const float *a, long row, long step, const float *b, long K,     \
                                                     float *c, long ldc, const float *start) {                        \
        vec sums[ROWS][VECTORS];                                                                                      \
        UNROLLED(int i = 0; i < ROWS; i++) UNROLLED(int j = 0; j < VECTORS; j++) sums[i][j] = all(0.0f);              \
        for (long k = 0; k < K; k++, a += step, b += NR) {                                                            \
            vec panel[VECTORS];                                                                                       \
            UNROLLED(int j = 0; j < VECTORS; j++) panel[j] = load(b + j * LANES);                                     \
            UNROLLED(int i = 0; i < ROWS; i++) {                                                                      \
                vec one = all(a[i * row]);                                                                            \
                UNROLLED(int j = 0; j < VECTORS; j++) sums[i][j] += one * panel[j];                                   \
            }                                                                                                         \
        }                                                                                                             \
        UNROLLED(int i = 0; i < ROWS; i++, c += ldc) {                                                                \
            const float *onto = start ? start : c;                                                                    \
            UNROLLED(int j = 0; j < VECTORS; j++) store(c + j * LANES, sums[i][j] + load(onto + j * LANES));          \
        }                                                                                                             \
    }
FEWER(TILE)
WITH(TILE, MR)

typedef void tile(const float *, long, long, const float *, long, float *, long, const float *);
#define NAMED(ROWS) tile##ROWS,
static tile *const TILES[] __attribute__((unused)) = {NULL, FEWER(NAMED) WITH(NAMED, MR)};

/* A panel's product with M rows: c[M, width] (+)= a · b, where `width` ≤ NR of the panel's columns are wanted. */
INLINE void rows_of(long M, const float *a, long row, long step, const float *b, long K, float *c, long ldc,
                    const float *start, int width) {
    float part[MR * NR];
    for (long m = 0; m < M; m += MR) {
        long rows = M - m < MR ? M - m : MR;
        const float *from = a + m * row;
        float *to = c + m * ldc, *into = width == NR ? to : part;
        long ld = width == NR ? ldc : NR;
        if (width < NR && !start)
            for (long i = 0; i < rows; i++) memcpy(part + i * NR, to + i * ldc, sizeof(float) * width);
        TILES[rows](from, row, step, b, K, into, ld, start);
        if (width < NR)
            for (long i = 0; i < rows; i++) memcpy(to + i * ldc, part + i * NR, sizeof(float) * width);
    }
}

/* `rows` ≤ 8 rows of w, 8 numbers each, turned, the other columns zero: three rounds of exchanges between pairs of
   rows. */
INLINE void turn(const float *w, long ld, int rows, float *b) {
    eight r[8], t[8];
    for (int j = 0; j < 8; j++) r[j] = j < rows ? *(const eight *)(w + j * ld) : (eight){0};
    for (int j = 0; j < 8; j += 2) {
        t[j] = __builtin_shuffle(r[j], r[j + 1], (order){0, 8, 2, 10, 4, 12, 6, 14});
        t[j + 1] = __builtin_shuffle(r[j], r[j + 1], (order){1, 9, 3, 11, 5, 13, 7, 15});
    }
    for (int j = 0; j < 8; j += 4)
        for (int i = 0; i < 2; i++) {
            r[j + i] = __builtin_shuffle(t[j + i], t[j + i + 2], (order){0, 1, 8, 9, 4, 5, 12, 13});
            r[j + i + 2] = __builtin_shuffle(t[j + i], t[j + i + 2], (order){2, 3, 10, 11, 6, 7, 14, 15});
        }
    for (int i = 0; i < 4; i++) {
        *(eight *)(b + i * NR) = __builtin_shuffle(r[i], r[i + 4], (order){0, 1, 2, 3, 8, 9, 10, 11});
        *(eight *)(b + (i + 4) * NR) = __builtin_shuffle(r[i], r[i + 4], (order){4, 5, 6, 7, 12, 13, 14, 15});
    }
}

/* The panel b[k, j] = w[j, k] of `width` ≤ NR rows of w, the other columns zero. */
INLINE void pack_rows(const float *w, long ld, int width, long K, float *b) {
    for (int j = 0; j < NR; j += 8) {
        long k = 0;
        if (j + 8 <= width)
            for (; k + 8 <= K; k += 8) turn(w + j * ld + k, ld, 8, b + k * NR + j);
        else if (j < width)
            for (; k + 8 <= K; k += 8) turn(w + j * ld + k, ld, width - j, b + k * NR + j);
        else
            for (; k < K; k++) *(eight *)(b + k * NR + j) = (eight){0};
        for (; k < K; k++)
            for (int i = j; i < j + 8; i++) b[k * NR + i] = i < width ? w[i * ld + k] : 0.0f;
    }
}

/* The panel b[k, j] = w[k, j] of `width` ≤ NR columns of w. */
INLINE void pack_columns(const float *w, long ld, int width, long K, float *b) {
    if (width == NR) {
        for (long k = 0; k < K; k++)
            for (int j = 0; j < NR; j += LANES) store(b + k * NR + j, load(w + k * ld + j));
        return;
    }
    for (long k = 0; k < K; k++)
        for (int j = 0; j < NR; j++) b[k * NR + j] = j < width ? w[k * ld + j] : 0.0f;
}

INLINE long least(long a, long b) { return a < b ? a : b; }

/* A tensor [B, H, T, d]: how far it is to the next row, head and token. */
typedef struct {
    const float *at;
    long row, head, token;
} heads;

typedef struct {
    float *at;
    long row, head, token;
} into;

/* What attention is told besides its tensors; attention.c says what it means. */
typedef struct {
    long B, H, Tq, Tk, d;
    float scale, growth;
    const uint8_t *seen;
    long seen_row, seen_query;
    const uint8_t *keep;
} shape;

typedef struct {
    const float *scale, *shift;
    float eps;
} norm;

/* A matrix kept as products want it: in panels of numbers (product.c), or of integers (int16.c). */
typedef struct {
    long integers;
    char at[] __attribute__((aligned(64)));
} panels;

/* The kernels that others are made of. */
int in_integers(const panels *packed, long M, long N);
void linear(const float *x, const float *w, const panels *packed, const float *bias, float *y, long M, long N, long K);
void linear_gelu(const float *x, const float *w, const panels *packed, const float *bias, float *y, float *slope, long M,
                 long N, long K);
void linear_input(const float *g, const float *w, const panels *packed, const float *slope, float *dx, long M, long N, long K);
void linear_weight(const float *g, const float *x, float *dw, long M, long N, long K);
void add_linear(const float *x, const float *w, float *y, long M, long N, long K);
void add_linear_input(const float *g, const float *w, const panels *packed, float *dx, long M, long N, long K);
int attend(heads q, heads k, heads v, into mixed, const shape *s);
int attend_back(heads q, heads k, heads v, heads g, into dq, into dk, into dv, const shape *s);
void draw_kept(const uint64_t *seeds, long cut, uint8_t *keep, long n);
void apply_kept(const float *x, const uint8_t *keep, float growth, float *y, long n);
void gelu(const float *x, float *y, long n);
void gelu_back(const float *x, const float *g, float *dx, long n);
void normalise(const float *x, const float *scale, const float *shift, float eps, float *y, long M, long D);
void join(const float *x, const float *y, const uint8_t *keep, float growth, const float *scale, const float *shift,
          float eps, float *sum, float *stats, float *out, long M, long D);
void join_back(const float *g, const float *sum, const float *stats, const float *scale, const uint8_t *keep, float growth,
               float *dx, float *dy, long M, long D);
void join_affine(const float *g, const float *sum, const float *stats, float *dscale, float *dshift, long M, long D);

#endif
