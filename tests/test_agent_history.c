/* What takes the place of a full context: decisions by table, conversations by hand and at random. */
#include "base/bytes.h"
#include "runtime/agent_history.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* ---- when ----------------------------------------------------------------------------------- */

static void decision_is_by_table(void **state) {
    (void)state;
    static const struct {
        int32_t context_max, at_percent, tokens, append;
        bool is_due;
    } rows[] = {
        {1 << 20, 80, 838860, 0, false}, /* 80 percent */
        {1 << 20, 80, 838861, 0, true},
        {1 << 20, 80, 800000, 38861, true},
        {1 << 20, 0, 1 << 20, 0, false},
        {16384, 80, 13056, 0, false}, /* leaves a turn no room */
        {16384, 80, 13056, 1, true},
        {16384, 100, 13056, 0, false},
        {16384, 100, 13057, 0, true},
        {1000, 80, 999, 0, false}, /* too small to be worth it */
        {2048, 80, 1408, 0, false},
        {2048, 80, 1409, 0, true},
        {2048, 50, 1023, 0, false},
        {2048, 50, 1024, 0, true},
        {INT32_MAX, 80, INT32_MAX, INT32_MAX, true},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const struct agent_history_limits limits = {rows[i].context_max, rows[i].at_percent};
        bool is_due = agent_history_is_due(&limits, rows[i].tokens, rows[i].append);
        if (is_due != rows[i].is_due) {
            fail_msg("row %zu: %d", i, is_due);
        }
    }
}

static void turn_leaves_room_for_a_summary(void **state) {
    (void)state;
    for (int32_t max = AGENT_HISTORY_CONTEXT_MIN; max < 1 << 21; max += max / 7) {
        const struct agent_history_limits limits = {max, 80};
        const struct agent_history_limits off = {max, 0};
        int32_t end = agent_history_turn_end(&limits);
        assert_true(end >= max / 2 && end + agent_history_summary_tokens(max) < max);
        assert_int_equal(agent_history_turn_end(&off), max);
        assert_true(agent_history_is_due(&limits, end, 0));
        assert_false(agent_history_is_due(&limits, max / 2, 0) && max >= 2048);
    }
}

static void shrinking_is_less_than_six_tenths(void **state) {
    (void)state;
    assert_true(agent_history_has_shrunk(1000, 599));
    assert_false(agent_history_has_shrunk(1000, 600));
    assert_false(agent_history_has_shrunk(0, 0));
    assert_true(agent_history_has_shrunk(INT32_MAX, 1));
}

/* ---- conversations by hand ------------------------------------------------------------------ */

#define MESSAGES_MAX 256
#define ARENA_BYTES  ((size_t)4 << 20)

struct world {
    struct chat_message messages[MESSAGES_MAX];
    struct chat_call calls[MESSAGES_MAX];
    int32_t tokens[MESSAGES_MAX];
    struct view files[64];
    size_t count, call_count;
    unsigned char *arena;
    size_t used;
    struct agent_history history;
};

static void world_init(struct world *world) {
    *world = (struct world){.arena = malloc(ARENA_BYTES)};
    assert_non_null(world->arena);
}

static struct view keep(struct world *world, const char *text, size_t repeats) {
    size_t length = strlen(text);
    unsigned char *at = world->arena + world->used;
    assert_true(world->used + length * repeats <= ARENA_BYTES);
    for (size_t i = 0; i < repeats; i++) {
        memcpy(at + i * length, text, length);
    }
    world->used += length * repeats;
    return view_of(at, length * repeats);
}

static int32_t tokens_of(const struct chat_message *message) {
    size_t bytes = message->content.length + message->reasoning.length;
    for (size_t i = 0; i < message->call_count; i++) {
        bytes += message->calls[i].name.length + message->calls[i].arguments.length;
    }
    return (int32_t)(bytes / 3 + 4);
}

static void add(struct world *world, const struct chat_message *message) {
    assert_true(world->count < MESSAGES_MAX);
    world->messages[world->count] = *message;
    world->tokens[world->count++] = tokens_of(message);
}

static void add_text(struct world *world, enum chat_role role, struct view text) {
    add(world, &(struct chat_message){.role = role, .content = text});
}

/* A turn with `calls` calls, their results of so many bytes each. */
static void add_turn(struct world *world, size_t calls, size_t result_bytes, const char *end) {
    struct chat_message message = {
        .role = CHAT_ASSISTANT,
        .content = view_of_text("I look."),
        .reasoning = keep(world, "Thinking about it. ", 5),
        .calls = &world->calls[world->call_count],
        .call_count = calls,
    };
    for (size_t i = 0; i < calls; i++) {
        char id[32];
        assert_true(snprintf(id, sizeof id, "call_%zu", world->call_count) > 0);
        world->calls[world->call_count++] = (struct chat_call){
            .id = keep(world, id, 1),
            .name = view_of_text("read"),
            .arguments = view_of_text("{\"path\":\"a.c\"}"),
        };
    }
    add(world, &message);
    for (size_t i = 0; i < calls; i++) {
        struct view text = keep(world, "x", result_bytes);
        (void)keep(world, end, 1);
        text.length += strlen(end);
        add(world,
            &(struct chat_message
            ){.role = CHAT_TOOL, .content = text, .call_id = message.calls[i].id});
    }
}

static struct agent_history *history_of(struct world *world) {
    world->history.messages = world->messages;
    world->history.tokens = world->tokens;
    world->history.count = world->count;
    world->history.context_messages = world->count;
    if (world->history.keep_turns == 0) {
        world->history.keep_turns = 2;
    }
    return &world->history;
}

static void begin(struct world *world) {
    world_init(world);
    add_text(world, CHAT_SYSTEM, view_of_text("You are a test."));
    add_text(world, CHAT_USER, view_of_text("Do it."));
}

static struct chat_conversation *build(
    const struct agent_history *history,
    const struct agent_history_plan *plan,
    const char *summary,
    size_t *person
) {
    struct error error = {0};
    struct agent_history_made made;
    result built = agent_history_build(&made, history, plan, view_of_text(summary), &error);
    if (is_failed(built)) {
        fail_msg("%s", error.message);
    }
    *person = made.person_message;
    return made.conversation;
}

static struct view content(const struct chat_conversation *conversation, size_t at) {
    assert_true(at < chat_conversation_count(conversation));
    return chat_conversation_messages(conversation)[at].content;
}

static bool holds(struct view text, const char *part) {
    return view_find(text, view_of_text(part), 0) != SIZE_MAX;
}

static bool has_even_output(void *context, struct view locator) {
    (void)context;
    return locator.length > 0 && (locator.data[locator.length - 1] - '0') % 2 == 0;
}

static void old_outputs_go_first_and_name_their_locator(void **state) {
    (void)state;
    struct world world;
    begin(&world);
    add_turn(&world, 1, 9000, "\n[more: read output:4]");
    add_turn(&world, 1, 9000, "\n[more: read output:5]"); /* the ring does not have it any more */
    add_turn(&world, 1, 100, "");
    add_turn(&world, 1, 900, "");
    add_turn(&world, 1, 900, "");
    world.history.has_output = has_even_output;
    const struct agent_history *history = history_of(&world);
    struct agent_history_plan plan = {0};
    assert_true(agent_history_plan_next(history, false, 2000, &plan));
    size_t person = 0;
    struct chat_conversation *made = build(history, &plan, "", &person);
    assert_int_equal(chat_conversation_count(made), world.count);
    assert_true(view_equals_text(
        content(made, 3), "[output of read removed to save room: read output:4, or run it again]"
    ));
    assert_true(view_equals_text(
        content(made, 5),
        "[output of read removed to save room: run or read it again if you need it]"
    ));
    assert_int_equal(content(made, 7).length, 100); /* small ones stay */
    assert_int_equal(content(made, 9).length, 900); /* and those of the last turns */
    assert_int_equal(content(made, 11).length, 900);
    assert_false(agent_history_plan_next(history, false, 2000, &plan)); /* there is no second */
    chat_conversation_destroy(made);
    free(world.arena);
}

static void pruning_that_is_not_enough_is_no_plan(void **state) {
    (void)state;
    struct world world;
    begin(&world);
    add_turn(&world, 1, 100, "");
    add_turn(&world, 1, 9000, "");
    struct agent_history_plan plan = {0};
    assert_false(agent_history_plan_next(history_of(&world), false, 2000, &plan));
    free(world.arena);
}

static void summary_takes_the_place_of_the_middle(void **state) {
    (void)state;
    struct world world;
    begin(&world);
    add_turn(&world, 1, 900, "");
    add_text(&world, CHAT_USER, view_of_text("And the other one."));
    for (int i = 0; i < 4; i++) {
        add_turn(&world, 2, 900, "");
    }
    const struct view files[] = {
        view_of_text("a.c"), view_of_text("b\n- c"), view_of_text("d/e.h")};
    world.history.files = files;
    world.history.file_count = COUNT_OF(files);
    world.history.person_message = 4;
    const struct agent_history *history = history_of(&world);
    struct agent_history_plan plan = {0};
    assert_true(agent_history_plan_next(history, true, 2000, &plan));
    size_t person = 0;
    struct chat_conversation *made = build(history, &plan, "All is known.", &person);
    assert_int_equal(chat_conversation_count(made), 4 + 2 * 3);
    assert_true(view_equals_text(content(made, 1), "Do it."));
    assert_true(view_equals_text(content(made, 2), "And the other one."));
    assert_int_equal(person, 2);
    assert_true(agent_history_is_summary(&chat_conversation_messages(made)[3]));
    assert_true(holds(content(made, 3), "All is known."));
    assert_true(view_ends_with(content(made, 3), view_of_text(":\n- a.c\n- d/e.h\n")));
    assert_int_equal(content(made, 9).length, 900);
    chat_conversation_destroy(made);
    free(world.arena);
}

static void plans_get_harsher_and_end(void **state) {
    (void)state;
    struct world world;
    begin(&world);
    for (int i = 0; i < 5; i++) {
        add_turn(&world, 1, 30000, "");
    }
    world.history.keep_turns = 3;
    const struct agent_history *history = history_of(&world);
    struct agent_history_plan plan = {0};
    struct agent_history_plan last = {.tokens = INT64_MAX};
    int plans = 0;
    while (agent_history_plan_next(history, true, INT64_MAX, &plan)) {
        assert_true(plan.has_summary && plan.step > last.step);
        assert_true(plan.tokens < last.tokens);
        assert_int_equal(world.messages[plan.tail].role, CHAT_ASSISTANT);
        last = plan;
        plans++;
    }
    assert_int_equal(plans, 3 + 1 + 4);
    assert_true(last.drops_reasoning && last.output_bytes_max == AGENT_HISTORY_OUTPUT_BYTES);
    plan = (struct agent_history_plan){0};
    assert_true(agent_history_plan_next(history, true, last.tokens, &plan));
    assert_int_equal(plan.step, last.step);
    plan = (struct agent_history_plan){0};
    assert_false(agent_history_plan_next(history, true, last.tokens - 1, &plan));
    free(world.arena);
}

static void long_outputs_of_the_tail_are_cut_as_a_last_resort(void **state) {
    (void)state;
    struct world world;
    begin(&world);
    add_turn(&world, 1, 30000, "\n[more: read output:2]");
    world.history.has_output = has_even_output;
    const struct agent_history *history = history_of(&world);
    struct agent_history_plan plan = {0};
    assert_true(agent_history_plan_next(history, true, 600, &plan));
    assert_int_equal(plan.output_bytes_max, 1024);
    size_t person = 0;
    struct chat_conversation *made = build(history, &plan, "s", &person);
    struct view text = content(made, 4);
    assert_int_equal(text.length, 1024);
    assert_true(view_ends_with(text, view_of_text("\n[cut to save room: read output:2]")));
    assert_int_equal(chat_conversation_messages(made)[3].reasoning.length, 0);
    assert_int_equal(chat_conversation_messages(made)[3].call_count, 1);
    chat_conversation_destroy(made);
    free(world.arena);
}

/* A copy of a conversation as a world of its own. */
static void take(struct world *world, const struct chat_conversation *conversation) {
    world_init(world);
    const struct chat_message *messages = chat_conversation_messages(conversation);
    for (size_t i = 0; i < chat_conversation_count(conversation); i++) {
        add(world, &messages[i]);
    }
}

static void files_survive_each_compaction(void **state) {
    (void)state;
    struct world world;
    begin(&world);
    add_turn(&world, 1, 900, "");
    add_turn(&world, 1, 900, "");
    char names[300][16];
    struct view files[300];
    for (size_t i = 0; i < COUNT_OF(files); i++) {
        assert_true(snprintf(names[i], sizeof names[i], "file%zu.c", i) > 0);
        files[i] = view_of_text(names[i]);
    }
    world.history.keep_turns = 1;
    world.history.files = files;
    world.history.file_count = 2;
    struct agent_history_plan plan = {0};
    size_t person = 0;
    assert_true(agent_history_plan_next(history_of(&world), true, INT64_MAX, &plan));
    struct chat_conversation *first = build(&world.history, &plan, "One.", &person);
    struct world second;
    take(&second, first);
    add_turn(&second, 1, 900, "");
    second.history.keep_turns = 1;
    second.history.files = files + 1; /* of a session that went on: the first is not known */
    second.history.file_count = 2;
    plan = (struct agent_history_plan){0};
    assert_true(agent_history_plan_next(history_of(&second), true, INT64_MAX, &plan));
    struct chat_conversation *made = build(&second.history, &plan, "Two.", &person);
    assert_false(holds(content(made, 2), "One."));
    assert_true(view_ends_with(
        content(made, 2),
        view_of_text("Two.\n\nFiles that were read or changed so far:\n"
                     "- file0.c\n- file1.c\n- file2.c\n")
    ));
    second.history.files = files;
    second.history.file_count = COUNT_OF(files);
    struct chat_conversation *many = build(&second.history, &plan, "Two.", &person);
    assert_true(view_ends_with(content(many, 2), view_of_text("- file299.c\n(and older ones)\n")));
    assert_false(holds(content(many, 2), "- file99.c"));
    assert_true(holds(content(many, 2), "so far:\n- file100.c\n"));
    second.history.files_bytes_max = 40; /* three lines of 13 bytes */
    struct chat_conversation *few = build(&second.history, &plan, "Two.", &person);
    assert_true(holds(content(few, 2), "so far:\n- file297.c\n- file298.c\n- file299.c\n(and"));
    chat_conversation_destroy(few);
    chat_conversation_destroy(many);
    chat_conversation_destroy(made);
    chat_conversation_destroy(first);
    free(second.arena);
    free(world.arena);
}

static void calls_stand_for_a_summary_that_was_not_written(void **state) {
    (void)state;
    struct world world;
    begin(&world);
    for (int i = 0; i < 50; i++) {
        add_turn(&world, 1, 10, "");
    }
    struct agent_history_plan plan = {0};
    size_t person = 0;
    assert_true(agent_history_plan_next(history_of(&world), true, INT64_MAX, &plan));
    struct chat_conversation *made = build(&world.history, &plan, "", &person);
    struct view text = content(made, 2);
    assert_true(holds(text, "The calls so far:\nread {\"path\":\"a.c\"}\nread "));
    size_t lines = 0;
    for (size_t i = 0; i < text.length; i++) {
        lines += text.data[i] == '\n' ? 1 : 0;
    }
    assert_int_equal(lines, 2 + 40);
    chat_conversation_destroy(made);
    free(world.arena);
}

static void request_answers_pending_calls_in_a_word(void **state) {
    (void)state;
    struct world world;
    begin(&world);
    add_turn(&world, 2, 90000, "");
    struct agent_history *history = history_of(&world);
    history->context_messages = 3; /* the results are not in the context yet */
    history->summary_tokens = 300;
    struct agent_history_request request;
    struct error error = {0};
    assert_true(
        is_ok(agent_history_request_make(&request, history, view_of_text("Keep names."), &error))
    );
    assert_int_equal(request.count, 5);
    assert_int_equal(request.messages[3].role, CHAT_TOOL);
    assert_true(view_equals(request.messages[3].call_id, world.messages[3].call_id));
    assert_true(request.messages[3].content.length < 60);
    assert_int_equal(request.messages[4].role, CHAT_USER);
    assert_true(holds(request.messages[4].content, "At most 200 words."));
    assert_true(
        view_ends_with(request.messages[4].content, view_of_text(" The user asks: Keep names."))
    );
    agent_history_request_deinit(&request);
    free(world.arena);
}

/* ---- at random ------------------------------------------------------------------------------ */

static uint64_t random_next(uint64_t *state) {
    uint64_t x = *state += UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

static size_t below(uint64_t *state, size_t bound) {
    return (size_t)(random_next(state) % bound);
}

static void random_world(struct world *world, uint64_t *random) {
    begin(world);
    size_t turns = 1 + below(random, 20);
    for (size_t i = 0; i < turns; i++) {
        size_t calls = below(random, 4);
        size_t bytes = below(random, 2) == 0 ? below(random, 300) : below(random, 12000);
        add_turn(world, calls, bytes, below(random, 2) == 0 ? "" : "\nread output:6");
        if (calls == 0 || below(random, 5) == 0) {
            world->history.person_message = below(random, 3) == 0 ? world->count : 0;
            add_text(world, CHAT_USER, keep(world, "Go on. ", 1 + below(random, 900)));
        }
    }
    size_t files = below(random, 5);
    for (size_t i = 0; i < files; i++) {
        char name[16];
        assert_true(snprintf(name, sizeof name, "f%zu.c", i) > 0);
        world->files[i] = keep(world, name, 1);
    }
    world->history.files = world->files;
    world->history.file_count = files;
    world->history.keep_turns = (int32_t)(1 + below(random, 4));
    world->history.summary_tokens = 100;
    world->history.has_output = has_even_output;
}

static size_t find_result(const struct chat_message *messages, size_t count, struct view id) {
    size_t found = 0;
    for (size_t i = 0; i < count; i++) {
        found += messages[i].role == CHAT_TOOL && view_equals(messages[i].call_id, id) ? 1 : 0;
    }
    return found;
}

/* Each result follows the turn that asked for it, and each call of a turn has one. */
static void check_pairs(const struct chat_message *messages, size_t count) {
    const struct chat_message *asking = NULL;
    for (size_t i = 0; i < count; i++) {
        if (messages[i].role == CHAT_ASSISTANT) {
            asking = &messages[i];
        }
        for (size_t k = 0; k < messages[i].call_count; k++) {
            assert_int_equal(find_result(messages, count, messages[i].calls[k].id), 1);
        }
        if (messages[i].role == CHAT_TOOL) {
            bool is_asked = false;
            for (size_t k = 0; asking != NULL && k < asking->call_count; k++) {
                is_asked |= view_equals(asking->calls[k].id, messages[i].call_id);
            }
            assert_true(is_asked);
        }
    }
}

/* What stays of the model stays in its order: calls are the last ones of the old conversation. */
static void check_order(
    const struct chat_message *old, size_t old_count, const struct chat_message *made, size_t count
) {
    size_t at = old_count;
    for (size_t i = count; i > 0; i--) {
        if (made[i - 1].role == CHAT_ASSISTANT || made[i - 1].role == CHAT_TOOL) {
            do {
                assert_true(at > 0);
                at--;
            } while (old[at].role != made[i - 1].role);
            assert_true(view_equals(old[at].call_id, made[i - 1].call_id));
            assert_int_equal(old[at].call_count, made[i - 1].call_count);
        }
    }
}

static void check_made(
    const struct world *world,
    const struct agent_history_plan *plan,
    const struct chat_conversation *made,
    int64_t tokens_max
) {
    const struct chat_message *messages = chat_conversation_messages(made);
    size_t count = chat_conversation_count(made);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(messages[i].role, world->messages[i].role);
        assert_true(view_equals(messages[i].content, world->messages[i].content));
    }
    check_pairs(messages, count);
    check_order(world->messages, world->count, messages, count);
    int64_t tokens = 0;
    size_t summaries = 0;
    for (size_t i = 0; i < count; i++) {
        tokens += tokens_of(&messages[i]);
        summaries += agent_history_is_summary(&messages[i]) ? 1 : 0;
        if (agent_history_is_summary(&messages[i])) {
            for (size_t k = 0; k < world->history.file_count; k++) {
                assert_true(view_find(messages[i].content, world->history.files[k], 0) != SIZE_MAX);
            }
        }
    }
    assert_int_equal(summaries, plan->has_summary ? 1 : 0);
    assert_true(plan->tokens <= tokens_max);
    /* The estimate is one of a few tokens a message. */
    assert_true(tokens <= plan->tokens + 40 + (int64_t)count * 40);
    assert_true(
        messages[count - 1].role != CHAT_ASSISTANT ||
        world->messages[world->count - 1].role == CHAT_ASSISTANT
    );
}

static void check_same(const struct chat_conversation *a, const struct chat_conversation *b) {
    assert_int_equal(chat_conversation_count(a), chat_conversation_count(b));
    const struct chat_message *left = chat_conversation_messages(a);
    const struct chat_message *right = chat_conversation_messages(b);
    for (size_t i = 0; i < chat_conversation_count(a); i++) {
        assert_int_equal(left[i].role, right[i].role);
        assert_true(view_equals(left[i].content, right[i].content));
        assert_true(view_equals(left[i].reasoning, right[i].reasoning));
        assert_true(view_equals(left[i].call_id, right[i].call_id));
        assert_int_equal(left[i].call_count, right[i].call_count);
    }
}

static int64_t tokens_in(const struct world *world) {
    int64_t tokens = 0;
    for (size_t i = 0; i < world->count; i++) {
        tokens += world->tokens[i];
    }
    return tokens;
}

static void check_world(struct world *world, uint64_t *random, int *built) {
    static const char *const summaries[] = {"What was done, in short.", ""};
    const char *summary = summaries[below(random, 2)];
    bool with_summary = below(random, 3) != 0;
    const struct agent_history *history = history_of(world);
    int64_t tokens_max = tokens_in(world) * (int64_t)(30 + below(random, 60)) / 100;
    struct agent_history_plan plan = {0};
    while (agent_history_plan_next(history, with_summary, tokens_max, &plan)) {
        ++*built;
        size_t person = 0;
        struct chat_conversation *made = build(history, &plan, summary, &person);
        check_made(world, &plan, made, tokens_max);
        assert_true(person < chat_conversation_count(made));
        assert_int_equal(person > 0, history->person_message > 0);
        /* Once more, with nothing in between. */
        struct world again;
        take(&again, made);
        again.history = world->history;
        again.history.person_message = person;
        again.history.keep_turns = world->history.keep_turns;
        struct agent_history_plan same = plan;
        size_t dropped = world->count - chat_conversation_count(made);
        same.tail = plan.has_summary ? plan.tail - dropped : plan.tail;
        size_t person_again = 0;
        struct chat_conversation *second = build(history_of(&again), &same, summary, &person_again);
        check_same(made, second);
        assert_int_equal(person_again, person);
        chat_conversation_destroy(second);
        chat_conversation_destroy(made);
        free(again.arena);
    }
}

static void random_histories_keep_their_promises(void **state) {
    (void)state;
    const uint64_t seed = 20240607;
    print_message("seed %" PRIu64 "\n", seed);
    uint64_t random = seed;
    int built = 0;
    for (int i = 0; i < 600; i++) {
        struct world world;
        random_world(&world, &random);
        check_world(&world, &random, &built);
        free(world.arena);
    }
    assert_true(built > 600);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decision_is_by_table),
        cmocka_unit_test(turn_leaves_room_for_a_summary),
        cmocka_unit_test(shrinking_is_less_than_six_tenths),
        cmocka_unit_test(old_outputs_go_first_and_name_their_locator),
        cmocka_unit_test(pruning_that_is_not_enough_is_no_plan),
        cmocka_unit_test(summary_takes_the_place_of_the_middle),
        cmocka_unit_test(plans_get_harsher_and_end),
        cmocka_unit_test(long_outputs_of_the_tail_are_cut_as_a_last_resort),
        cmocka_unit_test(files_survive_each_compaction),
        cmocka_unit_test(calls_stand_for_a_summary_that_was_not_written),
        cmocka_unit_test(request_answers_pending_calls_in_a_word),
        cmocka_unit_test(random_histories_keep_their_promises),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
