/* Checkpoints of random weights: which layers stay, that a model opens from them, that seed and name
 * alone decide the bytes, what is refused. */
#include "engine/model.h"
#include "engine/model_synth.h"
#include "test_checkpoint.h"
#include "test_safetensors.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static void read_config(const char *relative, struct buffer *out) {
    char path[TEST_PATH_MAX];
    buffer_init(out, BUFFER_CEILING_DEFAULT);
    assert_true(test_data_find(path, relative));
    assert_true(is_ok(file_read(path, out, NULL)));
}

static struct model_config *cut(const char *relative, int32_t layers, int32_t experts) {
    CLEANUP(buffer_deinit) struct buffer text = {0};
    CLEANUP(buffer_deinit) struct buffer reduced;
    buffer_init(&reduced, BUFFER_CEILING_DEFAULT);
    read_config(relative, &text);
    struct model_synth_options options = {
        .config = buffer_view(&text), .layers = layers, .experts = experts, .positions = 4096};
    struct error error = {0};
    struct model_config *config = calloc(1, sizeof *config);
    assert_non_null(config);
    if (is_failed(model_synth_config(&options, &reduced, &error)) ||
        is_failed(model_config_parse(buffer_view(&reduced), config, &error))) {
        fail_msg("%d layers: %s", layers, error.message);
    }
    return config;
}

static void every_number_of_layers_gives_a_configuration_that_parses(void **state) {
    (void)state;
    for (int32_t layers = 1; layers <= 40; layers++) {
        struct model_config *config = cut("configs/release.json", layers, layers == 3 ? 4 : 0);
        assert_int_equal(config->layers, layers);
        assert_int_equal(config->experts, layers == 3 ? 4 : 384);
        assert_int_equal(config->experts_chosen, layers == 3 ? 4 : 6);
        assert_int_equal(config->positions_max, 4096);
        assert_int_equal(config->engram_count, layers == 40 ? 2 : 0);
        assert_int_equal(config->draft_layers, layers == 40 ? 3 : 0);
        free(config);
    }
}

static void six_layers_hold_every_kind(void **state) {
    (void)state;
    struct model_config *config = cut("configs/release.json", 6, 0);
    const enum layer_mode modes[] = {
        LAYER_WINDOW, LAYER_FULL, LAYER_REUSE, LAYER_FULL, LAYER_REUSE, LAYER_REINDEX};
    for (int32_t l = 0; l < 6; l++) {
        assert_int_equal(config->plan[l].mode, modes[l]);
        assert_int_equal(config->plan[l].ratio, l == 0 ? 0 : l < 3 ? 2 : 1);
    }
    assert_int_equal(config->encoder_layers, 3);
    assert_int_equal(config->candidate_layer, 3);
    assert_true(config->plan[5].within_pool);
    free(config);
}

static void
write_model(const char *relative, const char *directory, int32_t threads, uint64_t seed) {
    CLEANUP(buffer_deinit) struct buffer text = {0};
    read_config(relative, &text);
    struct model_synth_options options = {
        .config = buffer_view(&text), .directory = directory, .seed = seed, .threads = threads};
    struct model_synth_report report;
    struct error error = {0};
    if (is_failed(model_synth(&options, &report, &error))) {
        fail_msg("%s", error.message);
    }
    assert_int_equal(report.shards, 13); // tiny-a: ten layers, two draft stages, the rest
}

/* Shard 4 holds layer 3. */
static void read_shard(const char *directory, struct buffer *out) {
    char path[TEST_PATH_MAX];
    (void)snprintf(path, sizeof path, "%s/model-00004-of-00013.safetensors", directory);
    buffer_init(out, BUFFER_CEILING_DEFAULT);
    assert_true(is_ok(file_read(path, out, NULL)));
}

static bool same_shard(const char *a, const char *b) {
    CLEANUP(buffer_deinit) struct buffer x = {0};
    CLEANUP(buffer_deinit) struct buffer y = {0};
    read_shard(a, &x);
    read_shard(b, &y);
    return x.length == y.length && memcmp(x.data, y.data, x.length) == 0;
}

static void model_opens_and_its_bytes_depend_on_the_seed_alone(void **state) {
    (void)state;
    char parent[256];
    char names[3][288];
    test_folder_make(parent);
    for (int i = 0; i < 3; i++) {
        (void)snprintf(names[i], sizeof names[i], "%s/%d", parent, i);
        write_model("golden/tiny-a/config.json", names[i], i == 0 ? 1 : 3, i < 2 ? 7 : 8);
    }
    assert_true(same_shard(names[0], names[1]));
    assert_false(same_shard(names[0], names[2]));
    struct model *model = NULL;
    struct error error = {0};
    if (is_failed(model_open(names[0], &model, &error))) {
        fail_msg("%s", error.message);
    }
    assert_true(model->has_draft);
    const uint16_t *norm = model->layers[3].attn_norm; // about one: 1 to 1.5
    for (int32_t i = 0; i < model->config.hidden; i++) {
        assert_in_range(norm[i], 0x3F80, 0x3FBF);
    }
    model_close(model);

    // A directory that holds something is left alone.
    struct model_synth_options options = {.directory = names[0]};
    CLEANUP(buffer_deinit) struct buffer text = {0};
    read_config("golden/tiny-a/config.json", &text);
    options.config = buffer_view(&text);
    struct model_synth_report report;
    assert_int_equal(model_synth(&options, &report, &error).code, RESULT_INVALID_INPUT);
    assert_non_null(strstr(error.message, "not empty"));
    options.layers = 11;
    assert_int_equal(model_synth(&options, &report, &error).code, RESULT_INVALID_INPUT);
    assert_non_null(strstr(error.message, "11 layers wanted, config.json has 10"));
    for (int i = 0; i < 3; i++) {
        test_folder_remove(names[i]);
    }
    test_folder_remove(parent);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_number_of_layers_gives_a_configuration_that_parses),
        cmocka_unit_test(six_layers_hold_every_kind),
        cmocka_unit_test(model_opens_and_its_bytes_depend_on_the_seed_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
