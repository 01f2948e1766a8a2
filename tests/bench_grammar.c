/* What a constraint costs: compiling, the mask of each state met for the first time, masks met
 * before; as a share of a decode step. Built, not run.
 *
 * Usage: bench_grammar [STEP_US]   the length of a step, 1000 when left out */
#include <inttypes.h>
#include <time.h>

#include "engine/chat.h"
#include "engine/chat_grammar.h"
#include "engine/grammar_internal.h"
#include "grammar_support.h"

#define D "｜DSML｜"

static const char edit_schema[] =
    "{\"type\": \"object\", \"properties\": {\"path\": {\"type\": \"string\"}, \"old\": {\"type\": "
    "\"string\"}, \"new\": {\"type\": \"string\"}}, \"required\": [\"path\", \"old\", \"new\"]}";
static const char plan_schema[] =
    "{\"type\": \"object\", \"properties\": {\"title\": {\"type\": \"string\", \"maxLength\": 80}, "
    "\"kind\": {\"enum\": [\"bug\", \"feature\", \"chore\"]}, \"priority\": {\"type\": "
    "\"integer\", "
    "\"minimum\": 1, \"maximum\": 5}, \"steps\": {\"type\": \"array\", \"items\": {\"type\": "
    "\"object\", \"properties\": {\"file\": {\"type\": \"string\"}, \"lines\": {\"type\": "
    "\"array\", "
    "\"items\": {\"type\": \"integer\"}}, \"note\": {\"type\": \"string\", \"maxLength\": 200}}, "
    "\"required\": [\"file\", \"note\"]}}, \"dry_run\": {\"type\": \"boolean\"}}, \"required\": "
    "[\"title\", \"steps\"]}";

static const char edit_turn[] =
    "The loop stops one element early.</think>I will fix the bound.\n\n<" D " calls>\n<" D
    " invoke name=\"edit\">\n<" D " parameter name=\"path\" string=\"true\">src/list.py</" D
    " parameter>\n<" D
    " parameter name=\"old\" string=\"true\">    for i in range(len(items) - 1):\n"
    "        if items[i] < best:\n            best = items[i]\n</" D " parameter>\n<" D
    " parameter name=\"new\" string=\"true\">    for i in range(len(items)):\n        if items[i] "
    "< "
    "best:\n            best = items[i]\n</" D " parameter>\n</" D " invoke>\n</" D " calls>";
static const char plan_turn[] =
    "</think>\n\n<" D " calls>\n<" D " invoke name=\"plan\">\n<" D
    " parameter name=\"title\" string=\"true\">Fix the off-by-one in the list</" D
    " parameter>\n<" D " parameter name=\"kind\" string=\"true\">bug</" D " parameter>\n<" D
    " parameter name=\"priority\" string=\"false\">2</" D " parameter>\n<" D
    " parameter name=\"steps\" string=\"false\">[{\"file\": \"src/list.py\", \"lines\": [12, 13, "
    "140], "
    "\"note\": \"the bound of the loop\"}, {\"file\": \"tests/test_list.py\", \"note\": \"a case "
    "for the "
    "last element\"}]</" D " parameter>\n<" D
    " parameter name=\"dry_run\" string=\"false\">false</" D " parameter>\n</" D " invoke>\n</" D
    " calls>";

static double now_us(void) {
    struct timespec time;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec * 1e6 + (double)time.tv_nsec * 1e-3;
}

/* Longest match between control tokens: as good as the real cut for this purpose. */
static void
cut(struct token_list *ids, const struct grammar_vocabulary *vocabulary, struct view text) {
    static const char *const controls[] = {"</think>", D};
    while (text.length > 0) {
        struct view piece = text;
        for (size_t i = 0; i < COUNT_OF(controls); i++) {
            size_t at = view_find(piece, view_of_text(controls[i]), 0);
            piece = at == 0 ? view_of_text(controls[i]) : view_slice(piece, 0, at);
        }
        int32_t best = -1;
        size_t length = 0;
        for (size_t i = 0; i < grammar_vocabulary_ids(vocabulary); i++) {
            struct view bytes = grammar_vocabulary_token(vocabulary, (int32_t)i);
            if (bytes.length > length && view_starts_with(piece, bytes)) {
                best = (int32_t)i;
                length = bytes.length;
            }
        }
        ASSERT(best >= 0);
        ASSERT(is_ok(token_list_append(ids, best, NULL)));
        text = view_slice(text, length, SIZE_MAX);
    }
}

static int compare(const void *a, const void *b) {
    double left = *(const double *)a;
    double right = *(const double *)b;
    return left < right ? -1 : left > right ? 1 : 0;
}

/* Masks and advances over the ids; us of each step. */
static double pass(struct grammar *grammar, const struct token_list *ids, double *steps) {
    uint32_t state = grammar_start(grammar);
    double total = 0;
    for (size_t i = 0; i < ids->count; i++) {
        const uint64_t *mask = NULL;
        double begin = now_us();
        ASSERT(is_ok(grammar_mask(grammar, state, &mask, NULL)));
        bool may = grammar_test_has(mask, ids->ids[i]);
        ASSERT(is_ok(grammar_advance(grammar, &state, ids->ids[i], NULL)));
        steps[i] = now_us() - begin;
        ASSERT(may);
        total += steps[i];
    }
    return total;
}

static void measure(
    const struct grammar_vocabulary *vocabulary, const char *name, const char *turn, double step
) {
    struct chat_tool tools[] = {
        {.name = view_of_text("edit"), .parameters = view_of_text(edit_schema)},
        {.name = view_of_text("plan"), .parameters = view_of_text(plan_schema)}};
    struct constraint_options options = {
        .tools = tools, .tool_count = 2, .choice = CONSTRAINT_TOOLS_AUTO, .thinking = true};
    CLEANUP(token_list_deinit) struct token_list ids = {NULL, 0, 0, 4096};
    cut(&ids, vocabulary, view_of_text(turn));
    CLEANUP(free_cleanup) double *steps = calloc(ids.count, sizeof *steps);
    ASSERT(steps != NULL);
    double cold[5];
    double hot[5];
    double compiling[5];
    double slowest = 0;
    struct grammar_facts facts = {0};
    for (int run = 0; run < 5; run++) {
        double begin = now_us();
        CLEANUP(grammar_cleanup) struct grammar *grammar = NULL;
        ASSERT(is_ok(chat_grammar_create(&grammar, vocabulary, &options, NULL)));
        compiling[run] = now_us() - begin;
        cold[run] = pass(grammar, &ids, steps);
        qsort(steps, ids.count, sizeof *steps, compare);
        slowest = steps[ids.count - 1];
        grammar_facts(grammar, &facts);
        hot[run] = pass(grammar, &ids, steps);
    }
    qsort(cold, 5, sizeof *cold, compare);
    qsort(hot, 5, sizeof *hot, compare);
    qsort(compiling, 5, sizeof *compiling, compare);
    double count = (double)ids.count;
    (void)printf(
        "%-14s %zu ids: compile %.0f us; cold %.0f us for %zu steps = %.2f us a step (%.2f %% of "
        "%.0f us), slowest %.0f us; met before %.3f us a step (%.3f %%)\n",
        name,
        grammar_vocabulary_ids(vocabulary),
        compiling[2],
        cold[2],
        ids.count,
        cold[2] / count,
        100 * cold[2] / count / step,
        step,
        slowest,
        hot[2] / count,
        100 * hot[2] / count / step
    );
    (void)printf(
        "%-14s nodes %zu, states %zu, masks %zu, trie nodes looked at %zu, %zu KB; %.1f us a "
        "mask\n",
        "",
        facts.nodes,
        facts.states,
        facts.masks,
        facts.trie_nodes,
        facts.bytes / 1024,
        cold[2] / (double)facts.masks
    );
}

int main(int argc, char **argv) {
    double step = argc > 1 ? strtod(argv[1], NULL) : 1000;
    double begin = now_us();
    const struct grammar_vocabulary *mini = grammar_test_vocabulary();
    (void)printf("vocabulary of the bundled model: %.0f ms\n", (now_us() - begin) * 1e-3);
    begin = now_us();
    CLEANUP(grammar_vocabulary_cleanup)
    struct grammar_vocabulary *large = grammar_test_synthetic(129280, 1);
    (void)printf(
        "synthetic vocabulary: %.0f ms, %zu KB\n",
        (now_us() - begin) * 1e-3,
        grammar_vocabulary_bytes(large) / 1024
    );
    measure(mini, "edit call", edit_turn, step);
    measure(mini, "plan call", plan_turn, step);
    measure(large, "edit call", edit_turn, step);
    measure(large, "plan call", plan_turn, step);
    return 0;
}
