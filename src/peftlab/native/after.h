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

/* The columns [from, to) of y's rows from m on are complete. */
INLINE void finish(after then, float *y, long N, long m, long rows, long from, long to) {
    for (long r = m; r < m + rows; r++) {
        long i = r * N + from, end = r * N + to;
        if (then.times)
            for (; i < end; i++) y[i] *= then.times[i];
        for (; i + LANES <= end; i += LANES) {
            activation a = gelu_of(load(y + i));
            store(y + i, a.value);
            if (then.slope) put_away(then.slope + i, a.slope);
        }
        for (; i < end; i++) {
            activation a = gelu_of(all(y[i]));
            y[i] = a.value[0];
            if (then.slope) then.slope[i] = a.slope[0];
        }
    }
}

#endif
