/* What a host sees of a swarm, and whether it fits together; see swarm_world.h. */
#include "swarm_world.h"

#include <inttypes.h>
#include <stdarg.h>

void world_problem(struct world *world, const char *format, ...) {
    if (world->has_problem) {
        return; /* the first says most */
    }
    world->has_problem = true;
    va_list arguments;
    va_start(arguments, format);
    int written = vsnprintf(world->problem, SIMULATION_PROBLEM_BYTES, format, arguments);
    va_end(arguments);
    ASSERT(written >= 0);
}

/* FNV-1a over the bytes of a number. */
void world_trace(struct world *world, uint64_t value) {
    for (int i = 0; i < 8; i++) {
        world->counts->trace ^= (value >> (8 * i)) & 0xFFU;
        world->counts->trace *= UINT64_C(0x100000001B3);
    }
}

#define EXPECT(world, condition, ...)                                                              \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            world_problem((world), __VA_ARGS__);                                                   \
        }                                                                                          \
    } while (0)

static const char *name_of(const struct world *world, size_t node) {
    return swarm_node(world->swarm, node)->name;
}

/* ---- events ------------------------------------------------------------------------------------ */

static void spend(struct world *world, struct world_node *node, const struct swarm_event *event) {
    int64_t over = node->tokens + event->tokens - node->tokens_max;
    if (node->tokens_max != BUDGET_NO_LIMIT && over > 0) {
        world->overspent += over < event->tokens ? over : event->tokens;
    }
    node->tokens += event->tokens;
    node->calls += event->calls;
    world->tokens += event->tokens;
    node->heard_ms = world->now_ms;
}

static void
turn_event(struct world *world, struct world_node *node, const struct swarm_event *event) {
    spend(world, node, event);
    uint64_t digest = node->has_waited ? 0 : event->digest;
    node->same_digests = digest != 0 && digest == node->last_digest ? node->same_digests + 1 : 1;
    node->last_digest = digest;
    node->has_waited = false;
}

static void event_of_work(struct world *world, const struct swarm_event *event) {
    struct world_node *node = &world->nodes[event->node];
    if (event->type == SWARM_VERIFIED && node->is_verified_now) {
        node->is_verified_now = false;
        world->verifications--;
        world->has_passed =
            world->has_passed || (event->verdict == SWARM_VERIFIED_PASS && !world->was_ending);
    } else if (event->type == SWARM_MERGED) {
        bool is_part = node->is_merged_now && node->merge_target == SWARM_ROOT &&
                       event->merge == SWARM_MERGE_OK;
        world->has_parts = world->has_parts || is_part;
        node->is_merged_now = false;
    } else if (event->type == SWARM_RANKED && world->is_ranking) {
        world->is_ranking = false;
        world->tokens += event->tokens;
    }
}

void world_event(struct world *world, const struct swarm_event *event) {
    world_trace(world, (uint64_t)event->type);
    world_trace(world, (uint64_t)event->now_ms);
    world_trace(world, (uint64_t)event->node);
    struct world_node *node = &world->nodes[event->node];
    if (event->type == SWARM_VERIFIED || event->type == SWARM_MERGED ||
        event->type == SWARM_RANKED) {
        event_of_work(world, event);
    } else if (!node->is_started || node->has_ended) {
        return; /* noise */
    } else if (event->type == SWARM_NODE_STARTED) {
        node->is_confirmed = true;
        node->heard_ms = world->now_ms;
    } else if (event->type == SWARM_NODE_ENDED || event->type == SWARM_NODE_START_FAILED) {
        spend(world, node, event);
        node->has_ended = true;
        node->has_ask = false;
    } else if (event->type == SWARM_TURN_ENDED) {
        turn_event(world, node, event);
    } else if (event->type == SWARM_ASKED) {
        node->has_ask = true;
        node->ask = event->ask->number;
        node->heard_ms = world->now_ms;
    } else if (event->type == SWARM_DELIVERED && event->message == node->delivering) {
        world->messages[event->message].fate = WORLD_CONFIRMED;
        node->delivering = 0;
    }
}

/* ---- effects ----------------------------------------------------------------------------------- */

/* A child with the work of one above it would go on so without end. */
static void expect_own_brief(struct world *world, size_t node) {
    const struct swarm_node *told = swarm_node(world->swarm, node);
    struct view brief = buffer_view(&told->brief); /* of a fork it may be blank */
    for (size_t at = told->parent; !told->is_order && at != SWARM_ROOT;
         at = swarm_node(world->swarm, at)->parent) {
        EXPECT(
            world,
            brief.length <= 1 ||
                !view_equals(brief, buffer_view(&swarm_node(world->swarm, at)->brief)),
            "%s has the brief of %s: '%.*s'",
            told->name,
            name_of(world, at),
            VIEW_ARGUMENTS(brief)
        );
    }
}

static void start_effect(struct world *world, const struct swarm_effect *effect) {
    struct world_node *node = &world->nodes[effect->node];
    const struct swarm_node *told = swarm_node(world->swarm, effect->node);
    const struct swarm_options *options = swarm_options(world->swarm);
    EXPECT(world, !node->is_started, "%s is started twice", told->name);
    EXPECT(world, !world->was_ending, "%s is started after the end", told->name);
    EXPECT(world, told->depth <= options->depth_max, "%s: depth %zu", told->name, told->depth);
    world->starts++;
    EXPECT(world, world->starts < options->nodes_max, "%zu agents started", world->starts);
    if (options->time_ms_max > 0) {
        int64_t last_ms = world->started_ms + options->time_ms_max;
        EXPECT(
            world,
            told->deadline_ms > world->now_ms && told->deadline_ms < last_ms,
            "%s may work until %" PRId64 " of %" PRId64,
            told->name,
            told->deadline_ms,
            last_ms
        );
    }
    expect_own_brief(world, effect->node);
    node->is_started = true;
    node->heard_ms = world->now_ms;
    node->tokens_max = effect->tokens_max;
    node->calls_max = effect->calls_max;
    node->processes_max = effect->processes_max;
    buffer_clear(&world->scratch);
    result_ignore(swarm_start_text(/* only that it can be made */
                                   world->swarm,
                                   effect->node,
                                   world->now_ms,
                                   true,
                                   &world->scratch,
                                   NULL
    ));
}

static void answer_effect(struct world *world, const struct swarm_effect *effect) {
    struct world_node *node = &world->nodes[effect->node];
    EXPECT(
        world,
        node->has_ask && node->ask == effect->ask,
        "%s: an answer to call %" PRIu64 ", which is not open",
        name_of(world, effect->node),
        effect->ask
    );
    node->has_ask = false;
    node->heard_ms = world->now_ms;
    world->counts->answers[effect->answer]++;
    if (effect->answer == SWARM_ANSWER_TIMEOUT || effect->answer == SWARM_ANSWER_ENDED ||
        effect->answer == SWARM_ANSWER_MESSAGE) {
        node->has_waited = true;
    }
    if (effect->answer == SWARM_ANSWER_SENT && effect->message < WORLD_MESSAGES_MAX) {
        world->messages[effect->message] =
            (struct world_message){.from = effect->node, .to = world->message_asked_to};
    }
    for (size_t i = 0; effect->answer == SWARM_ANSWER_ENDED && i < effect->node_count; i++) {
        const struct world_node *other = &world->nodes[effect->nodes[i]];
        EXPECT(
            world,
            other->has_ended || !other->is_started ||
                (other->is_cancelled &&
                 world->now_ms - other->cancel_ms >= swarm_options(world->swarm)->kill_grace_ms),
            "%s is said to have ended and has not",
            name_of(world, effect->nodes[i])
        );
    }
    buffer_clear(&world->scratch);
    if (is_failed(swarm_answer_text(world->swarm, effect, &world->scratch, NULL)) ||
        world->scratch.length == 0 || !utf8_is_valid(buffer_view(&world->scratch))) {
        world_problem(world, "an answer without a text, or one that is not UTF-8");
    }
}

static void deliver_effect(struct world *world, const struct swarm_effect *effect) {
    struct world_node *node = &world->nodes[effect->node];
    struct swarm_message message = {0};
    EXPECT(
        world,
        swarm_message(world->swarm, effect->message, &message) && message.to == effect->node,
        "message %" PRIu64 " is not there or not for %s",
        effect->message,
        name_of(world, effect->node)
    );
    EXPECT(world, node->delivering == 0, "%s is given two messages", name_of(world, effect->node));
    EXPECT(
        world,
        effect->message > node->last_message,
        "%s: message %" PRIu64 " after %" PRIu64,
        name_of(world, effect->node),
        effect->message,
        node->last_message
    );
    EXPECT(
        world,
        world->messages[effect->message].fate == WORLD_SENT &&
            world->messages[effect->message].to == effect->node,
        "message %" PRIu64 " is delivered twice or to somebody else",
        effect->message
    );
    world->messages[effect->message].fate = WORLD_GIVEN;
    node->delivering = effect->message;
    node->last_message = effect->message;
}

static void tell_effect(struct world *world, const struct swarm_effect *effect) {
    world->counts->tells[effect->tell]++;
    if (effect->tell == SWARM_TELL_BOUNCED && effect->message < WORLD_MESSAGES_MAX) {
        struct world_message *message = &world->messages[effect->message];
        EXPECT(
            world,
            message->from == effect->node && message->to == effect->about &&
                message->fate != WORLD_CONFIRMED && message->fate != WORLD_BOUNCED,
            "message %" PRIu64 " bounces that was confirmed, or to somebody else",
            effect->message
        );
        message->fate = WORLD_BOUNCED;
    }
    buffer_clear(&world->scratch);
    if (is_failed(swarm_tell_text(world->swarm, effect, world->now_ms, &world->scratch, NULL))) {
        world_problem(world, "a remark without a text");
    }
}

static void share_effect(struct world *world, const struct swarm_effect *effect) {
    struct world_node *node = &world->nodes[effect->node];
    EXPECT(
        world,
        effect->tokens_max >= node->tokens || world->overspent > 0,
        "%s has spent %" PRId64 " tokens and may spend %" PRId64,
        name_of(world, effect->node),
        node->tokens,
        effect->tokens_max
    );
    node->tokens_max = effect->tokens_max;
    node->calls_max = effect->calls_max;
    node->processes_max = effect->processes_max;
}

static void merge_effect(struct world *world, const struct swarm_effect *effect) {
    EXPECT(
        world,
        world->nodes[effect->node].has_ended,
        "%s is merged before it has ended",
        name_of(world, effect->node)
    );
    for (size_t i = 0; i < SWARM_NODES_MAX; i++) {
        EXPECT(
            world,
            !world->nodes[i].is_merged_now || world->nodes[i].merge_target != effect->target,
            "two merges into %s at one time",
            name_of(world, effect->target)
        );
    }
    bool is_result =
        swarm_is_ending(world->swarm) && swarm_result(world->swarm)->node == effect->node;
    EXPECT(
        world,
        !is_result || !world->has_parts,
        "%s, the result, is merged into parts of others: nobody has verified that",
        name_of(world, effect->node)
    );
    world->nodes[effect->node].is_merged_now = true;
    world->nodes[effect->node].merge_target = effect->target;
}

static void verify_effect(struct world *world, const struct swarm_effect *effect) {
    struct world_node *node = &world->nodes[effect->node];
    bool is_cancel = effect->type == SWARM_DO_CANCEL_VERIFY;
    EXPECT(
        world,
        node->is_verified_now == is_cancel,
        "%s: a verification is started twice, or cancelled and not there",
        name_of(world, effect->node)
    );
    EXPECT(
        world,
        is_cancel || (!world->was_ending && effect->time_ms_max > 0 &&
                      (node->has_ended || effect->node == SWARM_ROOT)),
        "%s is verified without time, too early or too late",
        name_of(world, effect->node)
    );
    node->is_verified_now = !is_cancel;
    world->verifications += is_cancel ? (size_t)-1 : 1;
    EXPECT(
        world,
        world->verifications <= SWARM_VERIFICATIONS_MAX,
        "%zu verifications",
        world->verifications
    );
}

static void finish_effect(struct world *world) {
    const struct swarm_result *end = swarm_result(world->swarm);
    const struct swarm_options *options = swarm_options(world->swarm);
    world->is_finished = true;
    world->counts->results[end->outcome]++;
    for (size_t i = 1; i < swarm_node_count(world->swarm); i++) {
        const struct world_node *node = &world->nodes[i];
        bool is_lost =
            node->is_cancelled && (world->now_ms - node->cancel_ms >= options->kill_grace_ms ||
                                   (options->time_ms_max > 0 &&
                                    world->now_ms >= world->started_ms + options->time_ms_max));
        EXPECT(
            world,
            !node->is_started || node->has_ended || is_lost,
            "%s has not ended",
            name_of(world, i)
        );
    }
    EXPECT(world, world->verifications == 0, "a verification runs after the end");
    EXPECT(
        world,
        !world->has_passed || (end->outcome == SWARM_PASSED && end->node != SWARM_NONE),
        "something was verified and the result is %s",
        swarm_outcome_name(end->outcome)
    );
    EXPECT(world, end->why[0] != '\0', "an end without a reason");
    int64_t late_ms = world->started_ms + options->time_ms_max + options->kill_grace_ms;
    EXPECT(
        world,
        options->time_ms_max == 0 || world->now_ms <= late_ms,
        "it ends at %" PRId64 ", %" PRId64 " is the last moment",
        world->now_ms,
        late_ms
    );
}

/* After a node was told to end, and after it has ended, nothing more is asked of it. */
static void expect_alive(struct world *world, const struct swarm_effect *effect) {
    const struct world_node *node = &world->nodes[effect->node];
    bool is_for_agent = effect->type == SWARM_DO_CANCEL || effect->type == SWARM_DO_ANSWER ||
                        effect->type == SWARM_DO_DELIVER || effect->type == SWARM_DO_TELL ||
                        effect->type == SWARM_DO_SET_SHARE || effect->type == SWARM_DO_SET_EFFORT;
    EXPECT(
        world,
        !is_for_agent || (node->is_started && !node->has_ended && !node->is_cancelled),
        "effect %d for %s, which is not at work",
        (int)effect->type,
        name_of(world, effect->node)
    );
}

void world_effect(struct world *world, const struct swarm_effect *effect) {
    world->counts->effects[effect->type]++;
    world_trace(world, 100 + (uint64_t)effect->type);
    world_trace(world, (uint64_t)effect->node);
    EXPECT(world, !world->is_finished, "effect %d after the end", (int)effect->type);
    if (effect->type != SWARM_DO_WAIT) {
        expect_alive(world, effect);
    }
    if (effect->type == SWARM_DO_START) {
        start_effect(world, effect);
    } else if (effect->type == SWARM_DO_CANCEL) {
        world->nodes[effect->node].is_cancelled = true;
        world->nodes[effect->node].cancel_ms = world->now_ms;
    } else if (effect->type == SWARM_DO_ANSWER) {
        answer_effect(world, effect);
    } else if (effect->type == SWARM_DO_DELIVER) {
        deliver_effect(world, effect);
    } else if (effect->type == SWARM_DO_TELL) {
        tell_effect(world, effect);
    } else if (effect->type == SWARM_DO_SET_SHARE) {
        share_effect(world, effect);
    } else if (effect->type == SWARM_DO_MERGE) {
        merge_effect(world, effect);
    } else if (effect->type == SWARM_DO_VERIFY || effect->type == SWARM_DO_CANCEL_VERIFY) {
        verify_effect(world, effect);
    } else if (effect->type == SWARM_DO_RANK) {
        EXPECT(world, !world->is_ranking && !world->was_ending, "a ranking too many");
        world->is_ranking = true;
        world->rank_tokens_max = effect->tokens_max;
    } else if (effect->type == SWARM_DO_WAIT) {
        EXPECT(world, effect->wake_ms > world->now_ms, "a wait for what is past");
        world->wake_ms = effect->wake_ms;
    } else if (effect->type == SWARM_DO_FINISH) {
        finish_effect(world);
    }
}

/* ---- after each event -------------------------------------------------------------------------- */

static void expect_message_fates(struct world *world) {
    for (size_t i = 1; i < WORLD_MESSAGES_MAX && world->messages[i].from != 0; i++) {
        struct world_message *message = &world->messages[i];
        const struct world_node *to = &world->nodes[message->to];
        const struct world_node *from = &world->nodes[message->from];
        bool is_open = message->fate == WORLD_SENT || message->fate == WORLD_GIVEN;
        bool is_gone = to->has_ended || swarm_node(world->swarm, message->to)->state == SWARM_ENDED;
        if (is_open && is_gone && !from->has_ended && !from->is_cancelled) {
            world_problem(world, "message %zu is lost and its sender is not told", i);
        }
    }
}

/* What was promised to all together is there: tokens of those that have ended are spent, those of the
 * others are all that they may spend. */
static void expect_promises_kept(struct world *world) {
    const struct swarm_options *options = swarm_options(world->swarm);
    int64_t tokens = world->is_ranking ? world->rank_tokens_max : 0;
    int64_t processes = 0;
    for (size_t i = 1; i < swarm_node_count(world->swarm); i++) {
        const struct world_node *node = &world->nodes[i];
        bool is_gone = node->has_ended || swarm_node(world->swarm, i)->outcome == SWARM_LOST;
        if (node->is_started) {
            tokens += is_gone || options->tokens_max == 0 ? node->tokens : node->tokens_max;
            processes += is_gone || options->processes_max == 0 ? 0 : node->processes_max;
        }
    }
    EXPECT(
        world,
        options->tokens_max == 0 || tokens - world->overspent <= options->tokens_max,
        "%" PRId64 " tokens are promised of %" PRId64,
        tokens,
        options->tokens_max
    );
    EXPECT(
        world,
        options->processes_max == 0 || processes <= options->processes_max,
        "%" PRId64 " processes are promised of %" PRId64,
        processes,
        options->processes_max
    );
}

void world_settled(struct world *world) {
    const struct swarm_options *options = swarm_options(world->swarm);
    size_t working = 0;
    for (size_t i = 1; i < swarm_node_count(world->swarm); i++) {
        const struct world_node *node = &world->nodes[i];
        bool is_gone = swarm_node(world->swarm, i)->outcome == SWARM_LOST;
        working += node->is_started && !node->has_ended && !node->has_ask && !is_gone ? 1 : 0;
        bool is_told = node->is_cancelled || node->has_ended || !node->is_started || is_gone;
        int64_t lost_ms = node->cancel_ms + options->kill_grace_ms;
        EXPECT(
            world,
            !node->is_cancelled || node->has_ended || is_gone ||
                (world->now_ms < lost_ms && world->wake_ms <= lost_ms),
            "%s was told to end at %" PRId64 " and is still waited for",
            name_of(world, i),
            node->cancel_ms
        );
        EXPECT(
            world,
            is_told || node->same_digests < SWARM_LOOP_TURNS,
            "%s goes round in circles",
            name_of(world, i)
        );
        EXPECT(
            world,
            is_told || node->has_ask || world->now_ms - node->heard_ms < options->silent_ms_max,
            "%s hangs and is not cut",
            name_of(world, i)
        );
        EXPECT(
            world,
            is_told || node->tokens <= node->tokens_max,
            "%s overspends and is not cut",
            name_of(world, i)
        );
    }
    EXPECT(world, working <= options->live_max, "%zu agents at work", working);
    EXPECT(
        world,
        options->tokens_max == 0 || world->tokens - world->overspent <= options->tokens_max,
        "%" PRId64 " tokens spent of %" PRId64,
        world->tokens - world->overspent,
        options->tokens_max
    );
    if (!swarm_is_ending(world->swarm)) {
        expect_promises_kept(world);
        expect_message_fates(world);
    }
    world->was_ending = swarm_is_ending(world->swarm);
}
