/* The numbers of the Engram hash: multipliers as NumPy's generator draws them, and primes.
 *
 * Thread: any; nothing is kept.
 */
#ifndef HEARTH_ENGINE_ENGRAM_HASH_H
#define HEARTH_ENGINE_ENGRAM_HASH_H

#include <stddef.h>
#include <stdint.h>

/* values[i] = 2 v_i + 1, v = numpy.random.default_rng(seed).integers(0, bound, count).
 * bound above 2^32, so that NumPy takes its 64-bit path. */
void engram_draw_multipliers(int64_t *values, size_t count, uint64_t seed, uint64_t bound);

/* The smallest prime that is at least `from`; from up to 2^31. */
int64_t engram_next_prime(int64_t from);

#endif
