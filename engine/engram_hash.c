/* NumPy's SeedSequence, PCG64 (XSL-RR 128/64) and bounded integers (Lemire), to the bit; the
 * constants below are those of numpy/random/bit_generator.pyx and of the PCG paper. */
#include "engram_hash.h"

#include "base/result.h"

#define POOL_WORDS 4

__extension__ typedef unsigned __int128 wide;

struct generator {
    wide state;
    wide increment;
};

static uint32_t hash_mix(uint32_t value, uint32_t *constant, uint32_t multiplier) {
    value ^= *constant;
    *constant *= multiplier;
    value *= *constant;
    return value ^ value >> 16;
}

/* SeedSequence(seed).generate_state(4, uint64). */
static void spread_seed(uint64_t seed, uint64_t out[4]) {
    uint32_t pool[POOL_WORDS] = {0};
    uint32_t constant = 0x43B0D7E5U;
    for (size_t i = 0; i < POOL_WORDS; i++) {
        uint32_t word = i < 2 ? (uint32_t)(seed >> 32 * i) : 0;
        pool[i] = hash_mix(word, &constant, 0x931E8875U);
    }
    for (size_t from = 0; from < POOL_WORDS; from++) {
        for (size_t to = 0; to < POOL_WORDS; to++) {
            if (from != to) {
                uint32_t hashed = hash_mix(pool[from], &constant, 0x931E8875U);
                uint32_t mixed = 0xCA01F9DDU * pool[to] - 0x4973F715U * hashed;
                pool[to] = mixed ^ mixed >> 16;
            }
        }
    }
    constant = 0x8B51F9DDU;
    for (size_t i = 0; i < 4; i++) {
        uint64_t low = hash_mix(pool[2 * i % POOL_WORDS], &constant, 0x58F38DEDU);
        uint64_t high = hash_mix(pool[(2 * i + 1) % POOL_WORDS], &constant, 0x58F38DEDU);
        out[i] = high << 32 | low;
    }
}

static void step(struct generator *generator) {
    const wide multiplier = (wide)0x2360ED051FC65DA4U << 64 | 0x4385DF649FCCF645U;
    generator->state = generator->state * multiplier + generator->increment;
}

static struct generator seeded(uint64_t seed) {
    uint64_t words[4];
    spread_seed(seed, words);
    struct generator generator = {0, 0};
    generator.increment = ((wide)words[2] << 64 | words[3]) << 1 | 1;
    step(&generator);
    generator.state += (wide)words[0] << 64 | words[1];
    step(&generator);
    return generator;
}

static uint64_t next(struct generator *generator) {
    step(generator);
    uint64_t folded = (uint64_t)(generator->state >> 64) ^ (uint64_t)generator->state;
    unsigned turn = (unsigned)(generator->state >> 122);
    return folded >> turn | folded << (-turn & 63U);
}

void engram_draw_multipliers(int64_t *values, size_t count, uint64_t seed, uint64_t bound) {
    ASSERT(bound > (uint64_t)1 << 32 && bound <= (uint64_t)1 << 62);
    struct generator generator = seeded(seed);
    uint64_t threshold = (UINT64_MAX - (bound - 1)) % bound;
    for (size_t i = 0; i < count; i++) {
        wide product = (wide)next(&generator) * bound;
        while ((uint64_t)product < threshold) {
            product = (wide)next(&generator) * bound;
        }
        values[i] = (int64_t)(2 * (uint64_t)(product >> 64) + 1);
    }
}

static bool is_prime(int64_t number) {
    if (number < 4 || number % 2 == 0) {
        return number == 2 || number == 3;
    }
    for (int64_t divisor = 3; divisor * divisor <= number; divisor += 2) {
        if (number % divisor == 0) {
            return false;
        }
    }
    return true;
}

int64_t engram_next_prime(int64_t from) {
    ASSERT(from <= (int64_t)1 << 31);
    int64_t candidate = from < 2 ? 2 : from;
    while (!is_prime(candidate)) {
        candidate += 1;
    }
    return candidate;
}
