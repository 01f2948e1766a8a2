/* Replay quality as a table and a plot: bench_replay [--svg FILE] [--rows N] [--hit-max N].
 *
 * For each model and hit length, prompts of several lengths are evaluated exactly, with bounded
 * replay, and from their last W tokens alone; then N more rows of the text follow. Prints Markdown
 * with mean and largest KL(exact || variant) in nats and how often the likeliest next token is the
 * same. Below the public headers, so not an example. Reading: docs/replay-quality.md. */
#include "replay_quality.h"

#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define TEXT_BYTES_MAX ((size_t)4 << 20)
#define TASKS_MAX      64
#define HITS           9
#define SUFFIX_MAX     300
#define ROWS_MAX       64

static const int32_t hits[HITS] = {130, 200, 334, 500, 1000, 2000, 4000, 8000, 16000};
static const int32_t suffixes[] = {1, 7, 33, 77, 111, 150, 211, SUFFIX_MAX};

struct curve {
    const char *title;
    int count;
    int32_t hit[HITS];
    struct logit_difference at[HITS][REPLAY_VARIANTS];
};

struct options {
    const char *svg; /* null: none */
    int32_t rows, hit_max;
};

/* ---- text of the bundled model -------------------------------------------------------------- */

#define MINI TEST_SOURCE_DIR "/examples/mini/"

PRINTF_LIKE(2, 3) static void make_path(char path[TEST_PATH_MAX], const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(path, TEST_PATH_MAX, format, arguments);
    va_end(arguments);
    assert_true(length > 0 && length < TEST_PATH_MAX);
}

static void read_json(struct json_document **out, const char *path) {
    CLEANUP(buffer_deinit) struct buffer text;
    buffer_init(&text, TEXT_BYTES_MAX);
    MUST(file_read(path, &text, error));
    MUST(json_parse(buffer_view(&text), NULL, out, error));
}

static void add(struct buffer *text, const char *piece) {
    MUST(buffer_append_text(text, piece, error));
}

static void add_member(struct buffer *text, struct json_value object, const char *name) {
    struct view value;
    MUST(json_get_string(object, name, &value, error));
    MUST(buffer_append(text, value, error));
}

/* A rendered transcript; from its first user turn on unless it begins the text. */
static void add_trajectory(struct buffer *text, const char *name) {
    char path[TEST_PATH_MAX];
    CLEANUP(json_cleanup) struct json_document *document = NULL;
    struct view all;
    make_path(path, MINI "golden/%s.json", name);
    read_json(&document, path);
    MUST(json_get_string(json_root(document), "text", &all, error));
    size_t from = text->length == 0 ? 0 : view_find(all, view_of_text("<｜User｜>"), 0);
    assert_true(from < all.length);
    MUST(buffer_append(text, view_slice(all, from, all.length), error));
}

static void begin_call(struct buffer *text, const char *tool) {
    add(text, "</think>\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"");
    add(text, tool);
    add(text, "\">\n");
}

static void
add_parameter(struct buffer *text, const char *name, struct json_value object, const char *member) {
    add(text, "<｜DSML｜ parameter name=\"");
    add(text, name);
    add(text, "\" string=\"true\">");
    add_member(text, object, member);
    add(text, "</｜DSML｜ parameter>\n");
}

static void end_call(struct buffer *text) {
    add(text, "</｜DSML｜ invoke>\n</｜DSML｜ calls><｜end▁of▁sentence｜><｜User｜><tool_result>");
}

static void
add_read(struct buffer *text, const char *directory, struct json_value object, const char *member) {
    char path[TEST_PATH_MAX];
    struct view name;
    begin_call(text, "read");
    add_parameter(text, "path", object, member);
    end_call(text);
    MUST(json_get_string(object, member, &name, error));
    make_path(path, "%s/repo/%.*s", directory, VIEW_ARGUMENTS(name));
    CLEANUP(buffer_deinit) struct buffer file;
    buffer_init(&file, TEXT_BYTES_MAX);
    MUST(file_read(path, &file, error));
    MUST(buffer_append(text, buffer_view(&file), error));
    add(text, "</tool_result><｜Assistant｜><think>");
}

/* A task as the model would solve it: reads the tests and the file, edits, ends. */
static void add_task(struct buffer *text, const char *directory) {
    char path[TEST_PATH_MAX];
    CLEANUP(json_cleanup) struct json_document *document = NULL;
    make_path(path, "%s/task.json", directory);
    read_json(&document, path);
    struct json_value task = json_root(document);
    struct json_value bug = json_get(task, "bug");
    add(text, "<｜User｜>");
    add_member(text, task, "prompt");
    add(text, "<｜Assistant｜><think>");
    add_read(text, directory, task, "tests_file");
    add_read(text, directory, bug, "file");
    begin_call(text, "edit");
    add_parameter(text, "path", bug, "file");
    add_parameter(text, "old", bug, "buggy");
    add_parameter(text, "new", bug, "correct");
    end_call(text);
    add(text, "ok: edited ");
    add_member(text, bug, "file");
    add(text, "</tool_result><｜Assistant｜><think></think>\n\nDone. Fixed `");
    add_member(text, bug, "function");
    add(text, "`.<｜end▁of▁sentence｜>");
}

static int compare_names(const void *a, const void *b) {
    return strcmp(a, b);
}

static void add_tasks(struct buffer *text, const char *folder) {
    char names[TASKS_MAX][256];
    char path[TEST_PATH_MAX];
    size_t count = 0;
    make_path(path, MINI "%s", folder);
    DIR *directory = opendir(path);
    assert_non_null(directory);
    for (struct dirent *entry = readdir(directory); entry != NULL; entry = readdir(directory)) {
        if (entry->d_name[0] >= '0' && entry->d_name[0] <= '9') {
            assert_true(count < TASKS_MAX);
            (void)snprintf(names[count++], sizeof names[0], "%s", entry->d_name);
        }
    }
    closedir(directory);
    qsort(names, count, sizeof names[0], compare_names);
    for (size_t i = 0; i < count; i++) {
        make_path(path, MINI "%s/%s", folder, names[i]);
        add_task(text, path);
    }
}

/* One long agent context: the bundled transcripts, then the tasks. */
static void read_text(struct bench *bench, struct token_list *out) {
    CLEANUP(buffer_deinit) struct buffer text;
    buffer_init(&text, TEXT_BYTES_MAX);
    add_trajectory(&text, "trajectory-b");
    add_trajectory(&text, "trajectory-a");
    add_trajectory(&text, "trajectory-long");
    add_tasks(&text, "tasks");
    add_tasks(&text, "tasks-demo");
    MUST(tokenizer_encode(bench->tokenizer, buffer_view(&text), TOKENIZER_MARKERS_ON, out, error));
}

static void random_text(struct bench *bench, int32_t count, struct token_list *out) {
    uint32_t state = 20;
    for (int32_t i = 0; i < count; i++) {
        state = state * 1664525U + 1013904223U;
        uint32_t range = (uint32_t)bench->config->vocabulary - 80;
        MUST(token_list_append(out, 3 + (int32_t)((state >> 8) % range), error));
    }
}

/* ---- measuring ------------------------------------------------------------------------------ */

static void measure_model(const char *model, const struct options *options, struct curve *curve) {
    int32_t context = options->hit_max + SUFFIX_MAX + options->rows;
    struct bench_options shape = {
        .model = model,
        .threads = 2,
        .rows_max = replay_rows_max(SUFFIX_MAX),
        .sequences_max = REPLAY_SEQUENCES,
        .context_max = context,
    };
    struct bench bench;
    bench_open(&bench, &shape);
    CLEANUP(token_list_deinit) struct token_list text;
    token_list_init(&text, TOKEN_LIST_CEILING_DEFAULT);
    if (strcmp(model, "mini") == 0) {
        read_text(&bench, &text);
        print_error("text of %zu tokens\n", text.count);
    } else {
        random_text(&bench, context, &text);
    }
    struct replay_base base = {0};
    for (int h = 0; h < HITS && hits[h] <= options->hit_max; h++) {
        assert_true(text.count >= (size_t)(hits[h] + SUFFIX_MAX + options->rows));
        replay_base_advance(&bench, &base, text.ids, hits[h]);
        curve->hit[curve->count] = hits[h];
        for (size_t s = 0; s < COUNT_OF(suffixes); s++) {
            struct replay_case chosen = {
                .ids = text.ids,
                .hit = hits[h],
                .length = hits[h] + suffixes[s],
                .rows = options->rows,
            };
            replay_measure(&bench, &base, &chosen, curve->at[curve->count]);
        }
        curve->count++;
        print_error("%s: hit %d\n", model, hits[h]);
    }
    replay_base_release(&bench, &base);
    bench_close(&bench);
}

static void print_table(const struct curve *curve) {
    printf("\n**%s**, %zu rows per line\n\n", curve->title, curve->at[0][0].rows);
    printf("| hit |");
    for (int v = 0; v < REPLAY_VARIANTS; v++) {
        printf(" %s |", replay_variant_names[v]);
    }
    printf("\n|---:|---|---|---|---|\n");
    for (int i = 0; i < curve->count; i++) {
        printf("| %d |", curve->hit[i]);
        for (int v = 0; v < REPLAY_VARIANTS; v++) {
            const struct logit_difference *at = &curve->at[i][v];
            printf(
                " %.2g / %.2g / %.0f %% |",
                logits_kl(at),
                at->kl_max,
                100.0 * (double)at->argmax_equal / (double)at->rows
            );
        }
        printf("\n");
    }
}

/* ---- plot ----------------------------------------------------------------------------------- */

#define PANEL_WIDTH  300
#define PANEL_HEIGHT 260
#define PANEL_LEFT   62
#define PANEL_TOP    64
#define PANEL_STEP   (PANEL_WIDTH + 64)
#define DECADES_DOWN 6 /* KL from 1e-6 nats to 10 */
#define DECADES      7

static double x_of(int panel, double hit) {
    double share = log2(hit / 100) / log2(160); /* 100 to 16,000 */
    return PANEL_LEFT + panel * PANEL_STEP + share * PANEL_WIDTH;
}

static double y_of(double kl) {
    double exponent = log10(kl < 1e-6 ? 1e-6 : kl > 10 ? 10 : kl);
    return PANEL_TOP + PANEL_HEIGHT * (1 - (exponent + DECADES_DOWN) / DECADES);
}

static void draw_frame(FILE *file, int panel, const char *title) {
    int left = PANEL_LEFT + panel * PANEL_STEP;
    fprintf(
        file,
        "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"none\" stroke=\"#888\"/>\n"
        "<text x=\"%d\" y=\"%d\" font-weight=\"bold\">%s</text>\n"
        "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">hit, tokens (log scale)</text>\n",
        left,
        PANEL_TOP,
        PANEL_WIDTH,
        PANEL_HEIGHT,
        left,
        PANEL_TOP - 10,
        title,
        left + PANEL_WIDTH / 2,
        PANEL_TOP + PANEL_HEIGHT + 38
    );
    static const int ticks[] = {130, 500, 2000, 8000, 16000};
    for (size_t i = 0; i < COUNT_OF(ticks); i++) {
        fprintf(
            file,
            "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%d</text>\n",
            x_of(panel, ticks[i]) - (i == 4   ? -6
                                     : i == 3 ? 10
                                              : 0),
            PANEL_TOP + PANEL_HEIGHT + 18,
            ticks[i]
        );
    }
    for (int d = -DECADES_DOWN; d <= DECADES - DECADES_DOWN; d++) {
        double y = y_of(pow(10, d));
        fprintf(
            file,
            "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>\n"
            "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">1e%d</text>\n",
            left,
            left + PANEL_WIDTH,
            y,
            y,
            left - 6,
            y + 4,
            d
        );
    }
}

static void draw_curve(FILE *file, int panel, const struct curve *curve, int v) {
    static const char *const colours[REPLAY_VARIANTS] = {"#0072b2", "#009e73", "#d55e00", "#555"};
    static const char *const dashes[REPLAY_VARIANTS] = {"7 3", "2 3", "none", "10 3 2 3"};
    fprintf(
        file,
        "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\" stroke-dasharray=\"%s\" "
        "points=\"",
        colours[v],
        dashes[v]
    );
    for (int i = 0; i < curve->count; i++) {
        fprintf(file, "%.1f,%.1f ", x_of(panel, curve->hit[i]), y_of(logits_kl(&curve->at[i][v])));
    }
    fprintf(file, "\"/>\n");
    for (int i = 0; i < curve->count; i++) {
        fprintf(
            file,
            "<circle r=\"3\" cx=\"%.1f\" cy=\"%.1f\" fill=\"%s\"/>\n",
            x_of(panel, curve->hit[i]),
            y_of(logits_kl(&curve->at[i][v])),
            colours[v]
        );
    }
    if (panel == 0) {
        int x = PANEL_LEFT + 260 * v;
        fprintf(
            file,
            "<line x1=\"%d\" x2=\"%d\" y1=\"22\" y2=\"22\" stroke=\"%s\" stroke-width=\"2\" "
            "stroke-dasharray=\"%s\"/><text x=\"%d\" y=\"26\">%s</text>\n",
            x,
            x + 40,
            colours[v],
            dashes[v],
            x + 48,
            replay_variant_names[v]
        );
    }
}

/* A light ground of its own, so that it reads on dark pages too. */
static void write_svg(const char *path, const struct curve *curves, int count) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    int width = PANEL_LEFT + count * PANEL_STEP;
    int height = PANEL_TOP + PANEL_HEIGHT + 56;
    fprintf(
        file,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
        "height=\"%d\" font-family=\"sans-serif\" font-size=\"12\" fill=\"#222\">\n"
        "<title>Mean KL of replay variants to the exact computation, by hit length</title>\n"
        "<rect width=\"%d\" height=\"%d\" rx=\"6\" fill=\"#fff\"/>\n"
        "<text transform=\"translate(14 %d) rotate(-90)\" text-anchor=\"middle\">mean KL to exact, "
        "nats (log scale)</text>\n",
        width,
        height,
        width,
        height,
        width,
        height,
        PANEL_TOP + PANEL_HEIGHT / 2
    );
    for (int i = 0; i < count; i++) {
        draw_frame(file, i, curves[i].title);
        for (int v = 0; v < REPLAY_VARIANTS; v++) {
            draw_curve(file, i, &curves[i], v);
        }
    }
    fprintf(file, "</svg>\n");
    assert_int_equal(fclose(file), 0);
}

static struct options given;

static void run(void **state) {
    (void)state;
    static const char *const models[] = {"mini", "golden/tiny-a", "golden/tiny-b"};
    static const char *const titles[] = {
        "bundled model, W 64, agent text", "tiny-a, W 16, random", "tiny-b, W 32, random"};
    struct curve curves[COUNT_OF(models)] = {0};
    int count = 0;
    for (size_t m = 0; m < COUNT_OF(models); m++) {
        char path[TEST_PATH_MAX];
        if (!bench_find_model(path, models[m])) {
            print_error("%s is not there: set HEARTH_TEST_DATA\n", models[m]);
            continue;
        }
        curves[count].title = titles[m];
        measure_model(models[m], &given, &curves[count]);
        print_table(&curves[count++]);
    }
    if (given.svg != NULL) {
        write_svg(given.svg, curves, count);
    }
}

int main(int argc, char **argv) {
    given = (struct options){.rows = 16, .hit_max = hits[HITS - 1]};
    for (int i = 1; i + 1 < argc; i += 2) {
        long value = strtol(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "--svg") == 0) {
            given.svg = argv[i + 1];
        } else if (strcmp(argv[i], "--rows") == 0 && value >= 0 && value <= ROWS_MAX) {
            given.rows = (int32_t)value;
        } else if (strcmp(argv[i], "--hit-max") == 0 && value >= hits[0] && value <= 16000) {
            given.hit_max = (int32_t)value;
        } else {
            (void)fprintf(stderr, "usage: bench_replay [--svg FILE] [--rows N] [--hit-max N]\n");
            return 2;
        }
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(run)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
