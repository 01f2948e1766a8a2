/* The tree of agents in rows; see swarm_view_internal.h. */
#include "strategy.h"
#include "swarm_view_internal.h"

#include <inttypes.h>

#define INDENT_LEVELS_MAX 4 /* deeper ones are shown at this one */
#define NAME_COLUMNS_MIN  8
#define NAME_COLUMNS_MAX  18
#define STATE_COLUMNS     10

/* How much a node is wanted where there is not room for all. */
struct place {
    size_t node, place; /* in the order of the tree */
    int rank;           /* 0: at work, or something below it is */
    int64_t ended_ms;   /* of those that have ended: the last one below it */
};

static int rank_of(const struct swarm *swarm, size_t node, size_t best) {
    switch (swarm_node(swarm, node)->state) {
    case SWARM_STARTING:
    case SWARM_RUNNING:
    case SWARM_VERIFYING:
        return 0;
    case SWARM_WAITING:
        return 1;
    case SWARM_PLANNED:
        return 2;
    case SWARM_ENDED:
        return node == best ? 1 : 3;
    }
    return 3;
}

/* Nodes but the root, each behind its parent and before its younger siblings. */
static size_t order_nodes(const struct swarm *swarm, size_t order[SWARM_NODES_MAX]) {
    size_t first[SWARM_NODES_MAX];
    size_t next[SWARM_NODES_MAX];
    size_t count = swarm_node_count(swarm);
    size_t ordered = 0;
    for (size_t i = 0; i < count; i++) {
        first[i] = SWARM_NONE;
        next[i] = SWARM_NONE;
    }
    for (size_t i = count - 1; i >= 1;
         i--) { /* the youngest first, so that lists begin with the eldest */
        size_t parent = swarm_node(swarm, i)->parent;
        next[i] = first[parent];
        first[parent] = i;
    }
    size_t at = first[SWARM_ROOT];
    while (at != SWARM_NONE) {
        order[ordered++] = at;
        if (first[at] != SWARM_NONE) {
            at = first[at];
            continue;
        }
        while (at != SWARM_ROOT && next[at] == SWARM_NONE) {
            at = swarm_node(swarm, at)->parent;
        }
        at = at == SWARM_ROOT ? SWARM_NONE : next[at];
    }
    return ordered;
}

static int compare_places(const void *left, const void *right) {
    const struct place *a = left;
    const struct place *b = right;
    if (a->rank != b->rank) {
        return a->rank < b->rank ? -1 : 1;
    }
    if (a->ended_ms != b->ended_ms) {
        return a->ended_ms > b->ended_ms ? -1 : 1;
    }
    return a->place < b->place ? -1 : 1;
}

/* Marks the `room` nodes that are wanted most; those above a node are wanted as much as it is. */
static void choose_nodes(
    const struct swarm *swarm, const size_t *order, size_t count, size_t room, bool *is_shown
) {
    struct place by_node[SWARM_NODES_MAX];
    struct place places[SWARM_NODES_MAX];
    size_t best = swarm_best(swarm);
    for (size_t i = 0; i <= count; i++) {
        const struct swarm_node *node = swarm_node(swarm, i);
        int rank = rank_of(swarm, i, best);
        by_node[i] =
            (struct place){.node = i, .rank = rank, .ended_ms = rank == 3 ? node->ended_ms : 0};
    }
    for (size_t i = count; i >= 1; i--) { /* children are younger than parents */
        struct place *parent = &by_node[swarm_node(swarm, i)->parent];
        bool is_more = by_node[i].rank < parent->rank ||
                       (by_node[i].rank == parent->rank && by_node[i].ended_ms > parent->ended_ms);
        if (is_more) {
            parent->rank = by_node[i].rank;
            parent->ended_ms = by_node[i].ended_ms;
        }
    }
    for (size_t i = 0; i < count; i++) {
        places[i] = by_node[order[i]];
        places[i].place = i;
    }
    qsort(places, count, sizeof *places, compare_places);
    for (size_t i = 0; i < count; i++) {
        is_shown[places[i].node] = i < room;
    }
}

static int indent_of(const struct swarm_node *node) {
    size_t levels = node->depth - 1;
    return 2 * (int)(levels < INDENT_LEVELS_MAX ? levels : INDENT_LEVELS_MAX);
}

/* Of the longest name that is shown, within bounds. */
static int name_columns(const struct swarm *swarm, const bool *is_shown) {
    int columns = NAME_COLUMNS_MIN;
    for (size_t i = 1; i < swarm_node_count(swarm); i++) {
        const struct swarm_node *node = swarm_node(swarm, i);
        int used = indent_of(node) + (int)strlen(node->name);
        columns = is_shown[i] && used > columns ? used : columns;
    }
    return columns < NAME_COLUMNS_MAX ? columns : NAME_COLUMNS_MAX;
}

static void put_agent(
    const struct swarm_picture *picture, size_t node, int names, int columns, struct lines *lines
) {
    const struct swarm_node *at = swarm_node(picture->swarm, node);
    struct swarm_host_look look = {.activity = ""};
    picture->look(picture->context, node, &look);
    char tokens[SWARM_VIEW_NUMBER_BYTES];
    char time[SWARM_VIEW_NUMBER_BYTES] = "-";
    char doing[SWARM_VIEW_DOING_BYTES];
    int indent = indent_of(at);
    int64_t turns = at->turns > look.turns ? at->turns : look.turns;
    int64_t worked_ms = swarm_view_worked_ms(picture, node);
    swarm_view_doing(picture, node, doing);
    swarm_view_line(
        lines,
        swarm_view_style(at),
        columns,
        "%*s%-*.*s %-*s %5" PRId64 " %6s %7s  %s",
        indent,
        "",
        names - indent,
        names - indent,
        at->name,
        STATE_COLUMNS,
        swarm_view_state(at),
        turns,
        swarm_view_number(look.tokens, tokens),
        worked_ms > 0 ? swarm_view_time(worked_ms, time) : time,
        doing
    );
}

void swarm_view_agents(
    const struct swarm_picture *picture, size_t rows, int columns, struct lines *lines
) {
    size_t order[SWARM_NODES_MAX];
    bool is_shown[SWARM_NODES_MAX] = {false};
    size_t count = order_nodes(picture->swarm, order);
    ASSERT(rows >= 3);
    ASSERT(count + 1 == swarm_node_count(picture->swarm));
    if (count == 0) {
        return;
    }
    bool is_cut = count + 1 > rows;
    choose_nodes(picture->swarm, order, count, is_cut ? rows - 2 : count, is_shown);
    int names = name_columns(picture->swarm, is_shown);
    swarm_view_line(
        lines,
        STYLE_DIM,
        columns,
        "%-*s %-*s %5s %6s %7s  %s",
        names,
        "agent",
        STATE_COLUMNS,
        "state",
        "turns",
        "tokens",
        "time",
        "doing"
    );
    for (size_t i = 0; i < count; i++) {
        if (is_shown[order[i]]) {
            put_agent(picture, order[i], names, columns, lines);
        }
    }
    if (is_cut) {
        char counts[SWARM_VIEW_DOING_BYTES];
        bool is_counted[SWARM_NODES_MAX] = {false};
        for (size_t i = 1; i <= count; i++) {
            is_counted[i] = !is_shown[i];
        }
        swarm_view_counts(picture->swarm, is_counted, counts);
        swarm_view_line(lines, STYLE_DIM, columns, "and %zu more: %s", count - (rows - 2), counts);
    }
}

/* "of 10:00", or nothing without a limit. */
static void put_limit(char *out, size_t bytes, bool has_limit, const char *limit) {
    int length = snprintf(out, bytes, "%s%s", has_limit ? " of " : "", has_limit ? limit : "");
    ASSERT(length >= 0 && (size_t)length < bytes);
}

void swarm_view_tree(
    const struct swarm_picture *picture,
    const struct swarm_view_facts *facts,
    size_t rows,
    int columns,
    struct lines *lines
) {
    const struct swarm *swarm = picture->swarm;
    const struct swarm_options *options = swarm_options(swarm);
    char counts[SWARM_VIEW_DOING_BYTES];
    char time[SWARM_VIEW_NUMBER_BYTES];
    char number[SWARM_VIEW_NUMBER_BYTES];
    char time_limit[SWARM_VIEW_NUMBER_BYTES + 8];
    char token_limit[SWARM_VIEW_NUMBER_BYTES + 8];
    int64_t tokens = 0;
    ASSERT(rows >= 4);
    for (size_t i = 1; i < swarm_node_count(swarm); i++) {
        struct swarm_host_look look = {.activity = ""};
        picture->look(picture->context, i, &look);
        tokens += look.tokens;
    }
    put_limit(
        time_limit,
        sizeof time_limit,
        options->time_ms_max > 0,
        swarm_view_time(options->time_ms_max, time)
    );
    put_limit(
        token_limit,
        sizeof token_limit,
        options->tokens_max > 0,
        swarm_view_number(options->tokens_max, number)
    );
    swarm_view_counts(swarm, NULL, counts);
    swarm_view_line(
        lines,
        STYLE_HEADING,
        columns,
        "%s%s | %s%s | %s%s tokens | %s",
        options->strategy->name,
        swarm_is_ending(swarm) ? ", ending" : "",
        swarm_view_time(picture->now_ms - facts->begun_ms, time),
        time_limit,
        swarm_view_number(tokens, number),
        token_limit,
        counts
    );
    swarm_view_agents(picture, rows - 1, columns, lines);
}
