/* A vector of numbers as the kernels compute with it, and what its two widths have different instructions for: eight numbers
   with AVX2, sixteen with AVX-512. The sources are built once for each (building.py). */

#ifndef PEFTLAB_LANES_H
#define PEFTLAB_LANES_H

#include <immintrin.h>
#include <math.h>
#include <stdint.h>

#define INLINE static inline __attribute__((always_inline))

#ifdef __AVX512F__
enum { LANES = 16 };
#define ACCUMULATORS 24 /* of 32 registers */
#else
enum { LANES = 8 };
#define ACCUMULATORS 12 /* of 16 */
#endif

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef float quad __attribute__((vector_size(16), aligned(4), may_alias));
typedef float eight __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t order __attribute__((vector_size(32)));

INLINE vec load(const float *p) { return *(const vec *)p; }
INLINE void store(float *p, vec v) { *(vec *)p = v; }

INLINE float sum_of_eight(eight v) { return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7])); }

/* The sums over four vectors of eight: pairs of neighbours, twice, then the two halves. */
INLINE quad sums_of_eight(eight a, eight b, eight c, eight d) {
    eight two = _mm256_hadd_ps(a, b), other = _mm256_hadd_ps(c, d);
    eight four = _mm256_hadd_ps(two, other);
    return (quad){four[0], four[1], four[2], four[3]} + (quad){four[4], four[5], four[6], four[7]};
}

#ifdef __AVX512F__

INLINE vec all(float s) { return _mm512_set1_ps(s); }
INLINE vec larger(vec a, vec b) { return _mm512_max_ps(a, b); }
INLINE vec smaller(vec a, vec b) { return _mm512_min_ps(a, b); }
INLINE vec where_less(vec a, vec b, vec yes, vec no) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), no, yes);
}
INLINE int any_less(vec a, vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ) != 0; }
/* 1 / v of v > 0 to a unit or two in the last place: a guess of 14 bits, once bettered by Newton, which needs it to be finite. */
INLINE vec inverse_of(vec v) {
    v = smaller(v, all(1e30f));
    vec guess = _mm512_rcp14_ps(v);
    return guess * (all(2.0f) - v * guess);
}
INLINE eight halves(vec v) { return _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1)); }
INLINE float sum(vec v) { return sum_of_eight(halves(v)); }
INLINE quad sums(vec a, vec b, vec c, vec d) { return sums_of_eight(halves(a), halves(b), halves(c), halves(d)); }
/* The largest number of a vector, in all its lanes. */
INLINE vec largest(vec v) { return all(_mm512_reduce_max_ps(v)); }
INLINE ivec whole_numbers(const uint8_t *bytes) { return (ivec)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)bytes)); }
INLINE void put_past_caches(float *p, vec v) { _mm512_stream_ps(p, v); }
INLINE ivec nearest_of(vec v) { return (ivec)_mm512_cvtps_epi32(v); }
/* Two vectors as integers of 16 bits. */
INLINE void store_rounded(int16_t *to, vec low, vec high) {
    _mm256_storeu_si256((__m256i *)to, _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(low)));
    _mm256_storeu_si256((__m256i *)(to + LANES), _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(high)));
}
/* sums + both products of each pair of such integers */
INLINE ivec add_products(ivec sums, ivec a, ivec b) { return (ivec)_mm512_dpwssd_epi32((__m512i)sums, (__m512i)a, (__m512i)b); }

#else

INLINE vec all(float s) { return _mm256_set1_ps(s); }
INLINE vec larger(vec a, vec b) { return _mm256_max_ps(a, b); }
INLINE vec smaller(vec a, vec b) { return _mm256_min_ps(a, b); }
INLINE vec where_less(vec a, vec b, vec yes, vec no) {
    ivec where = a < b;
    return (vec)(((ivec)yes & where) | ((ivec)no & ~where));
}
INLINE int any_less(vec a, vec b) { return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_LT_OQ)); }
INLINE vec inverse_of(vec v) { return all(1.0f) / v; }
INLINE float sum(vec v) { return sum_of_eight(v); }
INLINE quad sums(vec a, vec b, vec c, vec d) { return sums_of_eight(a, b, c, d); }
/* The largest number of a vector, in all its lanes. */
INLINE vec largest(vec v) {
    v = larger(v, __builtin_shuffle(v, (ivec){4, 5, 6, 7, 0, 1, 2, 3}));
    v = larger(v, __builtin_shuffle(v, (ivec){2, 3, 0, 1, 6, 7, 4, 5}));
    return larger(v, __builtin_shuffle(v, (ivec){1, 0, 3, 2, 5, 4, 7, 6}));
}
INLINE ivec whole_numbers(const uint8_t *bytes) { return (ivec)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)bytes)); }
INLINE void put_past_caches(float *p, vec v) { _mm256_stream_ps(p, v); }
INLINE ivec nearest_of(vec v) { return (ivec)_mm256_cvtps_epi32(v); }
INLINE void store_rounded(int16_t *to, vec low, vec high) {
    __m256i both = _mm256_packs_epi32(_mm256_cvtps_epi32(low), _mm256_cvtps_epi32(high));
    _mm256_storeu_si256((__m256i *)to, _mm256_permute4x64_epi64(both, 0xd8)); /* halves were packed by turns */
}
INLINE ivec add_products(ivec sums, ivec a, ivec b) { return sums + (ivec)_mm256_madd_epi16((__m256i)a, (__m256i)b); }

#endif

/* Past the caches, which need not be filled with what nobody reads soon. */
INLINE void put_away(float *p, vec v) {
    if ((uintptr_t)p % sizeof(vec))
        store(p, v);
    else
        put_past_caches(p, v);
}

#endif
