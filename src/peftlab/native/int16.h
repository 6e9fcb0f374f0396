/* Products with packed matrices in 16-bit integers (int16.c). */

#ifndef PEFTLAB_INT16_H
#define PEFTLAB_INT16_H

#include "after.h"
#include "mixed.h"

/* Bytes of the panels of a matrix with so many rows and columns. */
long int16_size(long rows, long columns);

/* w [N, K] as y = x wᵀ wants it, or `across` as g w does. */
void int16_pack(const float *w, long N, long K, int across, void *packed);

/* y [M, N] = x [M, K] · a matrix of integers + bias, which may be NULL. `passing`: y, which the next product has as its x, is of no
   use to anyone else, and is lost. `changes`, where they are not NULL,
   are added last, and so not beside `gelu` or `times`. */
typedef struct {
    const float *x;
    const panels *w;
    const float *bias;
    float *y;
    long N, K;
    after then;
    int passing;
    const changes *changes;
} int16_product;

/* Some products of M rows, each row through all of them while it is in the cache: one may need what those before it gave. */
void int16_products(const int16_product *products, int count, long M);

#endif
