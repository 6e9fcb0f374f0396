/* A product with a frozen matrix in 16-bit integers (int16.c). */

#ifndef PEFTLAB_INT16_H
#define PEFTLAB_INT16_H

#include "after.h"

/* Bytes of the panels of a matrix with so many rows and columns. */
long int16_size(long rows, long columns);

/* w [N, K] as y = x wᵀ wants it, or `across` as g w does. */
void int16_pack(const float *w, long N, long K, int across, void *packed);

/* y [M, N] = x [M, K] · the matrix that was packed + bias, which may be NULL. */
void int16_product(const float *x, const void *packed, const float *bias, float *y, long M, long N, long K, after then);

#endif
