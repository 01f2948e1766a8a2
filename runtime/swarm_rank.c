/* See swarm_rank.h. */
#include "swarm_rank.h"

#include "engine/tokenizer.h"
#include <ctype.h>
#include <math.h>

#define NO_OPINION 0.5

struct swarm_rank {
    struct swarm_rank_options options;
    struct token_list question; /* of the context at hand */
    struct loop_generation generation;
    size_t at; /* context that is asked */
    double *scores;
    size_t opinions;
    int64_t tokens;
    bool is_cancelled;
};

/* ---- one answer -------------------------------------------------------------------------------- */

/* A small vocabulary has only a word's beginning in one token. */
static bool begins(struct view bytes, const char *word) {
    while (bytes.length > 0 && isspace(bytes.data[0])) {
        bytes = view_slice(bytes, 1, SIZE_MAX);
    }
    for (size_t i = 0; i < bytes.length; i++) {
        if (word[i] == '\0' || tolower(bytes.data[i]) != word[i]) {
            return false;
        }
    }
    return bytes.length > 0;
}

static void
weigh(const struct tokenizer *tokenizer, int32_t id, float logprob, double *yes, double *no) {
    struct view bytes = tokenizer_bytes(tokenizer, id);
    *yes += begins(bytes, "yes") ? exp((double)logprob) : 0.0;
    *no += begins(bytes, "no") ? exp((double)logprob) : 0.0;
}

bool swarm_rank_score(
    const struct tokenizer *tokenizer, const struct engine_event *token, double *out
) {
    double yes = 0.0;
    double no = 0.0;
    for (int32_t i = 0; i < token->alternative_count; i++) {
        const struct token_alternative *other = &token->alternatives[i];
        weigh(tokenizer, other->id, other->logprob, &yes, &no);
    }
    if (token->alternative_count == 0) {
        weigh(tokenizer, token->token, token->logprob, &yes, &no);
        /* Of one token alone the rest stands for the other word. */
        yes = no > 0.0 ? 1.0 - no : yes;
        no = yes > 0.0 ? 1.0 - yes : no;
    }
    double sum = yes + no;
    if (!(sum > 0.0)) {
        return false;
    }
    *out = yes / sum;
    return true;
}

/* ---- one context after the other --------------------------------------------------------------- */

static void came(void *context, const struct engine_event *event);

static result
encode(struct swarm_rank *rank, const struct swarm_rank_context *context, struct error *error) {
    /* Only what is behind the model's own turn is rendered. */
    const struct chat_message messages[] = {
        {.role = CHAT_USER},
        {.role = CHAT_ASSISTANT},
        {.role = CHAT_USER, .content = view_of_text(SWARM_RANK_QUESTION)},
    };
    const struct chat_request request = {
        .messages = messages,
        .message_count = COUNT_OF(messages),
        .from = 2,
        .end_is_missing = context->end_is_missing,
        .options = {.effort = CHAT_EFFORT_OFF},
    };
    token_list_clear(&rank->question);
    return chat_encode(&rank->question, rank->options.encoder, &request, error);
}

static void drop_fork(struct swarm_rank *rank) {
    const struct engine_ports *engine = &rank->options.engine;
    if (rank->generation.sequence != 0) {
        engine->tell(engine->context, rank->generation.sequence, SEQUENCE_ABANDONED, 0);
        engine->destroy(engine->context, rank->generation.sequence);
        rank->generation.sequence = 0;
    }
}

static result ask(struct swarm_rank *rank, struct error *error) {
    const struct swarm_rank_options *options = &rank->options;
    const struct swarm_rank_context *context = &options->contexts[rank->at];
    const struct engine_ports *engine = &options->engine;
    TRY(encode(rank, context, error));
    TRY(engine->fork(engine->context, context->sequence, &rank->generation.sequence, error));
    const struct generation_request request = {
        .sequence = rank->generation.sequence,
        .append = rank->question.ids,
        .append_count = rank->question.count,
        .sampling = {.top_p = 1.0, .alternatives = SAMPLING_ALTERNATIVES_MAX},
        .tokens_max = 1,
        .window = options->window,
        .speculation = SPECULATE_OFF,
    };
    rank->generation.engine = *engine;
    rank->generation.event = came;
    rank->generation.context = rank;
    result started = loop_generate(options->loop, &rank->generation, &request, error);
    if (is_failed(started)) {
        drop_fork(rank);
    }
    return started;
}

/* The next context that is there; false: none is left. */
static bool next(struct swarm_rank *rank) {
    while (rank->at < rank->options.count && rank->options.contexts[rank->at].sequence == 0) {
        rank->scores[rank->at++] = 0.0; /* nothing speaks for it */
    }
    return rank->at < rank->options.count;
}

static void end(struct swarm_rank *rank, bool has_failed) {
    bool has_scores = !has_failed && !rank->is_cancelled && rank->opinions > 0;
    rank->options.done(rank->options.context, has_scores ? rank->scores : NULL, rank->tokens);
}

static void came(void *context, const struct engine_event *event) {
    struct swarm_rank *rank = context;
    if (event->type == ENGINE_TOKEN) {
        double score = NO_OPINION;
        rank->tokens++;
        rank->opinions += swarm_rank_score(rank->options.tokenizer, event, &score) ? 1 : 0;
        rank->scores[rank->at] = score;
    }
    if (event->type != ENGINE_FINISHED) {
        return;
    }
    drop_fork(rank);
    bool has_failed = event->reason == FINISH_ERROR;
    rank->at++;
    if (has_failed || rank->is_cancelled || !next(rank)) {
        end(rank, has_failed);
    } else if (is_failed(ask(rank, NULL))) {
        end(rank, true);
    }
}

/* ---- life -------------------------------------------------------------------------------------- */

void swarm_rank_destroy(struct swarm_rank *rank) {
    if (rank != NULL) {
        token_list_deinit(&rank->question);
        free(rank->scores);
        free(rank);
    }
}

static void rank_cleanup(struct swarm_rank **rank) {
    swarm_rank_destroy(*rank);
}

result swarm_rank_start(
    struct swarm_rank **out, const struct swarm_rank_options *options, struct error *error
) {
    if (options->tokens_max < (int64_t)options->count) {
        FAIL(
            error,
            LIMIT,
            "a ranking of %zu results needs a token for each, and %lld are left",
            options->count,
            (long long)options->tokens_max
        );
    }
    CLEANUP(rank_cleanup) struct swarm_rank *rank = calloc(1, sizeof *rank);
    if (rank == NULL) {
        FAIL(error, MEMORY, "no memory for a ranking");
    }
    rank->options = *options;
    token_list_init(&rank->question, TOKEN_LIST_CEILING_DEFAULT);
    rank->scores = calloc(options->count + 1, sizeof *rank->scores);
    if (rank->scores == NULL) {
        FAIL(error, MEMORY, "no memory for %zu scores", options->count);
    }
    for (size_t i = 0; i < options->count; i++) {
        rank->scores[i] = NO_OPINION;
    }
    if (!next(rank)) {
        FAIL(error, LIMIT, "no context is left to rank");
    }
    TRY(ask(rank, error));
    *out = TAKE(rank);
    return OK;
}

void swarm_rank_cancel(struct swarm_rank *rank) {
    const struct engine_ports *engine = &rank->options.engine;
    rank->is_cancelled = true;
    if (rank->generation.sequence != 0) {
        engine->cancel(engine->context, rank->generation.sequence);
    }
}
