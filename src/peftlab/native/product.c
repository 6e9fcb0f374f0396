/* Matrix products: y = x wᵀ + b of a linear map, x's gradient g w, and w's, gᵀ x.

   Of many rows, w's panels are packed and stay in the first-level cache (with AVX-512 in the second one), a block of x in
   the second one. They are packed by the way, or once for all products with a w that is kept so: of a hundred rows
   packing takes a third of the time. Of a few rows, as a step of writing has them, or of a few columns, as LoRA has them,
   packing would take longer than the product: both operands are read along K, where they lie, and each number is a sum
   over a vector's lanes.

   What follows a product is done to each block of it while it is in the cache (after.h): GELU behind a feed-forward
   network's first map, and its slope behind the gradient of the second one. A w that is kept may be one of integers (int16.c).

   Shapes: x [M, K], w [N, K], b [N], y and g [M, N]; the rows of each follow each other. */

#include "int16.h"

enum { DEPTH = 384, GROUP = 16 / LANES, TALL = 96, FEW = 16, NARROW = 24, WORTH = 40000 };
/* of K at once; panels that are packed at once; rows of x that go through them at once; rows, and columns, up to which
   nothing is packed; multiplications that are worth a second thread */

typedef struct {
    const float *at;
    long row, step;
} operand;
/* the number of row m at k is at[m · row + k · step] */

/* The second operand. `across`: y's columns are its columns, not its rows, which are `wide`; `packed` is all of it, as `pack`
   leaves it, or NULL. */
typedef struct {
    const float *at;
    long wide;
    int across;
    const panels *packed;
} matrix;

static void pack_panel(matrix w, long n, int width, long k, long depth, float *b) {
    if (w.across)
        pack_columns(w.at + k * w.wide + n, w.wide, width, depth, b);
    else
        pack_rows(w.at + n * w.wide + k, w.wide, width, depth, b);
}

/* The columns [from, to) of y = x · w, at most a group, in the rows [above, below). */
static void columns_of(operand x, matrix w, const float *bias, float *y, long above, long below, long N, long K,
                       long from, long to, after then) {
    static __thread float b[GROUP * DEPTH * NR] __attribute__((aligned(64)));
    long pieces = (K + DEPTH - 1) / DEPTH;
    for (long piece = 0; piece < pieces; piece++) {
        long k = K * piece / pieces, depth = K * (piece + 1) / pieces - k;
        for (long n = from; n < to && !w.packed; n += NR)
            pack_panel(w, n, (int)least(NR, to - n), k, depth, b + (n - from) * depth);
        for (long m = above; m < below; m += TALL) {
            long rows = least(TALL, below - m);
            for (long n = from; n < to; n += NR) {
                int width = (int)least(NR, to - n);
                float begun[NR] = {0};
                if (bias) memcpy(begun, bias + n, sizeof(float) * width);
                const float *a = x.at + m * x.row + k * x.step;
                const float *panel = w.packed ? (const float *)w.packed->at + n * K + k * NR : b + (n - from) * depth;
                const float *start = piece || then.onto ? NULL : begun;
                rows_of(rows, a, x.row, x.step, panel, depth, y + m * N + n, N, start, width);
            }
            if (piece == pieces - 1 && (then.gelu || then.times)) finish(then, y + m * N, N, m, rows, from, to);
        }
    }
}

/* Groups of columns go to whichever thread is free: one that the system disturbs is not waited for. Where there are few
   groups and nothing is to be packed for them, each is cut into an upper and a lower half, so that no thread waits for the
   last group of another. */
static void many(operand x, matrix w, const float *bias, float *y, long M, long N, long K, after then) {
    if (w.packed && w.packed->integers) {
        int16_products(&(int16_product){x.at, w.packed, bias, y, N, K, then, 0, NULL}, 1, M);
        return;
    }
    long groups = (N + GROUP * NR - 1) / (GROUP * NR), halves = w.packed && groups <= 8 && M >= 16 * MR ? 2 : 1;
    long half = ((M + halves - 1) / halves + MR - 1) / MR * MR;
#pragma omp parallel for schedule(dynamic) if (M * N * K > WORTH)
    for (long task = 0; task < groups * halves; task++) {
        long n = task / halves * GROUP * NR, above = task % halves * half;
        columns_of(x, w, bias, y, above, least(M, above + half), N, K, n, least(N, n + GROUP * NR), then);
        if (then.slope) __builtin_ia32_sfence(); /* what was put away is there before the thread says that it is done */
    }
}

enum { ROWS = 3, COLUMNS = 4 };

INLINE void dots(int rows, int columns, const float *x, const float *w, const float *bias, float *y, long N, long K) {
    vec c[ROWS][COLUMNS];
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++) c[i][j] = all(0.0f);
    long k = 0;
    for (; k + LANES <= K; k += LANES) {
        vec a[ROWS];
#pragma GCC unroll 3
        for (int i = 0; i < rows; i++) a[i] = load(x + i * K + k);
#pragma GCC unroll 4
        for (int j = 0; j < columns; j++) {
            vec b = load(w + j * K + k);
#pragma GCC unroll 3
            for (int i = 0; i < rows; i++) c[i][j] += a[i] * b;
        }
    }
    for (int i = 0; i < rows; i++) {
        float totals[COLUMNS];
        if (columns == COLUMNS)
            *(quad *)totals = sums(c[i][0], c[i][1], c[i][2], c[i][3]);
        else
            for (int j = 0; j < columns; j++) totals[j] = sum(c[i][j]);
        for (int j = 0; j < columns; j++) {
            for (long rest = k; rest < K; rest++) totals[j] += x[i * K + rest] * w[j * K + rest];
            y[i * N + j] = totals[j] + (bias ? bias[j] : 0.0f);
        }
    }
}

/* A block of y: the rows [from, to) of x with four rows of w, or with as many as are left. */
static void strip(const float *x, const float *w, const float *bias, float *y, long from, long to, long n, long N,
                  long K) {
    const float *row = w + n * K, *b = bias ? bias + n : NULL;
    if (N - n < COLUMNS) {
        for (long m = from; m < to; m++)
            for (long j = 0; j < N - n; j++) dots(1, 1, x + m * K, row + j * K, b ? b + j : NULL, y + m * N + n + j, N, K);
        return;
    }
    long m = from;
    for (; m + ROWS <= to; m += ROWS) dots(ROWS, COLUMNS, x + m * K, row, b, y + m * N + n, N, K);
    if (to - m == 2) dots(2, COLUMNS, x + m * K, row, b, y + m * N + n, N, K);
    if (to - m == 1) dots(1, COLUMNS, x + m * K, row, b, y + m * N + n, N, K);
}

static void thin(const float *x, const float *w, const float *bias, float *y, long M, long N, long K) {
    if (M <= FEW) {
#pragma omp parallel for schedule(static) if (M * N * K > WORTH)
        for (long n = 0; n < N; n += COLUMNS) strip(x, w, bias, y, 0, M, n, N, K);
        return;
    }
#pragma omp parallel for schedule(dynamic) if (M * N * K > WORTH)
    for (long m = 0; m < M; m += FEW)
        for (long n = 0; n < N; n += COLUMNS) strip(x, w, bias, y, m, least(M, m + FEW), n, N, K);
}

/* The bytes of w [N, K] as y = x wᵀ wants it, or `across` as g w does: in panels of numbers, the last one whole, or of integers. */
EXPORT long packed_size(long N, long K, int across, int integers) {
    long columns = across ? K : N, depth = across ? N : K;
    long numbers = (columns + NR - 1) / NR * NR * depth * (long)sizeof(float);
    return (long)sizeof(panels) + (integers ? int16_size(depth, columns) : numbers);
}

EXPORT void pack(const float *w, long N, long K, int across, int integers, panels *packed) {
    long columns = across ? K : N, depth = across ? N : K;
    packed->integers = integers;
    if (integers) {
        int16_pack(w, N, K, across, packed->at);
        return;
    }
#pragma omp parallel for schedule(static)
    for (long n = 0; n < columns; n += NR)
        pack_panel((matrix){w, K, across, NULL}, n, (int)least(NR, columns - n), 0, depth, (float *)packed->at + n * depth);
}

/* Whether `linear` computes M rows with a packed matrix of N columns in integers; what packs by the way does at any size. */
int in_integers(const panels *packed, long M, long N) { return packed && packed->integers && M > FEW && N > NARROW; }

/* Below, `packed` is w as `pack` leaves it, or NULL. */

EXPORT void linear(const float *x, const float *w, const panels *packed, const float *bias, float *y, long M, long N,
                   long K) {
    if (M <= FEW || N <= NARROW)
        thin(x, w, bias, y, M, N, K);
    else
        many((operand){x, K, 1}, (matrix){w, K, 0, packed}, bias, y, M, N, K, (after){0});
}

/* y = GELU(x wᵀ + b), and its slope in `slope` where that is not NULL */
EXPORT void linear_gelu(const float *x, const float *w, const panels *packed, const float *bias, float *y, float *slope,
                        long M, long N, long K) {
    many((operand){x, K, 1}, (matrix){w, K, 0, packed}, bias, y, M, N, K, (after){.gelu = 1, .slope = slope});
}

/* dx[M, K] = g[M, N] · w[N, K], number by number times `slope` where that is not NULL */
EXPORT void linear_input(const float *g, const float *w, const panels *packed, const float *slope, float *dx, long M,
                         long N, long K) {
    many((operand){g, N, 1}, (matrix){w, K, 1, packed}, NULL, dx, M, K, N, (after){.times = slope});
}

/* y += x wᵀ */
EXPORT void add_linear(const float *x, const float *w, float *y, long M, long N, long K) {
    many((operand){x, K, 1}, (matrix){w, K, 0, NULL}, NULL, y, M, N, K, (after){.onto = 1});
}

/* dx += g w */
EXPORT void add_linear_input(const float *g, const float *w, const panels *packed, float *dx, long M, long N, long K) {
    many((operand){g, N, 1}, (matrix){w, K, 1, packed}, NULL, dx, M, K, N, (after){.onto = 1});
}

/* dw[N, K] = gᵀ[N, M] · x[M, K] */
EXPORT void linear_weight(const float *g, const float *x, float *dw, long M, long N, long K) {
    many((operand){g, 1, N}, (matrix){x, K, 1, NULL}, NULL, dw, N, K, M, (after){0});
}
