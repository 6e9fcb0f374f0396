/* What becomes of a block of a product while it is in the cache. */

#ifndef PEFTLAB_AFTER_H
#define PEFTLAB_AFTER_H

#include "vector.h"

/* With `onto` the product is added to what y holds; then y becomes GELU of itself, and its slope there goes to `slope` unless
   that is NULL; or y is multiplied by `times`. */
typedef struct {
    int onto, gelu;
    float *slope;
    const float *times;
} after;

/* The columns [from, to) of some rows are complete: y's, the first of which is row m of all. */
INLINE void finish(after then, float *y, long N, long m, long rows, long from, long to) {
    for (long r = 0; r < rows; r++, y += N) {
        float *slope = then.slope ? then.slope + (m + r) * N : NULL;
        const float *times = then.times ? then.times + (m + r) * N : NULL;
        long i = from;
        if (times)
            for (; i < to; i++) y[i] *= times[i];
        for (; i + LANES <= to; i += LANES) {
            activation a = gelu_of(load(y + i));
            store(y + i, a.value);
            if (slope) put_away(slope + i, a.slope);
        }
        for (; i < to; i++) {
            activation a = gelu_of(all(y[i]));
            y[i] = a.value[0];
            if (slope) slope[i] = a.slope[0];
        }
    }
}

#endif
