/* Changes of low rank that differ from text to text of a batch (mixed.c). */

#ifndef PEFTLAB_MIXED_H
#define PEFTLAB_MIXED_H

#include "vector.h"

/* Each member's A [rank, K], B [N, rank] and factor. Texts have T tokens; `which` of the members each has, or none where that is
   negative. `room` is for a token's `most` numbers, the largest rank, of all tokens. */
typedef struct {
    const float *const *A, *const *B;
    const long *ranks;
    const float *factors;
    const long *which;
    long T, most;
    float *room;
} changes;

/* The tokens [from, from + rows) of all, the first of which x and y begin with. */
void change_rows(const changes *c, const float *x, float *y, long from, long rows, long N, long K);
void add_changes(const changes *c, const float *x, float *y, long M, long N, long K);

#endif
