/* See replay_quality.h. */
#include "replay_quality.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define CHUNK      512
#define WINDOW_MAX 128 /* of the models that tests run */

const char *const replay_variant_names[REPLAY_VARIANTS] = {
    [REPLAY_ENCODER] = "encoder replay",
    [REPLAY_DECODER] = "decoder replay",
    [REPLAY_BOTH] = "both",
    [REPLAY_LAST_WINDOW] = "last W only",
};

int32_t replay_rows_max(int32_t suffix_max) {
    int32_t needed = suffix_max + WINDOW_MAX;
    return needed > CHUNK ? needed : CHUNK;
}

void replay_base_advance(
    struct bench *bench, struct replay_base *base, const int32_t *ids, int32_t hit
) {
    int32_t start = hit - bench->config->window;
    assert_true(start > 0);
    if (base->at == NULL) {
        base->at = kv_cache_acquire(&bench->cache);
        assert_non_null(base->at);
    }
    struct kv_sequence *at = base->at;
    if (at->computed <= start) {
        if (base->behind != NULL) {
            kv_cache_release(&bench->cache, base->behind);
        }
        bench_append(bench, at, ids + at->length, start - at->length);
        bench_run(bench, at, start, CHUNK, false, NULL, NULL);
        base->behind = kv_cache_fork(&bench->cache, at);
        assert_non_null(base->behind);
    } else { /* the next hit is less than a window away */
        bench_append(bench, base->behind, ids + base->behind->length, start - base->behind->length);
        bench_run(bench, base->behind, start, CHUNK, false, NULL, NULL);
    }
    bench_append(bench, at, ids + at->length, hit - at->length);
    bench_run(bench, at, hit, CHUNK, false, NULL, NULL);
}

void replay_base_release(struct bench *bench, struct replay_base *base) {
    kv_cache_release(&bench->cache, base->behind);
    kv_cache_release(&bench->cache, base->at);
    *base = (struct replay_base){0};
}

static void run_segment(struct bench *bench, const struct forward_segment *segment, float *logits) {
    MUST(forward_step(bench->forward, segment, 1, NULL, error));
    int32_t rows = forward_logit_rows(bench->forward);
    MUST(forward_logits(bench->forward, 0, rows, logits, error));
}

static struct kv_sequence *fork_of(struct bench *bench, const struct kv_sequence *parent) {
    struct kv_sequence *sequence = kv_cache_fork(&bench->cache, parent);
    assert_non_null(sequence);
    return sequence;
}

struct kv_sequence *replay_exact(
    struct bench *bench,
    const struct replay_base *base,
    const struct replay_case *chosen,
    float *logits
) {
    struct kv_sequence *sequence = fork_of(bench, base->at);
    bench_append(bench, sequence, chosen->ids + chosen->hit, chosen->length - chosen->hit);
    bench_run(bench, sequence, chosen->length, CHUNK, false, logits, NULL);
    return sequence;
}

/* Windows are lost at the hit: rings are filled with rubbish, so that reading below a floor shows. */
static struct kv_sequence *run_encoder_replay(
    struct bench *bench,
    const struct replay_base *base,
    const struct replay_case *chosen,
    bool decoder,
    float *logits
) {
    int32_t window = bench->config->window;
    struct kv_sequence *sequence = fork_of(bench, base->at);
    size_t rings = (size_t)bench->config->layers * bench->cache.layout.ring_bytes;
    bench_fill(bench, sequence->state, 0x5a, rings);
    sequence->computed = chosen->hit - window;
    sequence->kept = chosen->hit; /* shared with the base: not to be written */
    bench_append(bench, sequence, chosen->ids + chosen->hit, chosen->length - chosen->hit);
    struct forward_segment segment = {
        .sequence = sequence,
        .position = chosen->hit - window,
        .count = chosen->length - chosen->hit + window,
        .prompt_end = chosen->length,
        .logits = FORWARD_LOGITS_LAST,
        .window = decoder ? WINDOW_REPLAY : WINDOW_EXACT,
        .window_floor_encoder = chosen->hit - window,
        .window_floor_decoder = (decoder ? chosen->length : chosen->hit) - window,
        .write_floor = chosen->hit,
    };
    run_segment(bench, &segment, logits);
    sequence->decoder_floor = segment.window_floor_decoder;
    return sequence;
}

static struct kv_sequence *run_decoder_replay(
    struct bench *bench,
    const struct replay_base *base,
    const struct replay_case *chosen,
    float *logits
) {
    struct kv_sequence *sequence = fork_of(bench, base->behind);
    int32_t from = sequence->computed;
    bench_append(bench, sequence, chosen->ids + from, chosen->length - from);
    struct forward_segment segment = {
        .sequence = sequence,
        .position = from,
        .count = chosen->length - from,
        .prompt_end = chosen->length,
        .logits = FORWARD_LOGITS_LAST,
        .window = WINDOW_REPLAY,
        .window_floor_decoder = chosen->length - bench->config->window,
        .write_floor = from,
    };
    run_segment(bench, &segment, logits);
    sequence->decoder_floor = segment.window_floor_decoder;
    return sequence;
}

struct kv_sequence *replay_variant_run(
    struct bench *bench,
    const struct replay_base *base,
    const struct replay_case *chosen,
    enum replay_variant variant,
    float *logits
) {
    int32_t window = bench->config->window;
    if (variant == REPLAY_DECODER) {
        return run_decoder_replay(bench, base, chosen, logits);
    }
    if (variant != REPLAY_LAST_WINDOW) {
        return run_encoder_replay(bench, base, chosen, variant == REPLAY_BOTH, logits);
    }
    struct kv_sequence *cut = bench_sequence(bench, chosen->ids + chosen->length - window, window);
    bench_run(bench, cut, window, CHUNK, false, logits, NULL);
    return cut;
}

/* Runs the text after the prompt; `logits` [rows, V]. */
static void follow(
    struct bench *bench,
    struct kv_sequence *sequence,
    const struct replay_case *chosen,
    float *logits
) {
    if (chosen->rows > 0) {
        bench_append(bench, sequence, chosen->ids + chosen->length, chosen->rows);
        bench_run(bench, sequence, sequence->length, chosen->rows, true, logits, NULL);
    }
    kv_cache_release(&bench->cache, sequence);
}

void replay_measure(
    struct bench *bench,
    const struct replay_base *base,
    const struct replay_case *chosen,
    struct logit_difference totals[REPLAY_VARIANTS]
) {
    assert_int_equal(base->at->computed, chosen->hit);
    size_t vocabulary = (size_t)bench->config->vocabulary;
    size_t rows = (size_t)chosen->rows + 1;
    float *exact = calloc(2 * rows * vocabulary, sizeof *exact);
    assert_non_null(exact);
    float *other = exact + rows * vocabulary;
    follow(bench, replay_exact(bench, base, chosen, exact), chosen, exact + vocabulary);
    for (int v = 0; v < REPLAY_VARIANTS; v++) {
        struct kv_sequence *sequence =
            replay_variant_run(bench, base, chosen, (enum replay_variant)v, other);
        follow(bench, sequence, chosen, other + vocabulary);
        for (size_t i = 0; i < rows; i++) {
            logits_compare(
                &totals[v],
                other + i * vocabulary,
                exact + i * vocabulary,
                bench->config->vocabulary
            );
        }
    }
    free(exact);
}
