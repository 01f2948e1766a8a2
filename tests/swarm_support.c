/* See swarm_support.h. */
#include "swarm_support.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

struct swarm_options desk_options(const char *strategy) {
    return (struct swarm_options){
        .task = view_of_text("mend the parser"),
        .strategy = strategy_find(view_of_text(strategy)),
        .attempts = SWARM_ATTEMPTS_DEFAULT,
        .seed = 7,
    };
}

void desk_open(struct desk *desk, const struct swarm_options *options) {
    struct error error = {0};
    *desk = (struct desk){.now_ms = 1000};
    buffer_init(&desk->text, (size_t)1 << 20);
    if (is_failed(swarm_create(&desk->swarm, options, &error))) {
        fail_msg("%s", error.message);
    }
    desk_event(desk, (struct swarm_event){.type = SWARM_START});
}

void desk_close(struct desk *desk) {
    swarm_destroy(desk->swarm);
    buffer_deinit(&desk->text);
}

void desk_event(struct desk *desk, struct swarm_event event) {
    struct error error = {0};
    event.now_ms = desk->now_ms;
    swarm_handle(desk->swarm, &event, &desk->effects);
    if (is_failed(swarm_check(desk->swarm, &error))) {
        fail_msg("%s", error.message);
    }
}

void desk_at(struct desk *desk, int64_t now_ms) {
    desk->now_ms = now_ms;
    desk_event(desk, (struct swarm_event){.type = SWARM_TIME});
}

void desk_started(struct desk *desk, size_t node) {
    desk_event(desk, (struct swarm_event){.type = SWARM_NODE_STARTED, .node = node});
}

void desk_start_all(struct desk *desk) {
    for (size_t i = 1; i < swarm_node_count(desk->swarm); i++) {
        if (desk_node(desk, i)->state == SWARM_STARTING) {
            desk_started(desk, i);
        }
    }
}

void desk_turn(struct desk *desk, size_t node, int64_t tokens, uint64_t digest) {
    desk_event(
        desk,
        (struct swarm_event
        ){.type = SWARM_TURN_ENDED, .node = node, .tokens = tokens, .calls = 1, .digest = digest}
    );
}

void desk_ended(
    struct desk *desk, size_t node, enum swarm_end end, const char *text, int64_t lines
) {
    desk_event(
        desk,
        (struct swarm_event){
            .type = SWARM_NODE_ENDED,
            .node = node,
            .end = end,
            .text = view_of_text(text),
            .commit = view_of_text(lines > 0 ? "c0ffee" : ""),
            .changed_lines = lines,
        }
    );
}

void desk_verified(struct desk *desk, size_t node, enum swarm_verdict verdict) {
    desk_event(
        desk,
        (struct swarm_event){
            .type = SWARM_VERIFIED,
            .node = node,
            .verdict = verdict,
            .detail = view_of_text("2 tests failed"),
        }
    );
}

void desk_merged(struct desk *desk, size_t node, enum swarm_merge merge) {
    desk_event(
        desk,
        (struct swarm_event){
            .type = SWARM_MERGED,
            .node = node,
            .merge = merge,
            .detail = view_of_text(merge == SWARM_MERGE_OK ? "" : "src/parser.c"),
            .commit = view_of_text("f00d"),
            .changed_lines = 3,
        }
    );
}

void desk_asked(struct desk *desk, size_t node, struct swarm_ask ask) {
    ask.number = ++desk->call;
    desk_event(desk, (struct swarm_event){.type = SWARM_ASKED, .node = node, .ask = &ask});
}

const struct swarm_effect *
desk_effect(const struct desk *desk, enum swarm_effect_type type, size_t nth) {
    for (size_t i = 0; i < desk->effects.count; i++) {
        if (desk->effects.items[i].type == type && nth-- == 0) {
            return &desk->effects.items[i];
        }
    }
    return NULL;
}

const struct swarm_effect *
desk_effect_for(const struct desk *desk, enum swarm_effect_type type, size_t node) {
    for (size_t i = 0; i < desk->effects.count; i++) {
        if (desk->effects.items[i].type == type && desk->effects.items[i].node == node) {
            return &desk->effects.items[i];
        }
    }
    return NULL;
}

size_t desk_count(const struct desk *desk, enum swarm_effect_type type) {
    size_t count = 0;
    while (desk_effect(desk, type, count) != NULL) {
        count++;
    }
    return count;
}

const char *desk_answer(struct desk *desk, size_t node) {
    const struct swarm_effect *effect = desk_effect_for(desk, SWARM_DO_ANSWER, node);
    struct error error = {0};
    assert_non_null(effect);
    buffer_clear(&desk->text);
    if (is_failed(swarm_answer_text(desk->swarm, effect, &desk->text, &error))) {
        fail_msg("%s", error.message);
    }
    return buffer_text(&desk->text);
}

const struct swarm_node *desk_node(const struct desk *desk, size_t node) {
    return swarm_node(desk->swarm, node);
}
