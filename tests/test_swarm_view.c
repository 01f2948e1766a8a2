/* What is seen of a swarm: the tree in bounded rows, plain lines, JSON events, the summary at the end. The swarm
 * is a real one, driven by hand; what its agents do is made up. */
#include "runtime/swarm_view_internal.h"
#include "swarm_support.h"

#include <locale.h>
#include <setjmp.h>
#include <stdarg.h>
#include <unistd.h>

#include <cmocka.h>

#define SESSION "0123456789abcdef"

/* A swarm, what its agents are said to do, a view of it, and what that wrote. */
struct stage {
    struct desk desk;
    struct swarm_host_look looks[SWARM_NODES_MAX];
    struct swarm_picture picture;
    struct swarm_view_facts facts;
    struct lines lines;
    FILE *file;
    struct output *output;
    struct swarm_view *view;
    struct buffer written;
};

static void look(void *context, size_t node, struct swarm_host_look *out) {
    struct stage *stage = context;
    *out = stage->looks[node];
    out->activity = out->activity != NULL ? out->activity : "";
    out->directory = out->directory != NULL ? out->directory : "";
}

static struct swarm_options race_of(int64_t attempts) {
    struct swarm_options options = desk_options("race");
    options.attempts = attempts;
    options.has_verifier = true;
    options.time_ms_max = 600000;
    options.tokens_max = 64000;
    return options;
}

static void stage_open(struct stage *stage, const struct swarm_options *options) {
    memset(stage, 0, sizeof *stage);
    desk_open(&stage->desk, options);
    stage->picture = (struct swarm_picture
    ){.swarm = stage->desk.swarm, .look = look, .context = stage, .now_ms = 1000};
    stage->facts = (struct swarm_view_facts){
        .options =
            {.width = 80,
             .height = 24,
             .state_option = "",
             .apply = view_of_text("git -C /w apply")},
        .session = {SESSION},
        .begun_ms = 1000,
    };
    lines_init(&stage->lines, 0, false);
    buffer_init(&stage->written, (size_t)1 << 20);
}

static void stage_view(struct stage *stage, enum display_form form, int height) {
    struct error error = {0};
    stage->file = tmpfile();
    assert_non_null(stage->file);
    assert_true(is_ok(output_create(&stage->output, NULL, fileno(stage->file), &error)));
    const struct swarm_view_options options = {
        .form = form,
        .width = 80,
        .height = height,
        .output = stage->output,
        .workspace = view_of_text("/w/project"),
        .model = view_of_text("/models/m"),
        .verifier = view_of_text("make test"),
        .why = view_of_text("race: because it was said so"),
        .state_option = " --state /s",
    };
    assert_true(is_ok(swarm_view_create(&stage->view, &options, &error)));
    const struct session_id session = {SESSION};
    const struct engine_info engine = {.backend = "cpu", .model_digest = "d1g35t"};
    const struct generation_facts prefix = {.prompt_tokens = 900, .reused = 640, .evaluated = 260};
    swarm_view_begin(stage->view, &stage->picture, &session, &engine, &prefix);
}

static void stage_close(struct stage *stage) {
    swarm_view_destroy(stage->view);
    output_destroy(stage->output);
    if (stage->file != NULL) {
        assert_int_equal(fclose(stage->file), 0);
    }
    lines_deinit(&stage->lines);
    buffer_deinit(&stage->written);
    desk_close(&stage->desk);
}

static void at(struct stage *stage, int64_t now_ms) {
    stage->desk.now_ms = now_ms;
    stage->picture.now_ms = now_ms;
}

static void tell(struct stage *stage, enum swarm_host_event_type type, size_t node) {
    const struct swarm_host_event event = {.type = type, .node = node};
    swarm_view_event(stage->view, &stage->picture, &event);
}

/* All that was written so far. */
static const char *written(struct stage *stage) {
    char bytes[4096];
    ssize_t count = 0;
    buffer_clear(&stage->written);
    off_t at_byte = 0;
    while ((count = pread(fileno(stage->file), bytes, sizeof bytes, at_byte)) > 0) {
        assert_true(is_ok(buffer_append(&stage->written, view_of(bytes, (size_t)count), NULL)));
        at_byte += count;
    }
    return buffer_text(&stage->written);
}

static const char *tree(struct stage *stage, size_t rows, int columns) {
    buffer_clear(&stage->lines.text);
    swarm_view_tree(&stage->picture, &stage->facts, rows, columns, &stage->lines);
    return buffer_text(&stage->lines.text);
}

static size_t count_of(const char *text, const char *part) {
    size_t count = 0;
    for (const char *found = text; (found = strstr(found, part)) != NULL; found += strlen(part)) {
        count++;
    }
    return count;
}

static void expect(const char *text, const char *part) {
    if (strstr(text, part) == NULL) {
        fail_msg("no '%s' in:\n%s", part, text);
    }
}

static void expect_not(const char *text, const char *part) {
    if (strstr(text, part) != NULL) {
        fail_msg("'%s' in:\n%s", part, text);
    }
}

/* So many lines at most, none wider, nothing that a terminal obeys. */
static void expect_shape(const char *text, size_t rows, int columns) {
    size_t lines = 0;
    while (*text != '\0') {
        size_t length = strcspn(text, "\n");
        assert_true(columns_of_text(view_of(text, length)) <= columns);
        for (size_t i = 0; i < length; i++) {
            assert_true((unsigned char)text[i] >= 0x20 && text[i] != 0x7F);
        }
        text += length + (text[length] == '\n' ? 1 : 0);
        lines++;
    }
    assert_true(lines <= rows);
}

/* ---- the tree ----------------------------------------------------------------------------------- */

static void tree_of_few_shows_each_with_what_it_does(void **state) {
    (void)state;
    struct stage stage;
    const struct swarm_options options = race_of(3);
    stage_open(&stage, &options);
    desk_start_all(&stage.desk);
    stage.looks[1] = (struct swarm_host_look
    ){.activity = "shell", .subject = view_of_text("make test"), .tokens = 5321, .turns = 4};
    stage.looks[2] = (struct swarm_host_look){.activity = "thinking", .tokens = 17, .turns = 1};
    at(&stage, 62000);
    const char *text = tree(&stage, 22, 79);
    expect_shape(text, 5, 79);
    expect(text, "race | 1:01 of 10:00 | 5.3k of 64k tokens | 3 at work\n");
    expect(text, "agent-1  running        4   5.3k    1:01  shell: make test\n");
    expect(text, "agent-2  running        1     17    1:01  thinking\n");
    desk_ended(&stage.desk, 2, SWARM_END_ANSWER, "done", 7);
    text = tree(&stage, 22, 79);
    expect(text, "agent-2  verifying");
    expect(text, "is verified");
    desk_verified(&stage.desk, 2, SWARM_VERIFIED_FAIL);
    at(&stage, 90000);
    text = tree(&stage, 22, 79);
    expect(text, "agent-2  failed         1     17    1:01  7 lines; 2 tests failed\n");
    expect(text, "2 at work, 1 failed\n");
    stage_close(&stage);
}

static void children_stand_below_their_parents(void **state) {
    (void)state;
    struct stage stage;
    struct swarm_options options = race_of(2);
    stage_open(&stage, &options);
    desk_start_all(&stage.desk);
    const struct view brief = view_of_text("look at the lexer");
    desk_asked(
        &stage.desk,
        1,
        (struct swarm_ask
        ){.type = SWARM_ASK_SPAWN, .briefs = &brief, .brief_count = 1, .name = view_of_text("kid")}
    );
    desk_start_all(&stage.desk);
    const char *text = tree(&stage, 22, 79);
    const char *parent = strstr(text, "\nagent-1 ");
    const char *child = strstr(text, "\n  kid  ");
    const char *sibling = strstr(text, "\nagent-2 ");
    assert_true(parent != NULL && child != NULL && sibling != NULL);
    assert_true(parent < child && child < sibling);
    expect_shape(text, 5, 79);
    stage_close(&stage);
}

static void tree_of_many_keeps_to_its_rows(void **state) {
    (void)state;
    struct stage stage;
    struct swarm_options options = race_of(63);
    options.live_max = 4;
    options.tokens_max = 0;
    stage_open(&stage, &options);
    desk_start_all(&stage.desk);
    for (size_t i = 1; i <= 30; i++) {
        at(&stage, 1000 + 100 * (int64_t)i);
        desk_ended(&stage.desk, i, SWARM_END_ANSWER, "done", 3);
        desk_verified(&stage.desk, i, i == 9 ? SWARM_VERIFIED_CRASHED : SWARM_VERIFIED_FAIL);
        desk_start_all(&stage.desk);
    }
    for (size_t rows = 4; rows <= 70; rows += 3) {
        const char *text = tree(&stage, rows, 79);
        expect_shape(text, rows, 79);
        if (rows >= 10) { /* those at work are never left out for others */
            assert_int_equal(count_of(text, " running "), 4);
        }
    }
    const char *text = tree(&stage, 12, 79);
    assert_int_equal(count_of(text, "\n"), 12);
    expect(
        text, "race | 0:03 of 10:00 | 0 tokens | 4 at work, 29 planned, 1 unverified, 29 faile\n"
    );
    expect(text, "and 54 more: 25 planned, 29 failed\n"); /* the best one stays */
    expect(text, "agent-9  unverified");
    text = tree(&stage, 70, 79);
    assert_int_equal(count_of(text, "\n"), 65);
    expect_not(text, " more: ");
    stage_close(&stage);
}

static void the_last_that_ended_stay_longest(void **state) {
    (void)state;
    struct stage stage;
    struct swarm_options options = race_of(20);
    options.live_max = 20;
    stage_open(&stage, &options);
    desk_start_all(&stage.desk);
    for (size_t i = 1; i <= 19; i++) {
        at(&stage, 1000 + 100 * (int64_t)i);
        desk_ended(&stage.desk, i, SWARM_END_FAULT, "", 0);
    }
    const char *text = tree(&stage, 8, 79);
    expect(text, "\nagent-20 "); /* at work */
    expect(text, "\nagent-19 ");
    expect(text, "\nagent-18 ");
    expect(text, "and 15 more: 15 failed\n");
    stage_close(&stage);
}

static void foreign_texts_are_one_harmless_line(void **state) {
    (void)state;
    struct stage stage;
    const struct swarm_options options = race_of(2);
    char long_text[6000];
    memset(long_text, 'x', sizeof long_text);
    stage_open(&stage, &options);
    desk_start_all(&stage.desk);
    stage.looks[1] = (struct swarm_host_look
    ){.activity = "shell",
      .subject = view_of_text("\n\techo \x1b[2J\x07 \xff \xe2\x80\xae\nsecond")};
    stage.looks[2] = (struct swarm_host_look
    ){.activity = "shell", .subject = view_of(long_text, sizeof long_text)};
    const char *text = tree(&stage, 10, 79);
    expect_shape(text, 4, 79);
    expect(text, "shell: echo \\x1b[2J\\x07");
    expect_not(text, "second");
    expect_not(text, "\xe2\x80\xae");
    expect_shape(tree(&stage, 10, 30), 4, 30);
    /* A tool's name is whatever the model wrote. */
    stage.looks[1] = (struct swarm_host_look){.activity = "\x1b[2J\x1b]0;owned\x07"};
    stage.looks[2] = (struct swarm_host_look
    ){.activity = "a\nb\xe2\x80\xae\xff", .subject = view_of_text("make")};
    text = tree(&stage, 10, 79);
    expect_shape(text, 4, 79);
    expect_not(text, "\x1b");
    expect_not(text, "\x07");
    expect(text, ": make");
    stage_close(&stage);
}

static void colours_only_where_they_are_wanted(void **state) {
    (void)state;
    struct stage stage;
    const struct swarm_options options = race_of(2);
    stage_open(&stage, &options);
    desk_start_all(&stage.desk);
    expect_not(tree(&stage, 10, 79), "\x1b");
    stage.lines.has_colour = true;
    expect(tree(&stage, 10, 79), "\x1b[1mrace");
    stage_close(&stage);
}

/* ---- plain -------------------------------------------------------------------------------------- */

static void plain_form_says_each_change_once(void **state) {
    (void)state;
    struct stage stage;
    const struct swarm_options options = race_of(2);
    stage_open(&stage, &options);
    stage_view(&stage, DISPLAY_PLAIN, 0);
    tell(&stage, SWARM_HOST_NODE, 1);
    tell(&stage, SWARM_HOST_NODE, 1);
    desk_start_all(&stage.desk);
    at(&stage, 3500);
    tell(&stage, SWARM_HOST_NODE, 1);
    tell(&stage, SWARM_HOST_ACTIVITY, 1);
    tell(&stage, SWARM_HOST_NODE, 1);
    stage.looks[1].tokens = 1234;
    stage.looks[1].calls = 3;
    desk_turn(&stage.desk, 1, 1234, 5);
    desk_ended(&stage.desk, 1, SWARM_END_ANSWER, "mended", 12);
    tell(&stage, SWARM_HOST_NODE, 1);
    desk_verified(&stage.desk, 1, SWARM_VERIFIED_PASS);
    const struct swarm_host_event verified = {
        .type = SWARM_HOST_VERIFIED, .node = 1, .verdict = SWARM_VERIFIED_PASS};
    swarm_view_event(stage.view, &stage.picture, &verified);
    tell(&stage, SWARM_HOST_NODE, 1);
    tell(&stage, SWARM_HOST_NODE, 1);
    const char *text = written(&stage);
    expect(text, "session " SESSION "\nrace: because it was said so\n");
    expect(text, "900 tokens that all agents share: 640 reused, 260 evaluated\n");
    expect(text, "    0.0 s  agent-1            starting   fork of root\n");
    expect(text, "    2.5 s  agent-1            running");
    expect(text, "agent-1            verifying");
    expect(text, "           agent-1 passes\n");
    expect(text, "agent-1            passed     12 lines; 1 turn, 1.2k tokens, 3 calls\n");
    assert_int_equal(count_of(text, "\n"), 8);
    expect_not(text, "\x1b");
    stage_close(&stage);
}

/* Wherever a brief is cut, no half of a character is shown. */
static void plain_form_cuts_between_characters(void **state) {
    (void)state;
    for (size_t skip = 0; skip < 3; skip++) {
        struct stage stage;
        char text[700] = "xxx";
        const struct swarm_options options = race_of(1);
        for (size_t i = 0; i < 200; i++) {
            memcpy(text + skip + i * 3, "\xe2\x82\xac", 4);
        }
        const struct view brief = view_of_text(text);
        stage_open(&stage, &options);
        stage_view(&stage, DISPLAY_PLAIN, 0);
        desk_start_all(&stage.desk);
        desk_asked(
            &stage.desk,
            1,
            (struct swarm_ask
            ){.type = SWARM_ASK_SPAWN,
              .briefs = &brief,
              .brief_count = 1,
              .name = view_of_text("kid")}
        );
        tell(&stage, SWARM_HOST_NODE, 2);
        const char *shown = written(&stage);
        expect(shown, "spawn of agent-1: ");
        expect_not(shown, "\xef\xbf\xbd");
        assert_true(utf8_is_valid(view_of_text(shown)));
        stage_close(&stage);
    }
}

static void plain_form_says_why_and_where(void **state) {
    (void)state;
    struct stage stage;
    const struct swarm_options options = race_of(2);
    stage_open(&stage, &options);
    stage_view(&stage, DISPLAY_PLAIN, 0);
    desk_start_all(&stage.desk);
    const struct swarm_host_event events[] = {
        {.type = SWARM_HOST_VERIFIED,
         .node = 1,
         .verdict = SWARM_VERIFIED_FAIL,
         .text = view_of_text("ok 1\nFAIL: \x1b]0;t\x07two\n\n")},
        {.type = SWARM_HOST_MERGED,
         .node = 2,
         .merge = SWARM_MERGE_CONFLICTS,
         .text = view_of_text("src/a.c\nsrc/b.c")},
        {.type = SWARM_HOST_MESSAGE, .node = 1, .other = 2, .text = view_of_text("look\nthere")},
        {.type = SWARM_HOST_WARNING, .text = view_of_text("the disk is nearly full")},
        {.type = SWARM_HOST_ENDING},
    };
    for (size_t i = 0; i < COUNT_OF(events); i++) {
        swarm_view_event(stage.view, &stage.picture, &events[i]);
    }
    const char *text = written(&stage);
    expect(text, "agent-1 fails: FAIL: \\x1b]0;t\\x07two\n");
    expect(text, "agent-2 is not merged into root, conflicts: src/a.c\n");
    expect(text, "agent-1 to agent-2: look\n");
    expect(text, "the disk is nearly full\n");
    expect(text, "it is decided; what runs is being ended\n");
    stage_close(&stage);
}

/* ---- JSON --------------------------------------------------------------------------------------- */

/* The nth line as a document. */
static struct json_document *line_at(const char *text, size_t nth) {
    struct json_document *document = NULL;
    struct error error = {0};
    for (; nth > 0; nth--) {
        text = strchr(text, '\n');
        assert_non_null(text);
        text++;
    }
    if (is_failed(json_parse(view_of(text, strcspn(text, "\n")), NULL, &document, &error))) {
        fail_msg("%s", error.message);
    }
    return document;
}

static void expect_text(struct json_document *document, const char *key, const char *value) {
    struct view found = {0};
    assert_true(json_as_string(json_get(json_root(document), key), &found));
    if (!view_equals_text(found, value)) {
        fail_msg("%s is '%.*s', not '%s'", key, VIEW_ARGUMENTS(found), value);
    }
}

static void expect_number(struct json_document *document, const char *key, int64_t value) {
    int64_t found = 0;
    assert_true(json_as_i64(json_get(json_root(document), key), &found));
    assert_int_equal(found, value);
}

static void json_form_has_an_event_for_each_step(void **state) {
    (void)state;
    struct stage stage;
    const struct swarm_options options = race_of(2);
    stage_open(&stage, &options);
    stage_view(&stage, DISPLAY_JSON, 0);
    desk_start_all(&stage.desk);
    at(&stage, 2000);
    tell(&stage, SWARM_HOST_NODE, 1);
    tell(&stage, SWARM_HOST_ACTIVITY, 1);
    const struct run_status status = {.turn = 3};
    const struct run_event content = {
        .type = RUN_CONTENT, .status = &status, .text = view_of_text("I \xff see")};
    const struct run_event ended = {.type = RUN_FINISHED, .status = &status};
    struct swarm_host_event run = {.type = SWARM_HOST_RUN, .node = 2, .run = &content};
    swarm_view_event(stage.view, &stage.picture, &run);
    run.run = &ended; /* the agent's event tells it */
    swarm_view_event(stage.view, &stage.picture, &run);
    stage.looks[1].prompt_tokens = 1000;
    stage.looks[1].reused_tokens = 900;
    desk_ended(&stage.desk, 1, SWARM_END_ANSWER, "mended", 12);
    desk_verified(&stage.desk, 1, SWARM_VERIFIED_PASS);
    tell(&stage, SWARM_HOST_NODE, 1);
    const char *text = written(&stage);
    assert_int_equal(count_of(text, "\n"), 4);

    CLEANUP(json_cleanup) struct json_document *begin = line_at(text, 0);
    expect_text(begin, "event", "swarm");
    expect_number(begin, "schema", SWARM_VIEW_SCHEMA);
    expect_text(begin, "session", SESSION);
    expect_text(begin, "strategy", "race");
    expect_text(begin, "why", "race: because it was said so");
    expect_text(begin, "verifier", "make test");
    expect_number(begin, "attempts", 2);
    expect_number(begin, "tokens_max", 64000);
    expect_number(begin, "prefix", 900);
    CLEANUP(json_cleanup) struct json_document *runs = line_at(text, 1);
    expect_text(runs, "event", "agent");
    expect_text(runs, "agent", "agent-1");
    expect_text(runs, "parent", "root");
    expect_text(runs, "state", "running");
    expect_text(runs, "outcome", "");
    expect_number(runs, "elapsed_ms", 1000);
    CLEANUP(json_cleanup) struct json_document *said = line_at(text, 2);
    expect_text(said, "event", "content");
    expect_text(said, "agent", "agent-2");
    expect_number(said, "turn", 3);
    CLEANUP(json_cleanup) struct json_document *passed = line_at(text, 3);
    expect_text(passed, "state", "ended");
    expect_text(passed, "outcome", "passed");
    expect_text(passed, "verdict", "pass");
    expect_text(passed, "summary", "mended");
    expect_number(passed, "changed_lines", 12);
    expect_number(passed, "reused", 900);
    stage_close(&stage);
}

/* ---- the end ------------------------------------------------------------------------------------ */

/* A race that its first attempt has won. */
static void win(struct stage *stage, enum swarm_merge merge) {
    desk_start_all(&stage->desk);
    at(stage, 42000);
    desk_ended(
        &stage->desk, 1, SWARM_END_ANSWER, "\n\nI mended the parser.\n\nAll tests pass.", 12
    );
    desk_verified(&stage->desk, 1, SWARM_VERIFIED_PASS);
    if (desk_effect_for(&stage->desk, SWARM_DO_CANCEL, 2) != NULL) {
        desk_ended(&stage->desk, 2, SWARM_END_CANCEL, "", 0);
    }
    desk_merged(&stage->desk, 1, merge);
    for (size_t i = 0; i < 4 && !swarm_is_finished(stage->desk.swarm); i++) {
        if (desk_effect(&stage->desk, SWARM_DO_VERIFY, 0) != NULL) {
            desk_verified(
                &stage->desk,
                desk_effect(&stage->desk, SWARM_DO_VERIFY, 0)->node,
                SWARM_VERIFIED_PASS
            );
        }
    }
    assert_true(swarm_is_finished(stage->desk.swarm));
}

static const struct swarm_host_totals totals = {
    .nodes = 2,
    .tokens = 5100,
    .calls = 9,
    .prompt_tokens = 31200,
    .reused_tokens = 28080,
    .evaluated_tokens = 3120,
    .verifications = 1,
    .merges = 1,
    .duration_ms = 41000,
};

static const char *summary(struct stage *stage) {
    const struct swarm_view_end end = {.totals = &totals, .commit = "f00d"};
    stage->facts.options.verifier = view_of_text("make test");
    stage->facts.options.why = view_of_text("race: a verifier is there: the first of 2 attempts "
                                            "that passes wins, and this sentence goes on");
    swarm_view_summary(&stage->picture, &stage->facts, &end, &stage->lines);
    return buffer_text(&stage->lines.text);
}

static void summary_says_who_what_and_where(void **state) {
    (void)state;
    struct stage stage;
    const struct swarm_options options = race_of(2);
    stage_open(&stage, &options);
    win(&stage, SWARM_MERGE_OK);
    const char *text = summary(&stage);
    expect_shape(text, 40, 80);
    expect(text, "agent-1  passed         0      0    0:41  12 lines; merged\n");
    expect(text, "agent-2  cancelled      0      0    0:41  its result is not needed");
    expect(text, "result     passed: that of agent-1, 12 lines changed; it is in the workspace\n");
    expect(text, "said       I mended the parser.\n           All tests pass.\n");
    expect(text, "that passes wins,\n           and this sentence goes on\n");
    expect(text, "verifier   make test\n");
    expect(text, "agents     2: 1 passed, 1 cancelled\n");
    expect(
        text,
        "spent      0:41 of 10:00, 5.1k of 64k tokens written, 9 calls, 1 verification,\n"
        "           1 merge\n"
    );
    expect(text, "reused     28k of 31k tokens of prompts (90%), 3.1k evaluated\n");
    expect(text, "details    hearth sessions show " SESSION " --tree\n");
    expect(text, "changes    hearth sessions diff " SESSION "\n");
    stage_close(&stage);
}

static void summary_says_how_to_take_what_was_not_merged(void **state) {
    (void)state;
    struct stage stage;
    const struct swarm_options options = race_of(2);
    stage_open(&stage, &options);
    win(&stage, SWARM_MERGE_CONFLICTS);
    stage.facts.options.state_option = " --state '/a b'";
    stage.looks[2].directory = "/state/swarms/x/agent-2";
    stage.looks[2].is_kept = true;
    const char *text = summary(&stage);
    expect(text, "12 lines; conflicts in src/parser.c\n");
    expect(text, "workspace, which has other changes: conflicts\n");
    expect(
        text,
        "take it    hearth sessions diff " SESSION
        " --agent agent-1 --state '/a b' | git -C /w apply\n"
    );
    expect(text, "not saved  agent-2: /state/swarms/x/agent-2\n");
    stage_close(&stage);
}

static void summary_of_nothing_says_so(void **state) {
    (void)state;
    struct stage stage;
    const struct swarm_options options = race_of(2);
    stage_open(&stage, &options);
    desk_start_all(&stage.desk);
    desk_ended(&stage.desk, 1, SWARM_END_FAULT, "", 0);
    desk_ended(&stage.desk, 2, SWARM_END_FAULT, "", 0);
    assert_true(swarm_is_finished(stage.desk.swarm));
    const char *text = summary(&stage);
    expect(text, "result     ");
    expect(text, "there is none");
    expect_not(text, "hearth sessions diff");
    expect(text, "hearth sessions show " SESSION " --tree\n");
    stage_close(&stage);
}

static void json_form_ends_with_the_numbers(void **state) {
    (void)state;
    struct stage stage;
    const struct swarm_options options = race_of(2);
    stage_open(&stage, &options);
    stage_view(&stage, DISPLAY_JSON, 0);
    win(&stage, SWARM_MERGE_OK);
    const struct swarm_view_end end = {.totals = &totals, .commit = "f00d", .exit_status = 0};
    swarm_view_finish(stage.view, &stage.picture, &end);
    CLEANUP(json_cleanup) struct json_document *last = line_at(written(&stage), 1);
    expect_text(last, "event", "swarm_finished");
    expect_text(last, "outcome", "passed");
    expect_text(last, "agent", "agent-1");
    expect_text(last, "commit", "f00d");
    expect_number(last, "sampled", 5100);
    expect_number(last, "reused", 28080);
    expect_number(last, "exit_status", 0);
    stage_close(&stage);
}

/* ---- a terminal --------------------------------------------------------------------------------- */

static void terminal_form_draws_in_place_and_leaves_a_summary(void **state) {
    (void)state;
    struct stage stage;
    const struct swarm_options options = race_of(2);
    stage_open(&stage, &options);
    stage_view(&stage, DISPLAY_TERMINAL, 24);
    desk_start_all(&stage.desk);
    tell(&stage, SWARM_HOST_NODE, 1);
    size_t before = strlen(written(&stage));
    swarm_view_draw(stage.view, &stage.picture);
    assert_int_equal(strlen(written(&stage)), before); /* nothing has changed */
    stage.looks[2].activity = "thinking";
    swarm_view_draw(stage.view, &stage.picture);
    const char *text = written(&stage);
    expect(text + before, "agent-2  running");
    expect_not(text + before, "agent-1"); /* only what has changed, in its place */
    expect_not(text + before, "\n");
    before = strlen(text);
    at(&stage, 3000);
    swarm_view_draw(stage.view, &stage.picture);
    text = written(&stage);
    expect(text + before, "\x1b[3A"); /* up to the first row */
    assert_int_equal(count_of(text + before, "\n"), 3);
    win(&stage, SWARM_MERGE_OK);
    before = strlen(written(&stage));
    const struct swarm_view_end end = {.totals = &totals, .commit = "f00d"};
    swarm_view_finish(stage.view, &stage.picture, &end);
    text = written(&stage);
    expect(text + before, "\x1b[J"); /* the rows go */
    expect(text + before, "result     passed: that of agent-1");
    swarm_view_draw(stage.view, &stage.picture);
    assert_int_equal(strlen(written(&stage)), stage.written.length);
    stage_close(&stage);
}

static void small_terminal_is_kept_to(void **state) {
    (void)state;
    struct stage stage;
    struct swarm_options options = race_of(40);
    options.live_max = 40;
    stage_open(&stage, &options);
    stage_view(&stage, DISPLAY_TERMINAL, 9);
    desk_start_all(&stage.desk);
    size_t before = strlen(written(&stage));
    swarm_view_draw(stage.view, &stage.picture);
    assert_true(count_of(written(&stage) + before, "\n") <= 8);
    expect(buffer_text(&stage.written) + before, " more: ");
    swarm_view_set_size(stage.view, 100, 30);
    before = strlen(written(&stage));
    swarm_view_draw(stage.view, &stage.picture);
    assert_true(count_of(written(&stage) + before, "agent-") > 20);
    stage_close(&stage);
}

int main(void) {
    (void)setlocale(LC_CTYPE, "C.UTF-8");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tree_of_few_shows_each_with_what_it_does),
        cmocka_unit_test(children_stand_below_their_parents),
        cmocka_unit_test(tree_of_many_keeps_to_its_rows),
        cmocka_unit_test(the_last_that_ended_stay_longest),
        cmocka_unit_test(foreign_texts_are_one_harmless_line),
        cmocka_unit_test(colours_only_where_they_are_wanted),
        cmocka_unit_test(plain_form_says_each_change_once),
        cmocka_unit_test(plain_form_cuts_between_characters),
        cmocka_unit_test(plain_form_says_why_and_where),
        cmocka_unit_test(json_form_has_an_event_for_each_step),
        cmocka_unit_test(summary_says_who_what_and_where),
        cmocka_unit_test(summary_says_how_to_take_what_was_not_merged),
        cmocka_unit_test(summary_of_nothing_says_so),
        cmocka_unit_test(json_form_ends_with_the_numbers),
        cmocka_unit_test(terminal_form_draws_in_place_and_leaves_a_summary),
        cmocka_unit_test(small_terminal_is_kept_to),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
