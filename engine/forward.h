/* One forward pass of the text backbone over the op table: rows of many sequences in, logits out.
 *
 * A step is a list of segments: consecutive tokens of one sequence. A decoder layer runs only the
 * rows that a later exact result can depend on (spec 3.13), counted from the end of the prompt,
 * which is known from the first chunk on. Encoder layers run every row from the write floor on;
 * after a cache hit, where rows before it run again for their windows alone, each runs only those
 * that the layers above still need. So how a prompt is cut into steps, what of it was cached, and
 * what else shares a step, changes no bit. Buffers are allocated once for the largest
 * step. Thread: the engine thread only.
 *
 * Drafts. The last rows of a segment may be guesses. What such a segment would overwrite (windows,
 * pending pairs) is held back until forward_keep says how many of its rows count; the others leave
 * nothing behind but entries beyond `computed`, which later rows overwrite.
 */
#ifndef HEARTH_ENGINE_FORWARD_H
#define HEARTH_ENGINE_FORWARD_H

#include "engine.h"
#include "kv_cache.h"

struct engram;
struct forward;

#define FORWARD_LOGIT_ROWS_MAX 64 /* rows of one head product; more are done in turns */

enum forward_logits {
    FORWARD_LOGITS_NONE,
    FORWARD_LOGITS_LAST, /* of the segment's last row, which must be the prompt's last */
    FORWARD_LOGITS_ALL /* of every row: WINDOW_EXACT narrows nothing; WINDOW_REPLAY gives the rows it runs */
};

/* Positions [position, position + count) of one sequence; its ids are set, its blocks reserved. A
 * sequence appears once in a step. */
struct forward_segment {
    struct kv_sequence *sequence;
    int32_t position;
    int32_t count;
    int32_t prompt_end; /* N: one past the last position of this append */
    enum forward_logits logits;
    /* WINDOW_EXACT: decoder layer l runs rows >= N - need(l), and window KV of W - 1 before them;
     * encoder layer l rows >= min(H - (E-1-l)(W-1), N - 1 - (L-1-l)(W-1)), with H the write floor,
     * and as much window KV before them. Layer E makes window KV of all rows that reach it.
     * WINDOW_REPLAY: every decoder layer runs rows >= window_floor_decoder, and the encoder what
     * these and the write floor need. */
    enum window_mode window;
    /* Encoder replay, else 0: windows of encoder layers see no position below, and all rows run. */
    int32_t window_floor_encoder;
    int32_t window_floor_decoder; /* windows of decoder layers see no position below; else 0 */
    int32_t write_floor; /* H: entries of tokens below this are there already and are kept */
    /* Of the rows, the last `drafted` are guesses: logits of all rows, nothing of a prompt (position
     * >= write_floor, no encoder floor, WINDOW_EXACT), drafted < count. After the step `computed` is
     * still `position`: forward_keep comes before anything else is done with the sequence. */
    int32_t drafted;
};

struct forward_options {
    int32_t rows_max;         /* of one step */
    int32_t sequences_max;    /* segments of one step */
    int32_t drafted_rows_max; /* all rows of segments with drafts in one step; 0: no drafts ever */
    bool exports_targets;     /* fill what forward_targets gives; model with draft stages only */
};

/* Bytes that something takes, by whose memory it is. */
struct memory_bytes {
    uint64_t device; /* of the backend; host memory too when that is what it allocates */
    uint64_t host;
};
/* What forward_create takes. */
struct memory_bytes
forward_measure(const struct model_config *config, const struct forward_options *options);

/* The largest shapes of a forward pass, for backend_open; name, threads and isa stay zero. */
void forward_backend_options(
    const struct model_config *config,
    int32_t rows_max,
    int32_t context_max,
    struct backend_options *out
);

/* Everything given is borrowed and must outlive the object; `engram` is null for a model without
 * tables. Expected errors: MEMORY. */
MUST_CHECK result forward_create(
    struct forward **out,
    const struct model *model,
    const struct engram *engram,
    struct backend *backend,
    struct kv_cache *cache,
    const struct forward_options *options,
    struct error *error
);
void forward_destroy(struct forward *forward);

/* Runs one step and advances `computed` of each sequence. `counters` [layers] are added to; may be
 * null. After a failure the caches of the step's sequences are undefined. Expected errors: DEVICE.
 */
MUST_CHECK result forward_step(
    struct forward *forward,
    const struct forward_segment *segments,
    int32_t count,
    struct layer_counters *counters,
    struct error *error
);

/* Ends the last step, which had segments with drafts: of segment s the first kept[s] rows count,
 * at least those that were no drafts. Windows, pending pairs and `computed` of its sequence are then
 * as if the others had never been there; ids are the caller's to truncate. kept[s] of a segment
 * without drafts is not read. */
void forward_keep(struct forward *forward, const int32_t *kept);

/* main_hidden of spec 3.14: what draft stages are fed with. Rows of the last step that reached all
 * target layers: the last W of a prompt, or what is left of them in this step, and every row of a
 * decode segment, drafts included (those beyond the kept ones must not be used). Valid until the
 * next step; logits may be fetched in between. */
struct forward_targets {
    const uint16_t *hidden;       /* [rows, targets * D] bf16, device-visible */
    struct row_segments segments; /* of the step: their rows and positions */
};
/* Only with exports_targets. */
void forward_targets(const struct forward *forward, struct forward_targets *out);

/* Rows with logits of the last step, in order of segments and positions. */
int32_t forward_logit_rows(const struct forward *forward);
/* Logits [count, V] FP32 of rows [first, first + count) into host memory. Expected errors: DEVICE.
 */
MUST_CHECK result forward_logits(
    struct forward *forward, int32_t first, int32_t count, float *out, struct error *error
);

#endif
