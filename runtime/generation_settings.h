/* How the turns of a run are sampled and what ends them, beside temperature, top_p, seed and effort:
 * from the options of `hearth run`, or from the record of a session that goes on.
 *
 * The record holds them as one JSON object whose keys are the options' names with underscores; what is
 * off is left out, apart from the guards, whose numbers are always there. Thread: main.
 */
#ifndef HEARTH_RUNTIME_GENERATION_SETTINGS_H
#define HEARTH_RUNTIME_GENERATION_SETTINGS_H

#include "cli.h"
#include "engine/engine.h"

struct generation_settings {
    int64_t top_k; /* this and the next four: 0 is off */
    double min_p, repetition_penalty, presence_penalty, frequency_penalty;
    struct logit_bias bias[SAMPLING_BIAS_MAX]; /* [bias_count], an id at most once */
    int32_t bias_count;
    struct view stops[STOP_STRINGS_MAX]; /* [stop_count]; of the arguments or `recorded` */
    size_t stop_count;
    enum speculate speculation;
    int64_t draft_max; /* 0: the engine's choice */
    bool constrains_tools;
    /* Guards; 0: off, negative: the default. */
    int64_t max_thinking, max_call, max_repeats;
    /* Not part of the record: which tokens are shown with their log-probabilities. */
    bool shows_tokens;
    int64_t alternatives;
    struct json_document *recorded; /* owned; null: none */
};

/* Reads the options. Returns an exit status and has said why it is not STATUS_DONE. */
int generation_settings_read(
    const struct cli_arguments *arguments, struct generation_settings *out
);
/* Takes what the command line does not give from a record; an empty one gives nothing. Expected
 * errors: CORRUPT (naming the key), MEMORY. */
MUST_CHECK result generation_settings_restore(
    struct generation_settings *settings,
    const struct cli_arguments *arguments,
    struct view recorded,
    struct error *error
);
/* Puts numbers in the place of defaults, for a context of that many tokens. */
void generation_settings_resolve(struct generation_settings *settings, int32_t context_max);
/* The record, after generation_settings_resolve. Expected errors: MEMORY. */
MUST_CHECK result generation_settings_write(
    const struct generation_settings *settings, struct buffer *out, struct error *error
);
/* The record of a generation that writes a summary under the settings of `recorded`: neither stops nor a
 * constraint hold for it. Expected errors: CORRUPT, MEMORY. */
MUST_CHECK result
generation_settings_of_summary(struct view recorded, struct buffer *out, struct error *error);
/* Appends a record as the options that it stands for: "--top-k 40 --stop \"a b\""; what cannot be read
 * stays as it is. The text is foreign. Expected errors: MEMORY, LIMIT. */
MUST_CHECK result
generation_settings_describe(struct view recorded, struct buffer *out, struct error *error);
/* Of a request, after generation_settings_resolve; `sampling` borrows the biases. */
void generation_settings_sampling(
    const struct generation_settings *settings, struct sampling *sampling
);
struct guard_limits generation_settings_guard(const struct generation_settings *settings);
void generation_settings_deinit(struct generation_settings *settings); /* accepts zero */

#endif
