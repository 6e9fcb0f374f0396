/* Where a sublayer's output meets its input: norm(x + dropout(y)), and its gradients; and the norm alone.

   Each row of D numbers is gone through while it is in the cache, where torch writes and reads it three times.

   Shapes: x, y and all that has their size [M, D], scale and shift [D], stats [M, 2] the mean and 1/√(variance + ε). */

#include "vector.h"

enum { WORTH = 16384 };
/* numbers that are worth a second thread */

INLINE void norm_row(const float *x, const float *scale, const float *shift, float eps, float *y, float *stats, long D) {
    float mean = 0.0f, variance = 0.0f;
#pragma omp simd reduction(+ : mean)
    for (long i = 0; i < D; i++) mean += x[i];
    mean /= (float)D;
#pragma omp simd reduction(+ : variance)
    for (long i = 0; i < D; i++) variance += (x[i] - mean) * (x[i] - mean);
    float factor = 1.0f / sqrtf(variance / (float)D + eps);
#pragma omp simd
    for (long i = 0; i < D; i++) y[i] = (x[i] - mean) * factor * scale[i] + shift[i];
    if (stats) stats[0] = mean, stats[1] = factor;
}

/* y may be x. */
EXPORT void normalise(const float *x, const float *scale, const float *shift, float eps, float *y, long M, long D) {
#pragma omp parallel for schedule(static) if (M * D > WORTH)
    for (long m = 0; m < M; m++) norm_row(x + m * D, scale, shift, eps, y + m * D, NULL, D);
}

/* sum = x + y · keep · growth, out = norm(sum). y may be out. Without a gradient to come `stats` is NULL, and sum
   may be out, too; without dropout `keep` is NULL. */
EXPORT void join(const float *x, const float *y, const uint8_t *keep, float growth, const float *scale,
                 const float *shift, float eps, float *sum, float *stats, float *out, long M, long D) {
#pragma omp parallel for schedule(static) if (M * D > WORTH)
    for (long m = 0; m < M; m++) {
        long at = m * D;
        if (keep)
#pragma omp simd
            for (long i = at; i < at + D; i++) sum[i] = x[i] + y[i] * (float)keep[i] * growth;
        else
#pragma omp simd
            for (long i = at; i < at + D; i++) sum[i] = x[i] + y[i];
        norm_row(sum + at, scale, shift, eps, out + at, stats ? stats + 2 * m : NULL, D);
    }
}

/* With h = (sum − mean) · factor and g · scale the gradient of h, that of the sum is
   (g·scale − mean(g·scale) − h · mean(g·scale·h)) · factor; y's is the same where y was kept. */
EXPORT void join_back(const float *g, const float *sum, const float *stats, const float *scale, const uint8_t *keep,
                      float growth, float *dx, float *dy, long M, long D) {
#pragma omp parallel for schedule(static) if (M * D > WORTH)
    for (long m = 0; m < M; m++) {
        const float *gm = g + m * D, *sm = sum + m * D;
        float *to = dx + m * D, mean = stats[2 * m], factor = stats[2 * m + 1], first = 0.0f, second = 0.0f;
#pragma omp simd reduction(+ : first, second)
        for (long i = 0; i < D; i++) {
            float gs = gm[i] * scale[i];
            first += gs, second += gs * (sm[i] - mean) * factor;
        }
        first /= (float)D, second /= (float)D;
#pragma omp simd
        for (long i = 0; i < D; i++) to[i] = (gm[i] * scale[i] - first - (sm[i] - mean) * factor * second) * factor;
        if (keep) {
            const uint8_t *kept = keep + m * D;
            float *other = dy + m * D;
#pragma omp simd
            for (long i = 0; i < D; i++) other[i] = to[i] * (float)kept[i] * growth;
        }
    }
}

/* The gradients of scale and shift, sums over the rows of g · h and of g; one that is NULL is not wanted. */
EXPORT void join_affine(const float *g, const float *sum, const float *stats, float *dscale, float *dshift, long M, long D) {
    enum { WIDE = 64 };
#pragma omp parallel for schedule(static) if (M * D > WORTH)
    for (long from = 0; from < D; from += WIDE) {
        float of_scale[WIDE] = {0}, of_shift[WIDE] = {0};
        long wide = least(WIDE, D - from);
        for (long m = 0; m < M; m++) {
            const float *gm = g + m * D + from, *sm = sum + m * D + from;
            float mean = stats[2 * m], factor = stats[2 * m + 1];
#pragma omp simd
            for (long i = 0; i < wide; i++) of_scale[i] += gm[i] * (sm[i] - mean) * factor, of_shift[i] += gm[i];
        }
        if (dscale) memcpy(dscale + from, of_scale, sizeof(float) * wide);
        if (dshift) memcpy(dshift + from, of_shift, sizeof(float) * wide);
    }
}
