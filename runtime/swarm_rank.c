/* See swarm_rank.h. */
#include "swarm_rank.h"

#include "engine/tokenizer.h"
#include <math.h>

#define FORCED_BIAS 100.0F /* the largest that there is */

struct word {
    const char *text;
    bool is_yes;
    int32_t id; /* its first token: a small vocabulary has no more of it in one */
    bool is_known;
    double probability; /* in the context at hand */
};

struct swarm_rank {
    struct swarm_rank_options options;
    struct token_list question; /* of the context at hand */
    struct loop_generation generation;
    struct word words[SWARM_RANK_WORDS];
    size_t word; /* that is forced */
    size_t at;   /* context that is asked */
    double *scores;
    int64_t tokens;
    bool is_cancelled;
};

/* ---- one answer -------------------------------------------------------------------------------- */

static result find_words(struct swarm_rank *rank, struct error *error) {
    static const struct word words[SWARM_RANK_WORDS] = {
        {.text = "yes", .is_yes = true},
        {.text = "no"},
        {.text = "Yes", .is_yes = true},
        {.text = "No"},
    };
    CLEANUP(token_list_deinit) struct token_list ids;
    token_list_init(&ids, TOKEN_LIST_CEILING_DEFAULT);
    memcpy(rank->words, words, sizeof words);
    for (size_t i = 0; i < SWARM_RANK_WORDS; i++) {
        struct view text = view_of_text(words[i].text);
        token_list_clear(&ids);
        TRY(tokenizer_encode(rank->options.tokenizer, text, TOKENIZER_MARKERS_OFF, &ids, error));
        ASSERT(ids.count > 0);
        rank->words[i].id = ids.ids[0];
    }
    return OK;
}

static void note(struct swarm_rank *rank, int32_t id, float logprob) {
    for (size_t i = 0; i < SWARM_RANK_WORDS; i++) {
        if (rank->words[i].id == id) {
            rank->words[i].is_known = true;
            rank->words[i].probability = exp((double)logprob);
        }
    }
}

static void take_token(struct swarm_rank *rank, const struct engine_event *token) {
    rank->tokens++;
    note(rank, token->token, token->logprob);
    for (int32_t i = 0; i < token->alternative_count; i++) {
        note(rank, token->alternatives[i].id, token->alternatives[i].logprob);
    }
}

/* The next word that nothing is known of; false: there is none. */
static bool next_word(struct swarm_rank *rank) {
    rank->word = 0;
    while (rank->word < SWARM_RANK_WORDS && rank->words[rank->word].is_known) {
        rank->word++;
    }
    return rank->word < SWARM_RANK_WORDS;
}

static double score(const struct swarm_rank *rank) {
    double yes = 0.0;
    double all = 0.0;
    for (size_t i = 0; i < SWARM_RANK_WORDS; i++) {
        yes += rank->words[i].is_yes ? rank->words[i].probability : 0.0;
        all += rank->words[i].probability;
    }
    return all > 0.0 ? yes / all : 0.0;
}

/* ---- one context after the other --------------------------------------------------------------- */

static void came(void *context, const struct engine_event *event);

static result encode(struct swarm_rank *rank, struct error *error) {
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
        .end_is_missing = rank->options.contexts[rank->at].end_is_missing,
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
    const struct engine_ports *engine = &options->engine;
    const struct logit_bias forced = {.id = rank->words[rank->word].id, .bias = FORCED_BIAS};
    uint64_t context = options->contexts[rank->at].sequence;
    TRY(engine->fork(engine->context, context, &rank->generation.sequence, error));
    const struct generation_request request = {
        .sequence = rank->generation.sequence,
        .append = rank->question.ids,
        .append_count = rank->question.count,
        .sampling =
            {.top_p = 1.0,
             .bias = &forced,
             .bias_count = 1,
             .alternatives = SAMPLING_ALTERNATIVES_MAX},
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
static bool next_context(struct swarm_rank *rank) {
    while (rank->at < rank->options.count && rank->options.contexts[rank->at].sequence == 0) {
        rank->at++; /* its score stays 0: nothing speaks for it */
    }
    for (size_t i = 0; i < SWARM_RANK_WORDS; i++) {
        rank->words[i].is_known = false;
        rank->words[i].probability = 0.0;
    }
    rank->word = 0;
    return rank->at < rank->options.count;
}

static void end(struct swarm_rank *rank, bool has_failed) {
    bool has_scores = !has_failed && !rank->is_cancelled;
    rank->options.done(rank->options.context, has_scores ? rank->scores : NULL, rank->tokens);
}

static void go_on(struct swarm_rank *rank) {
    result asked = OK;
    if (next_word(rank)) {
        asked = ask(rank, NULL);
    } else {
        rank->scores[rank->at++] = score(rank);
        if (!next_context(rank)) {
            end(rank, false);
            return;
        }
        asked = encode(rank, NULL);
        asked = is_ok(asked) ? ask(rank, NULL) : asked;
    }
    if (is_failed(asked)) {
        end(rank, true);
    }
}

static void came(void *context, const struct engine_event *event) {
    struct swarm_rank *rank = context;
    if (event->type == ENGINE_TOKEN) {
        take_token(rank, event);
        rank->words[rank->word].is_known =
            true; /* an engine that forces nothing is not asked again */
    }
    if (event->type != ENGINE_FINISHED) {
        return;
    }
    drop_fork(rank);
    bool has_answer = rank->words[rank->word].is_known;
    if (rank->is_cancelled || !has_answer) {
        end(rank, true);
    } else {
        go_on(rank);
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
    int64_t needed = (int64_t)options->count * SWARM_RANK_WORDS;
    if (options->tokens_max < needed) {
        FAIL(
            error,
            LIMIT,
            "a ranking of %zu results needs %lld tokens, and %lld are left",
            options->count,
            (long long)needed,
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
    TRY(find_words(rank, error));
    if (!next_context(rank)) {
        FAIL(error, LIMIT, "no context is left to rank");
    }
    TRY(encode(rank, error));
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
