/* What is done to each number alone: dropout and GELU, with their gradients. */

#include "vector.h"

enum { WORTH = 16384 };
/* numbers that are worth a second thread */

/* Doty-Humphrey's SFC64 as NumPy has it, begun with a state: the same draws as numpy.random.SFC64 of these words. */
typedef struct {
    uint64_t a, b, c, count;
} generator;

INLINE uint64_t draw(generator *g) {
    uint64_t out = g->a + g->b + g->count++;
    g->a = g->b ^ (g->b >> 11);
    g->b = g->c + (g->c << 3);
    g->c = ((g->c << 24) | (g->c >> 40)) + out;
    return out;
}

/* 1 where a value stays, else 0: four values a draw, 16 bits each, of which the first `cut` of 65,536 are dropped. */
EXPORT void draw_kept(const uint64_t *seeds, long cut, uint8_t *keep, long n) {
    if (cut > UINT16_MAX) {
        memset(keep, 0, n);
        return;
    }
    uint16_t first = (uint16_t)cut;
    generator g = {seeds[0], seeds[1], seeds[2], 1};
    for (int i = 0; i < 12; i++) draw(&g);
    union {
        uint64_t draws[64];
        uint16_t parts[256];
    } bits;
    for (long i = 0; i < n; i += 256) {
        long count = least(256, n - i);
        for (long j = 0; 4 * j < count; j++) bits.draws[j] = draw(&g);
        for (long j = 0; j < count; j++) keep[i + j] = bits.parts[j] >= first;
    }
}

EXPORT void apply_kept(const float *x, const uint8_t *keep, float growth, float *y, long n) {
#pragma omp parallel for simd schedule(static) if (n > WORTH)
    for (long i = 0; i < n; i++) y[i] = x[i] * (float)keep[i] * growth;
}

EXPORT void gelu(const float *x, float *y, long n) {
    long whole = n / LANES * LANES;
#pragma omp parallel for schedule(static) if (n > WORTH)
    for (long i = 0; i < whole; i += LANES) store(y + i, gelu_of(load(x + i)).value);
    for (long i = whole; i < n; i++) y[i] = gelu_of(all(x[i])).value[0];
}

EXPORT void gelu_back(const float *x, const float *g, float *dx, long n) {
    long whole = n / LANES * LANES;
#pragma omp parallel for schedule(static) if (n > WORTH)
    for (long i = 0; i < whole; i += LANES) store(dx + i, load(g + i) * gelu_of(load(x + i)).slope);
    for (long i = whole; i < n; i++) dx[i] = g[i] * gelu_of(all(x[i])).slope[0];
}
