/* Checkpoints of random weights in the official layout, of any size: kernels and plans are measured
 * at the release's dimensions without the release's weights.
 *
 * Fewer layers than the configuration has: the last KV source stays, then the first layer of each
 * kind (window, Full, Reuse and Reindex of each ratio), then layers evenly spread over the rest; ids
 * are renumbered, Engram, draft stages and vision left out. No tokenizer is written. Values are a
 * function of seed, tensor and place alone, of a size that keeps activations in range. Thread: any.
 */
#ifndef HEARTH_ENGINE_MODEL_SYNTH_H
#define HEARTH_ENGINE_MODEL_SYNTH_H

#include "base/bytes.h"

struct model_synth_options {
    struct view config;    /* text of an official config.json */
    const char *directory; /* to be created, or empty */
    int32_t layers;        /* 0: all */
    int32_t experts;       /* routed, of each layer; 0: all */
    int64_t positions;     /* max_position_embeddings; 0: as it is */
    uint64_t seed;
    int32_t threads; /* shards written at a time; 0: 1 */
    /* Null, or called now and then on the caller's thread. */
    void (*progress)(void *context, uint64_t bytes_done, uint64_t bytes_total);
    void *progress_context;
};

struct model_synth_report {
    int32_t layers, experts;
    size_t tensors, shards;
    uint64_t bytes; /* of all shards */
};

/* Expected errors: INVALID_INPUT (a configuration or number that does not do, a directory that is
 * not empty), LIMIT (disk too small, with the bytes), IO. What was written before a failure stays. */
MUST_CHECK result model_synth(
    const struct model_synth_options *options, struct model_synth_report *out, struct error *error
);

/* The configuration that model_synth writes. */
MUST_CHECK result model_synth_config(
    const struct model_synth_options *options, struct buffer *out, struct error *error
);

#endif
