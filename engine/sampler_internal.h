/* Shared by sampler*.c only. */
#ifndef HEARTH_ENGINE_SAMPLER_INTERNAL_H
#define HEARTH_ENGINE_SAMPLER_INTERNAL_H

#include "sampler.h"

struct sampler_history_entry {
    int32_t id;
    int32_t sampled; /* times */
    bool is_in_prompt;
};

/* The distinct tokens seen, in order of first occurrence; none of a null history. Borrowed. */
const struct sampler_history_entry *
sampler_history_entries(const struct sampler_history *history, int32_t *count);

#endif
