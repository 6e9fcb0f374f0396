/* Products with a packed matrix in 16-bit integers, whose sums are exact.

   One instruction of AVX2 multiplies sixteen pairs of such integers, and adds neighbours, where another multiplies eight pairs of
   numbers; with the addition that it needs besides, a Zen 3 is 1.5 times as fast. AVX-512's VNNI adds in the same instruction:
   there they are twice as fast (on a Xeon of 2023 598 against MKL's 303 GFLOP/s in fp32, 2 threads).

   A row of x and a column of the matrix are rounded to integers piece by piece, each with a scale of its own: the smallest
   with which no sum over a piece can leave 32 bits, as |Σ xᵢwᵢ| ≤ ‖x‖ · ‖w‖. So nothing is lost but what rounding takes: of
   384 numbers 1.2e-4 of their root mean square, a fourteenth of what bf16 takes. A row with a number that is not finite gives
   NaN.

   Shapes: x [M, K], the matrix [K, N] in panels of NR columns, y [M, N]; pieces of at most DEPTH of K. Two numbers of a column
   that follow each other stand side by side. */

#ifdef __AVX512F__
#define VECTORS 3
#else
#define VECTORS 2
#endif
#include "int16.h"

#include <omp.h>

enum { DEPTH = 384, BLOCK = LANES == 16 ? 48 : 12, WORTH = 40000 };
/* of K at once; rows of x that a thread takes at once, at most; multiplications that are worth a second thread */

static const float LARGEST = 32767.0f, LONGEST = 46300.0f;
/* an integer; a norm: two of these, with what rounding adds to them, come to less than 2³¹ */

typedef int32_t pair __attribute__((may_alias)); /* two integers side by side */

static long even(long k) { return k + k % 2; }

static long whole_panels(long N) { return (N + NR - 1) / NR * NR; }
static long scales_of(long K, long N) { return (K + DEPTH - 1) / DEPTH * whole_panels(N); }

long int16_size(long K, long N) {
    return (long)sizeof(float) * scales_of(K, N) + (long)sizeof(int16_t) * whole_panels(N) * even(K);
}

/* A packed matrix: the scales [pieces, columns], and then the integers, panel by panel, each with all its K. */
typedef struct {
    float *scales;
    int16_t *integers;
    long columns;
} parts;

static parts parts_of(void *packed, long K, long N) {
    float *scales = packed;
    return (parts){scales, (int16_t *)(scales + scales_of(K, N)), whole_panels(N)};
}

/* The scale of n numbers, the largest of size `most`, whose squares add up to `squares`. Of what is too small or too large to be
   squared, the norm is at most √n times the largest. */
static float scale_of(float most, float squares, long n) {
    if (most * 0.0f != 0.0f || squares != squares) return NAN;
    float of_norm = most > 1e-15f && most < 1e15f ? sqrtf(squares) / LONGEST : most * (sqrtf((float)n) / LONGEST);
    return fmaxf(most / LARGEST, of_norm);
}

/* What numbers are multiplied by to become integers: nothing where they are as good as zero, or not finite. */
static float inverse(float scale) { return scale > 1e-37f ? 1.0f / scale : 0.0f; }

static int16_t nearest(float x) { return (int16_t)_mm_cvtss_si32(_mm_set_ss(x)); }

/* A piece of a panel of numbers as integers. */
static void pack_piece(const float *b, long depth, float *scales, int16_t *to) {
    float most[NR], squares[NR], times[NR];
    vec sizes[VECTORS] = {0}, sums[VECTORS] = {0}, zero = {0};
    for (long k = 0; k < depth; k++)
        UNROLLED(int j = 0; j < VECTORS; j++) {
            vec v = load(b + k * NR + j * LANES);
            sizes[j] = larger((vec)((ivec)v & 0x7fffffff), sizes[j]), sums[j] += v * v;
        }
    UNROLLED(int j = 0; j < VECTORS; j++) store(most + j * LANES, sizes[j]), store(squares + j * LANES, sums[j]);
    for (int j = 0; j < NR; j++) scales[j] = scale_of(most[j], squares[j], depth), times[j] = inverse(scales[j]);
    for (long k = 0; k < depth; k += 2, to += 2 * NR)
        UNROLLED(int j = 0; j < VECTORS; j++) {
            vec by = load(times + j * LANES), next = k + 1 < depth ? load(b + (k + 1) * NR + j * LANES) : zero;
            ivec low = nearest_of(load(b + k * NR + j * LANES) * by), high = nearest_of(next * by);
            ((ivec *)to)[j] = (low & 0xffff) | high << 16;
        }
}

void int16_pack(const float *w, long N, long K, int across, void *packed) {
    long columns = across ? K : N, rows = across ? N : K;
    parts p = parts_of(packed, rows, columns);
#pragma omp parallel for schedule(static)
    for (long n = 0; n < columns; n += NR) {
        int width = (int)least(NR, columns - n);
        for (long k = 0; k < rows; k += DEPTH) {
            float b[DEPTH * NR];
            long depth = least(DEPTH, rows - k);
            if (across)
                pack_columns(w + k * K + n, K, width, depth, b);
            else
                pack_rows(w + n * K + k, K, width, depth, b);
            pack_piece(b, depth, p.scales + k / DEPTH * p.columns + n, p.integers + n * even(rows) + k * NR);
        }
    }
}

/* A piece of a row as integers, an even number of them; gives its scale. */
static float rounded(const float *x, long depth, int16_t *to) {
    vec sizes[4] = {all(0.0f), all(0.0f), all(0.0f), all(0.0f)}, sums[4] = {all(0.0f), all(0.0f), all(0.0f), all(0.0f)};
    long k = 0;
    for (; k + 4 * LANES <= depth; k += 4 * LANES)
        UNROLLED(int i = 0; i < 4; i++) {
            vec v = load(x + k + i * LANES);
            sizes[i] = larger((vec)((ivec)v & 0x7fffffff), sizes[i]), sums[i] += v * v;
        }
    float most = largest(larger(larger(sizes[0], sizes[1]), larger(sizes[2], sizes[3])))[0];
    float squares = sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
    for (; k < depth; k++) most = fmaxf(most, fabsf(x[k])), squares += x[k] * x[k];
    float scale = scale_of(most, squares, depth), times = inverse(scale);
    for (k = 0; k + 2 * LANES <= depth; k += 2 * LANES)
        store_rounded(to + k, load(x + k) * all(times), load(x + k + LANES) * all(times));
    for (; k < depth; k++) to[k] = nearest(x[k] * times);
    if (depth % 2) to[depth] = 0;
    return scale;
}

/* c[ROWS, NR] (+)= a · b, of `pairs` of numbers; a's rows are `row` pairs apart and have a scale each, as b's columns do. `SUM`
   adds all products of a tile to `sums`. */
#define TILE16(ROWS, SUM)                                                                                             \
    static __attribute__((noinline)) void times##ROWS(const pair *a, long row, const float *of_a, const int16_t *b,          \
                                                      const float *of_b, long pairs, float *c, long ldc,                     \
                                                      const float *start) {                                                  \
        ivec sums[ROWS][VECTORS];                                                                                            \
        UNROLLED(int i = 0; i < ROWS; i++) UNROLLED(int j = 0; j < VECTORS; j++) sums[i][j] = (ivec){0};                     \
        SUM(ROWS)                                                                                                            \
        UNROLLED(int i = 0; i < ROWS; i++, c += ldc) {                                                                       \
            const float *onto = start ? start : c;                                                                           \
            UNROLLED(int j = 0; j < VECTORS; j++) {                                                                          \
                vec found = __builtin_convertvector(sums[i][j], vec) * load(of_b + j * LANES) * all(of_a[i]);                \
                store(c + j * LANES, found + load(onto + j * LANES));                                                        \
            }                                                                                                                \
        }                                                                                                                    \
    }

#define SUM_OF_SOME(ROWS)                                                                                             \
    for (long k = 0; k < pairs; k++, a++, b += 2 * NR) {                                                              \
        ivec panel[VECTORS];                                                                                          \
        UNROLLED(int j = 0; j < VECTORS; j++) panel[j] = ((const ivec *)b)[j];                                        \
        UNROLLED(int i = 0; i < ROWS; i++) {                                                                          \
            ivec one = (ivec){0} + a[i * row];                                                                        \
            UNROLLED(int j = 0; j < VECTORS; j++) sums[i][j] = add_products(sums[i][j], one, panel[j]);               \
        }                                                                                                             \
    }

#ifdef __AVX512F__
#define SUM_OF_ALL SUM_OF_SOME
#else
/* Six rows need all registers: gcc, which multiplies long before it adds, would have to put some away. So the loop is written out,
   four pairs at a time. ymm12 and ymm13 are the panel's, ymm14 is a row's pair; in ymm15 and ymm14 its products wait to be added,
   two behind two: where each is added at once, additions take the multipliers' turns. */
#define PRODUCTS(at, low, high)                                                                                       \
    "vpbroadcastd " at ", %%ymm14\n\t"                                                                                \
    "vpmaddwd %%ymm12, %%ymm14, %%ymm15\n\tvpmaddwd %%ymm13, %%ymm14, %%ymm14\n\t"                                  \
    "vpaddd %%ymm15, %[" low "], %[" low "]\n\tvpaddd %%ymm14, %[" high "], %[" high "]\n\t"
#define PAIRS(of_a, of_b)                                                                                             \
    "vmovdqu " of_b "(%[b]), %%ymm12\n\tvmovdqu " of_b "+32(%[b]), %%ymm13\n\t"                                      \
    PRODUCTS(of_a "(%[a])", "s0", "t0") PRODUCTS(of_a "(%[a],%[row])", "s1", "t1")                                    \
    PRODUCTS(of_a "(%[a],%[row],2)", "s2", "t2") PRODUCTS(of_a "(%[lower])", "s3", "t3")                              \
    PRODUCTS(of_a "(%[lower],%[row])", "s4", "t4") PRODUCTS(of_a "(%[lower],%[row],2)", "s5", "t5")
#define SUMS_OF(i) [s##i] "+x"(sums[i][0]), [t##i] "+x"(sums[i][1])
#define ADD(...)                                                                                                      \
    __asm__ volatile(__VA_ARGS__                                                                                      \
                     : SUMS_OF(0), SUMS_OF(1), SUMS_OF(2), SUMS_OF(3), SUMS_OF(4), SUMS_OF(5)                          \
                     : [a] "r"(a), [lower] "r"(a + 3 * row), [row] "r"(4 * row), [b] "r"(b)                           \
                     : "ymm12", "ymm13", "ymm14", "ymm15", "memory")
#define SUM_OF_ALL(ROWS)                                                                                              \
    for (; pairs >= 4; pairs -= 4, a += 4, b += 8 * NR)                                                               \
        ADD(PAIRS("0", "0") PAIRS("4", "64") PAIRS("8", "128") PAIRS("12", "192"));                                   \
    for (; pairs > 0; pairs--, a++, b += 2 * NR) ADD(PAIRS("0", "0"));
#endif

#define TILE_OF_FEWER(ROWS) TILE16(ROWS, SUM_OF_SOME)
#define TILE_OF_ALL(ROWS) TILE16(ROWS, SUM_OF_ALL)
FEWER(TILE_OF_FEWER)
WITH(TILE_OF_ALL, MR)

typedef void tile16(const pair *, long, const float *, const int16_t *, const float *, long, float *, long, const float *);
#define TIMES_OF(ROWS) times##ROWS,
static tile16 *const TIMES[] = {NULL, FEWER(TIMES_OF) WITH(TIMES_OF, MR)};

/* Some rows of a product, at most a block: those of x and y, the first of which is row `m` of all; `again`: the product before
   had the same x. */
static void block_of(const int16_product *p, const float *x, float *y, long m, long rows, int again) {
    static __thread int16_t a[BLOCK * DEPTH] __attribute__((aligned(64)));
    static __thread float of_a[BLOCK];
    long N = p->N, K = p->K;
    parts w = parts_of((void *)p->w->at, K, N);
    for (long k = 0; k < K; k += DEPTH) {
        long depth = least(DEPTH, K - k), pairs = even(depth) / 2;
        int last = k + DEPTH >= K;
        const float *of_w = w.scales + k / DEPTH * w.columns;
        for (long r = 0; r < rows && !(again && K <= DEPTH); r++)
            of_a[r] = rounded(x + r * K + k, depth, a + r * 2 * pairs);
        for (long n = 0; n < N; n += NR) {
            long width = least(NR, N - n);
            const int16_t *panel = w.integers + n * even(K) + k * NR;
            float begun[NR] = {0};
            for (long j = 0; p->bias && j < width; j++) begun[j] = p->bias[n + j];
            const float *start = k || p->then.onto ? NULL : begun;
            for (long r = 0; r < rows && last && p->then.times; r++) __builtin_prefetch(p->then.times + (m + r) * N + n);
            for (long r = 0; r < rows; r += MR) {
                long some = least(MR, rows - r);
                float part[MR * NR], *to = y + r * N + n, *into = width == NR ? to : part;
                for (long i = 0; i < some && width < NR && !start; i++)
                    memcpy(part + i * NR, to + i * N, sizeof(float) * width);
                TIMES[some]((const pair *)a + r * pairs, pairs, of_a + r, panel, of_w + n, pairs, into,
                            width == NR ? N : NR, start);
                for (long i = 0; i < some && width < NR; i++) memcpy(to + i * N, part + i * NR, sizeof(float) * width);
            }
            if (last && (p->then.gelu || p->then.times)) finish(p->then, y, N, m, rows, n, n + width);
        }
    }
    if (p->changes) change_rows(p->changes, x, y, m, rows, N, K);
    if (p->then.slope) __builtin_ia32_sfence(); /* what was put away is there before the thread says that it is done */
}

void int16_products(const int16_product *products, int count, long M) {
    if (M < 1) return;
    long work = 0;
    for (int i = 0; i < count; i++) work += M * products[i].N * products[i].K;
    long threads = work > WORTH ? omp_get_max_threads() : 1, turns = (M + BLOCK * threads - 1) / (BLOCK * threads);
    long rows = ((M + turns * threads - 1) / (turns * threads) + MR - 1) / MR * MR;
#pragma omp parallel if (threads > 1)
    {
        /* What is passed on takes the place of the thread's first rows, and stays in the cache. No later block is larger than
           the first one: in the order of `monotonic` the last of all, which may be smaller, is also a thread's last. */
        long first = -1;
#pragma omp for schedule(monotonic : dynamic)
        for (long m = 0; m < M; m += rows) {
            if (first < 0) first = m;
            for (const int16_product *p = products; p < products + count; p++) {
                long from = p > products && p[-1].passing ? first : m, to = p->passing ? first : m;
                block_of(p, p->x + from * p->K, p->y + to * p->N, m, least(rows, M - m), p > products && p->x == p[-1].x);
            }
        }
    }
}
