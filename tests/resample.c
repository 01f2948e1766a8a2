/* Samples what a recorded session wrote once more, each output alone from a cold cache, by what the record
 * says of it: resample MODEL STATE. Every finished turn of the newest session counts, of the root agent and
 * of its summaries. Ends with 0 when all tokens are the same, and says how many. Settings beside seed,
 * temperature and top_p must be the defaults. */
#include "engine/engine.h"

#include <poll.h>
#include <unistd.h>

#include "sessions/session.h"

#define CONTEXT_MAX (1 << 17)

static int pipe_fds[2];

static void wake(void *context) {
    (void)context;
    ssize_t written = write(pipe_fds[1], "", 1);
    ASSERT(written == 1);
}

static struct engine_event next_event(struct engine *engine) {
    struct engine_event event;
    while (!engine_next_event(engine, &event)) {
        char byte;
        ssize_t got = read(pipe_fds[0], &byte, 1);
        ASSERT(got == 1);
    }
    return event;
}

static const struct session_run *
run_of(const struct session_turn *turn, enum session_run_kind kind) {
    for (size_t i = 0; i < turn->run_count; i++) {
        if (turn->runs[i].kind == kind) {
            return &turn->runs[i];
        }
    }
    return NULL;
}

static result sample(
    struct engine *engine,
    const int32_t *ids,
    const struct session_turn *turn,
    const struct session_run *output,
    struct error *error
) {
    struct window_replay replays[ENGINE_REPLAYS_MAX];
    struct generation_request request = {
        .append = ids,
        .append_count = (size_t)output->position,
        .sampling =
            {.temperature = turn->end.sampler.temperature,
             .top_p = turn->end.sampler.top_p,
             .seed = turn->end.sampler.seed},
        .tokens_max = (int32_t)output->count,
        .has_contract = true,
        .contract = replays,
        .speculation = SPECULATE_OFF,
    };
    TRY(window_replays_parse(
        turn->end.cache.replays, replays, ENGINE_REPLAYS_MAX, &request.contract_count, error
    ));
    TRY(engine_sequence_create(engine, &request.sequence, error));
    TRY(engine_generate(engine, &request, error));
    for (size_t i = 0;;) {
        struct engine_event event = next_event(engine);
        if (event.type == ENGINE_TOKEN && (i >= output->count || event.token != output->ids[i++])) {
            FAIL(
                error,
                CORRUPT,
                "turn %lld: token %zu is %d",
                (long long)turn->index + 1,
                i,
                event.token
            );
        }
        if (event.type == ENGINE_FINISHED) {
            engine_sequence_destroy(engine, request.sequence);
            if (event.reason == FINISH_ERROR || i != output->count) {
                FAIL(
                    error,
                    CORRUPT,
                    "turn %lld: %zu of %zu tokens: %s",
                    (long long)turn->index + 1,
                    i,
                    output->count,
                    event.error.message
                );
            }
            return OK;
        }
    }
}

/* The agent's context before a turn of that number; of itself, or of a child that went on behind it. */
static void put_context(const struct session_agent *agent, int64_t number, int32_t *ids) {
    for (size_t i = 0; i < agent->turn_count && agent->turns[i].number < number; i++) {
        const struct session_turn *turn = &agent->turns[i];
        for (size_t k = 0; k < turn->run_count; k++) {
            const struct session_run *run = &turn->runs[k];
            ASSERT(run->position + (int64_t)run->count <= CONTEXT_MAX);
            memcpy(ids + run->position, run->ids, run->count * sizeof *ids);
        }
    }
}

static result check(
    const struct session_agent *root,
    const struct session_agent *agent,
    struct engine *engine,
    int32_t *ids,
    struct error *error
) {
    size_t turns = 0, tokens = 0;
    for (size_t i = 0; i < agent->turn_count; i++) {
        const struct session_turn *turn = &agent->turns[i];
        const struct session_run *prompt = run_of(turn, SESSION_RUN_PROMPT);
        const struct session_run *output = run_of(turn, SESSION_RUN_OUTPUT);
        if (prompt == NULL || output == NULL || !turn->is_finished) {
            continue;
        }
        put_context(root, turn->number, ids);
        memcpy(ids + prompt->position, prompt->ids, prompt->count * sizeof *ids);
        TRY(sample(engine, ids, turn, output, error));
        turns++;
        tokens += output->count;
    }
    (void)printf(
        "%.*s: %zu generations, %zu tokens: the same\n", VIEW_ARGUMENTS(agent->name), turns, tokens
    );
    return OK;
}

static result run(const char *model, const char *state, struct error *error) {
    const struct session_store_options options = {.state_dir = state, .clock = clock_real()};
    const struct session_load_options everything = {.with_tokens = true};
    CLEANUP(session_store_cleanup) struct session_store *store = NULL;
    CLEANUP(session_tree_cleanup) struct session_tree *tree = NULL;
    struct session_id id;
    TRY(session_store_open(&store, &options, error));
    TRY(session_resolve(store, view_of_text("last"), view_of_text(""), &id, error));
    TRY(session_load(store, &id, &everything, &tree, error));
    ASSERT(tree->agent_count > 0);
    const struct engine_options engine_options = {
        .model_directory = model,
        .sequences_max = 1,
        .has_no_prefix_cache = true,
        .has_no_speculation = true,
        .wake = wake,
    };
    struct engine *engine = NULL;
    int32_t *ids = calloc(CONTEXT_MAX, sizeof *ids);
    ASSERT(ids != NULL);
    result checked = engine_open(&engine_options, &engine, error);
    if (is_ok(checked)) {
        for (size_t i = 0; i < tree->agent_count && is_ok(checked); i++) {
            checked = check(&tree->agents[0], &tree->agents[i], engine, ids, error);
        }
        engine_close(engine);
    }
    free(ids);
    return checked;
}

int main(int argc, char **argv) {
    struct error error = {0};
    ASSERT(argc == 3 && pipe(pipe_fds) == 0);
    if (is_failed(run(argv[1], argv[2], &error))) {
        (void)fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    return 0;
}
