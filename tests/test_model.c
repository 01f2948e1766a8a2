/* Configuration and layer plan, sizes of the released model, roles of real checkpoints. */
#include "engine/model.h"
#include "engine/model_inspect.h"
#include "test_checkpoint.h"
#include "test_safetensors.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static void read_text(const char *relative, struct buffer *out) {
    char path[TEST_PATH_MAX];
    struct error error;
    buffer_init(out, BUFFER_CEILING_DEFAULT);
    assert_true(test_data_find(path, relative));
    assert_true(is_ok(file_read(path, out, &error)));
}

static void parse_file(const char *relative, struct model_config *config) {
    CLEANUP(buffer_deinit) struct buffer text = {NULL, 0, 0, 0};
    struct error error;
    read_text(relative, &text);
    result parsed = model_config_parse(buffer_view(&text), config, &error);
    if (is_failed(parsed)) {
        fail_msg("%s: %s", relative, error.message);
    }
}

static void config_release_gives_the_published_plan(void **state) {
    (void)state;
    struct model_config c;
    parse_file("configs/release.json", &c);
    assert_int_equal(c.encoder_layers, 20);
    assert_int_equal(c.kv_source_count, 4);
    // Spec 1.5, column by column: mode, KV read from, selection of.
    for (int32_t l = 0; l < 40; l++) {
        const struct layer_plan *p = &c.plan[l];
        int32_t source = l < 2 ? -1 : l < 8 ? 2 : l < 14 ? 8 : l < 20 ? 14 : 20;
        int32_t select = l < 20 ? source : 20 + (l - 20) / 4 * 4;
        bool full = l == 2 || l == 8 || l == 14 || l == 20;
        bool reindex = l == 24 || l == 28 || l == 32 || l == 36;
        enum layer_mode mode = l < 2     ? LAYER_WINDOW
                               : full    ? LAYER_FULL
                               : reindex ? LAYER_REINDEX
                                         : LAYER_REUSE;
        assert_int_equal(p->mode, mode);
        assert_int_equal(p->ratio, l < 2 ? 0 : l < 20 ? 2 : 1);
        assert_int_equal(p->source < 0 ? -1 : c.kv_source_layers[p->source], source);
        assert_int_equal(p->select_layer, select);
        assert_int_equal(p->publishes_pool, l == 20);
        assert_int_equal(p->within_pool, reindex);
        assert_int_equal(p->decoder, l >= 20);
        assert_int_equal(p->compress_rope, l >= 2);
        assert_int_equal(p->engram, l == 1 ? 0 : l == 14 ? 1 : -1);
    }
    assert_int_equal(c.engram_rows[1], 384016682);
    assert_int_equal(c.engram_pad_id, 2);
    assert_true(c.norm_eps > 0.99e-20 && c.norm_eps < 1.01e-20);
}

static void rows_needed_match_the_specification(void **state) {
    (void)state;
    struct model_config c;
    parse_file("configs/release.json", &c);
    assert_int_equal(model_rows_needed(&c, 39), 1); // spec 3.13
    assert_int_equal(model_rows_needed(&c, 38), 128);
    assert_int_equal(model_rows_needed(&c, 30), 1144);
    assert_int_equal(model_rows_needed(&c, 20), 2414);
    assert_int_equal(model_rows_needed(&c, 19), INT32_MAX);
    assert_int_equal(model_rows_reached(&c, 20), 2414);
    assert_int_equal(model_rows_reached(&c, 19), 2541);
    assert_int_equal(model_rows_reached(&c, 0), 4954);
    assert_int_equal(model_rebuild_start(&c, 10000, 20000), 10000 - 2540); // architecture 4
    assert_int_equal(model_rebuild_start(&c, 10000, 10001), 10001 - 5081);
    assert_int_equal(model_rebuild_start(&c, 10000, 12541), 10000 - 2540); // both meet
    assert_int_equal(model_rebuild_start(&c, 10000, 12540), 10000 - 2541);
    assert_int_equal(model_rebuild_start(&c, 2540, 20000), 0);
    assert_int_equal(model_rebuild_start(&c, 2000, 20000), 0);
}

struct config_case {
    const char *find, *replace;
    enum result_code code;
    const char *message; /* part of it: the field, and the value where there is one */
};

static const struct config_case config_cases[] = {
    {"DeepseekV41ForCausalLM", "LlamaForCausalLM", RESULT_UNSUPPORTED, "LlamaForCausalLM"},
    {"\"deepseek_v41\"", "\"deepseek_v4\"", RESULT_UNSUPPORTED, "deepseek_v4"},
    {"\"ue8m0\"", "\"float\"", RESULT_UNSUPPORTED, "scale_fmt"},
    {"\"fp4\"", "\"fp8\"", RESULT_UNSUPPORTED, "expert_dtype"},
    {"\"fp8\"", "\"awq\"", RESULT_UNSUPPORTED, "quant_method"},
    {"[\n      32,\n      32\n    ]", "[128, 128]", RESULT_UNSUPPORTED, "weight_block_size"},
    {"\"vocab_size\": 1280", "\"vocab_size\": -5", RESULT_INVALID_INPUT, "'vocab_size' is -5"},
    {"\"vocab_size\": 1280", "\"vocab_size\": 12.5", RESULT_INVALID_INPUT, "vocab_size"},
    {"\"vocab_size\": 1280", "\"vocab_size\": 1e9", RESULT_INVALID_INPUT, "vocab_size"},
    {"\"vocab_size\": 1280", "\"vocab_size\": \"x\"", RESULT_INVALID_INPUT, "vocab_size"},
    {"\"vocab_size\": 1280,", "", RESULT_INVALID_INPUT, "vocab_size"},
    {"\"hidden_size\": 256", "\"hidden_size\": 99999999999", RESULT_INVALID_INPUT, "99999999999"},
    {"\"hidden_size\": 256", "\"hidden_size\": 250", RESULT_INVALID_INPUT, "hidden_size"},
    {"\"head_dim\": 64", "\"head_dim\": 60", RESULT_INVALID_INPUT, "'head_dim' is 60"},
    {"\"index_head_dim\": 32", "\"index_head_dim\": 16", RESULT_INVALID_INPUT, "index_head_dim"},
    {"\"q_lora_rank\": 96", "\"q_lora_rank\": 95", RESULT_INVALID_INPUT, "q_lora_rank"},
    {"\"moe_intermediate_size\": 64", "\"moe_intermediate_size\": 48", RESULT_INVALID_INPUT, "48"},
    {"\"o_lora_rank\": 32", "\"o_lora_rank\": 1", RESULT_INVALID_INPUT, "o_lora_rank"},
    {"\"o_groups\": 4", "\"o_groups\": 3", RESULT_INVALID_INPUT, "num_attention_heads"},
    {"\"qk_rope_head_dim\": 32", "\"qk_rope_head_dim\": 33", RESULT_INVALID_INPUT, "33"},
    {"\"qk_rope_head_dim\": 32", "\"qk_rope_head_dim\": 34", RESULT_INVALID_INPUT, "at most 32"},
    {"\"num_hidden_layers\": 10", "\"num_hidden_layers\": 0", RESULT_INVALID_INPUT, "is 0"},
    {"\"num_hidden_layers\": 10", "\"num_hidden_layers\": 129", RESULT_INVALID_INPUT, "129"},
    {"\"num_hidden_layers\": 10", "\"num_hidden_layers\": 9", RESULT_INVALID_INPUT, "_layer"},
    {"\"num_key_value_heads\": 1", "\"num_key_value_heads\": 8", RESULT_UNSUPPORTED, "8"},
    {"\"n_shared_experts\": 1", "\"n_shared_experts\": 2", RESULT_UNSUPPORTED, "n_shared"},
    {"\"num_experts_per_tok\": 4", "\"num_experts_per_tok\": 17", RESULT_INVALID_INPUT, "17"},
    {"\"hc_mult\": 4", "\"hc_mult\": 5", RESULT_INVALID_INPUT, "hc_mult"},
    {"\"sliding_window\": 16", "\"sliding_window\": 0", RESULT_INVALID_INPUT, "sliding_window"},
    {"\"rms_norm_eps\": 1e-20", "\"rms_norm_eps\": 0", RESULT_INVALID_INPUT, "rms_norm_eps"},
    {"\"rms_norm_eps\": 1e-20", "\"rms_norm_eps\": -1e-20", RESULT_INVALID_INPUT, "rms_norm_eps"},
    {"\"silu\"", "\"gelu\"", RESULT_UNSUPPORTED, "gelu"},
    {"\"sqrtsoftplus\"", "\"sigmoid\"", RESULT_UNSUPPORTED, "sigmoid"},
    {"\"noaux_tc\"", "\"greedy\"", RESULT_UNSUPPORTED, "topk_method"},
    {"\"norm_topk_prob\": true", "\"norm_topk_prob\": false", RESULT_UNSUPPORTED, "norm_topk"},
    {"\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true", RESULT_UNSUPPORTED, "tie"},
    {"\"attention_bias\": false", "\"attention_bias\": true", RESULT_UNSUPPORTED, "attention_bias"},
    {"\"yarn\"", "\"linear\"", RESULT_UNSUPPORTED, "rope_type"},
    {"\"beta_slow\": 1", "\"beta_slow\": 32", RESULT_INVALID_INPUT, "beta_fast"},
    {"\"max_position_embeddings\": 4096",
     "\"max_position_embeddings\": 9e18",
     RESULT_INVALID_INPUT,
     "max_position_embeddings"},
    {"\"eos_token_id\": 1", "\"eos_token_id\": 1280", RESULT_INVALID_INPUT, "eos_token_id"},
    {"\"compress_ratios\": [\n      0,",
     "\"compress_ratios\": [\n      3,",
     RESULT_UNSUPPORTED,
     "'compress_ratios'[0] is 3"},
    {"\"compress_ratios\": [\n      0,",
     "\"compress_ratios\": [\n",
     RESULT_INVALID_INPUT,
     "11 numbers for 10 layers and 2"},
    {"\"compress_ratios\": [\n      0,",
     "\"compress_ratios\": [\n      2,",
     RESULT_INVALID_INPUT,
     "layer 0 has ratio 2 but no KV source"},
    {"\"index_source_layer_ids\": [\n      2,",
     "\"index_source_layer_ids\": [",
     RESULT_INVALID_INPUT,
     "not in 'index_source_layer_ids'"},
    {"\"kv_source_layer_ids\": [\n      2,\n      5\n    ]",
     "\"kv_source_layer_ids\": [5, 2]",
     RESULT_INVALID_INPUT,
     "ascending"},
    {"\"kv_source_layer_ids\": [\n      2,\n      5\n    ]",
     "\"kv_source_layer_ids\": [2]",
     RESULT_INVALID_INPUT,
     "ratio"},
    {"\"kv_source_layer_ids\": [\n      2,\n      5\n    ]",
     "\"kv_source_layer_ids\": []",
     RESULT_UNSUPPORTED,
     "kv_source_layer_ids"},
    {"\"kv_source_layer_ids\": [\n      2,\n      5\n    ]",
     "\"kv_source_layer_ids\": [1, 5]",
     RESULT_INVALID_INPUT,
     "layer 1 is in"},
    {"\"kv_source_layer_ids\": [\n      2,\n      5\n    ]",
     "\"kv_source_layer_ids\": [2, 10]",
     RESULT_INVALID_INPUT,
     "0 to 9"},
    {"\"candidate_source_layer_id\": 5",
     "\"candidate_source_layer_id\": 6",
     RESULT_INVALID_INPUT,
     "candidate_source_layer_id"},
    {"\"candidate_source_layer_id\": 5",
     "\"candidate_source_layer_id\": 2",
     RESULT_INVALID_INPUT,
     "another KV source"},
    {"\"candidate_topk_blocks\": 8",
     "\"candidate_topk_blocks\": 0",
     RESULT_INVALID_INPUT,
     "candidate_topk_blocks"},
    {"\"engram_layer_ids\": [\n      1,\n      3\n    ]",
     "\"engram_layer_ids\": [1, 5]",
     RESULT_UNSUPPORTED,
     "engram_layer_ids"},
    {"\"engram_layer_ids\": [\n      1,\n      3\n    ]",
     "\"engram_layer_ids\": [1]",
     RESULT_INVALID_INPUT,
     "engram_num_embeddings"},
    {"3144", "-3144", RESULT_INVALID_INPUT, "-3144"},
    {"\"engram_head_dim\": 32", "\"engram_head_dim\": 40", RESULT_INVALID_INPUT, "engram_head_dim"},
    {"\"engram_pad_token_id\": 2", "\"engram_other\": 2", RESULT_INVALID_INPUT, "engram_pad"},
    {"\"engram_pad_token_id\": 2",
     "\"engram_pad_token_id\": 2, \"engram_pad_id\": 3",
     RESULT_INVALID_INPUT,
     "engram_pad_id"},
    {"\"dspark_noise_token_id\": 1266",
     "\"dspark_noise_token_id\": 1280",
     RESULT_INVALID_INPUT,
     "dspark_noise_token_id"},
    {"\"num_nextn_predict_layers\": 2",
     "\"num_nextn_predict_layers\": 200",
     RESULT_INVALID_INPUT,
     "num_nextn_predict_layers"},
    {"\"vision_config\": {", "\"vision_config\": 7, \"x\": {", RESULT_INVALID_INPUT, "vision"},
    {"\"model_type\": \"deepseek_v41\",",
     "\"model_type\": \"deepseek_v41\", \"model_type\": 1,",
     RESULT_INVALID_INPUT,
     "model_type"},
    {"\"initializer_range\": 0.02", "\"x\": [[[[[[[[[1]]]]]]]]]", RESULT_LIMIT, "config.json"},
    {"\"initializer_range\": 0.02", "\"x\": \"\xff\"", RESULT_INVALID_INPUT, "config.json"},
    {"{\n  \"arch", "[{\n  \"arch", RESULT_INVALID_INPUT, "config.json"},
};

static void config_every_broken_field_is_refused_by_name(void **state) {
    (void)state;
    CLEANUP(buffer_deinit) struct buffer good = {NULL, 0, 0, 0};
    read_text("golden/tiny-a/config.json", &good);
    for (size_t i = 0; i < COUNT_OF(config_cases); i++) {
        const struct config_case *test = &config_cases[i];
        struct view text = buffer_view(&good);
        struct view find = view_of_text(test->find);
        size_t at = view_find(text, find, 0);
        if (at == SIZE_MAX) {
            fail_msg("case %zu: '%s' is not in the configuration", i, test->find);
        }
        CLEANUP(buffer_deinit) struct buffer bad = {NULL, 0, 0, 0};
        struct error error;
        buffer_init(&bad, BUFFER_CEILING_DEFAULT);
        assert_true(is_ok(buffer_append(&bad, view_slice(text, 0, at), &error)));
        assert_true(is_ok(buffer_append_text(&bad, test->replace, &error)));
        size_t rest = at + find.length;
        assert_true(is_ok(buffer_append(&bad, view_slice(text, rest, text.length - rest), &error)));
        struct model_config config;
        memset(&config, 0x5a, sizeof config);
        result parsed = model_config_parse(buffer_view(&bad), &config, &error);
        if (parsed.code != test->code || strstr(error.message, test->message) == NULL) {
            fail_msg(
                "case %zu: '%s' gave %s: %s",
                i,
                test->replace,
                result_name(parsed.code),
                parsed.code == RESULT_OK ? "" : error.message
            );
        }
        assert_int_equal(config.vocabulary, 0x5a5a5a5a); // outputs untouched on failure
    }
}

static void config_accepts_both_spellings_of_the_engram_pad(void **state) {
    (void)state;
    CLEANUP(buffer_deinit) struct buffer good = {NULL, 0, 0, 0};
    read_text("golden/tiny-a/config.json", &good);
    struct view text = buffer_view(&good);
    struct view find = view_of_text("engram_pad_token_id");
    size_t at = view_find(text, find, 0);
    CLEANUP(buffer_deinit) struct buffer other = {NULL, 0, 0, 0};
    struct error error;
    buffer_init(&other, BUFFER_CEILING_DEFAULT);
    assert_true(is_ok(buffer_append(&other, view_slice(text, 0, at), &error)));
    assert_true(is_ok(buffer_append_text(&other, "engram_pad_id", &error)));
    size_t rest = at + find.length;
    assert_true(is_ok(buffer_append(&other, view_slice(text, rest, text.length - rest), &error)));
    struct model_config config;
    assert_true(is_ok(model_config_parse(buffer_view(&other), &config, &error)));
    assert_int_equal(config.engram_pad_id, 2);
}

static void config_cut_anywhere_is_refused(void **state) {
    (void)state;
    CLEANUP(buffer_deinit) struct buffer good = {NULL, 0, 0, 0};
    read_text("golden/tiny-a/config.json", &good);
    for (size_t length = 0; length + 1 < good.length; length++) {
        struct model_config config;
        struct error error;
        struct view cut = view_slice(buffer_view(&good), 0, length);
        assert_true(is_failed(model_config_parse(cut, &config, &error)));
    }
}

/* ---- real checkpoints ---- */

static void
same_bytes(const struct test_tensors *file, const char *name, const void *data, const char *dtype) {
    struct test_tensor tensor;
    if (!test_tensors_get(file, name, &tensor)) {
        fail_msg("%s: not in the file", name);
    }
    assert_true(view_equals_text(tensor.dtype, dtype));
    assert_non_null(data);
    assert_memory_equal(tensor.data, data, tensor.bytes);
}

static void model_tiny_a_roles_point_at_their_tensors(void **state) {
    (void)state;
    char config[TEST_PATH_MAX];
    char path[TEST_PATH_MAX];
    struct error error;
    assert_true(test_data_find(config, "golden/tiny-a/config.json"));
    *strrchr(config, '/') = '\0';
    struct model *m = NULL;
    if (is_failed(model_open(config, &m, &error))) {
        fail_msg("%s", error.message);
    }
    CLEANUP(test_tensors_close) struct test_tensors file = {NULL, NULL, 0};
    assert_true(test_data_find(path, "golden/tiny-a/model.safetensors"));
    assert_true(is_ok(test_tensors_open(&file, path, &error)));
    const struct layer_weights *l = m->layers;
    same_bytes(&file, "embed.weight", m->embed.data, "BF16");
    same_bytes(&file, "head.weight", m->head.data, "BF16");
    same_bytes(&file, "norm.weight", m->norm, "BF16");
    same_bytes(&file, "layers.0.attn_norm.weight", l[0].attn_norm, "BF16");
    same_bytes(&file, "layers.9.ffn_norm.weight", l[9].ffn_norm, "BF16");
    same_bytes(&file, "layers.4.attn.wq_a.weight", l[4].attention.wq_a.data, "F8_E4M3");
    same_bytes(&file, "layers.4.attn.wq_a.scale", l[4].attention.wq_a.scale, "F8_E8M0");
    same_bytes(&file, "layers.4.attn.wq_b.scale", l[4].attention.wq_b.scale, "F8_E8M0");
    same_bytes(&file, "layers.4.attn.wkv.weight", l[4].attention.wkv.data, "F8_E4M3");
    same_bytes(&file, "layers.4.attn.wo_a.weight", l[4].attention.wo_a.data, "F8_E4M3");
    same_bytes(&file, "layers.4.attn.wo_b.weight", l[4].attention.wo_b.data, "F8_E4M3");
    same_bytes(&file, "layers.4.attn.q_norm.weight", l[4].attention.q_norm, "BF16");
    same_bytes(&file, "layers.4.attn.kv_norm.weight", l[4].attention.kv_norm, "BF16");
    same_bytes(&file, "layers.4.attn.attn_sink", l[4].attention.sink, "F32");
    same_bytes(
        &file, "layers.2.attn.compressor.wkv.weight", l[2].attention.compress_wkv.data, "BF16"
    );
    same_bytes(
        &file, "layers.2.attn.compressor.wgate.weight", l[2].attention.compress_wgate.data, "BF16"
    );
    same_bytes(&file, "layers.5.attn.compressor.norm.weight", l[5].attention.compress_norm, "BF16");
    same_bytes(&file, "layers.5.attn.indexer.wk.weight", l[5].attention.index_wk.data, "BF16");
    same_bytes(&file, "layers.5.attn.indexer.k_norm.weight", l[5].attention.index_k_norm, "BF16");
    same_bytes(
        &file, "layers.7.attn.indexer.wq_b.weight", l[7].attention.index_wq_b.data, "F8_E4M3"
    );
    same_bytes(
        &file,
        "layers.7.attn.indexer.weights_proj.weight",
        l[7].attention.index_weights.data,
        "BF16"
    );
    same_bytes(&file, "layers.3.ffn.gate.weight", l[3].router.data, "BF16");
    same_bytes(&file, "layers.3.ffn.gate.bias", l[3].router_bias, "F32");
    same_bytes(&file, "layers.3.ffn.experts.15.w1.weight", l[3].routed[15].w1.data, "I8");
    same_bytes(&file, "layers.3.ffn.experts.15.w2.scale", l[3].routed[15].w2.scale, "F8_E8M0");
    same_bytes(&file, "layers.3.ffn.experts.0.w3.weight", l[3].routed[0].w3.data, "I8");
    same_bytes(&file, "layers.3.ffn.shared_experts.w2.weight", l[3].shared.w2.data, "F8_E4M3");
    same_bytes(&file, "layers.3.hc_attn_fn", l[3].attn_mix.fn, "F32");
    same_bytes(&file, "layers.3.hc_ffn_base", l[3].ffn_mix.base, "F32");
    same_bytes(&file, "layers.3.hc_ffn_scale", l[3].ffn_mix.scale, "F32");
    same_bytes(&file, "layers.3.engram.embed.weight", m->engram[1].table, "F8_E4M3");
    same_bytes(&file, "layers.3.engram.embed.scale", m->engram[1].table_scales, "F8_E8M0");
    same_bytes(&file, "layers.1.engram.wkv.scale", m->engram[0].wkv.scale, "F8_E8M0");
    same_bytes(&file, "layers.1.engram.q_weight", m->engram[0].query_weight, "BF16");
    same_bytes(&file, "layers.1.engram.k_weight", m->engram[0].key_weight, "BF16");
    // What a role does not have stays null; matrices carry their shapes.
    assert_null(l[5].attention.compress_wgate.data);
    assert_null(l[7].attention.compress_wkv.data);
    assert_null(l[8].attention.index_wq_b.data);
    assert_int_equal(l[4].attention.wo_a.out, 4 * 32);
    assert_int_equal(l[4].attention.wo_a.in, 8 / 4 * 64);
    assert_int_equal(l[3].routed[0].w2.out, 256);
    assert_int_equal(l[3].routed[0].w2.in, 64);
    assert_int_equal(l[3].routed[0].w2.dtype, DTYPE_FP4);
    assert_int_equal(strlen(m->digest), 64);
    model_close(m);
}

static void measure_folder(const char *directory, uint64_t payload) {
    struct model_config config;
    struct model_size size;
    struct error error;
    struct model *model = NULL;
    if (is_failed(model_measure(directory, &config, &size, &error)) ||
        is_failed(model_open(directory, &model, &error))) {
        fail_msg("%s", error.message);
    }
    assert_int_equal(size.total.bytes, payload);
    model_close(model);
}

static void model_mini_opens(void **state) {
    (void)state;
    measure_folder(TEST_SOURCE_DIR "/examples/mini/model", 23332430); // its index says so
}

static void model_tiny_b_opens_from_four_shards(void **state) {
    (void)state;
    char path[TEST_PATH_MAX];
    if (!test_data_find(path, "golden/tiny-b/config.json")) {
        print_message("SKIPPED model_tiny_b: no golden/tiny-b in HEARTH_TEST_DATA\n");
        skip();
    }
    *strrchr(path, '/') = '\0';
    measure_folder(path, 12027270);
}

/* ---- the released model, by its headers ---- */

/* Spec 2.7, in its order. */
static const struct model_bytes release_groups[MODEL_GROUP_COUNT] = {
    [MODEL_GROUP_EMBED] = {1, 1323827200},
    [MODEL_GROUP_HEAD] = {1, 1323827200},
    [MODEL_GROUP_NORM] = {1, 10240},
    [MODEL_GROUP_ATTENTION] = {520, 5069721600},
    [MODEL_GROUP_LAYER_NORMS] = {80, 819200},
    [MODEL_GROUP_ROUTER] = {120, 157409280},
    [MODEL_GROUP_ROUTED_EXPERTS] = {92160, 288777830400},
    [MODEL_GROUP_SHARED_EXPERTS] = {240, 1416960000},
    [MODEL_GROUP_MIXING] = {240, 157295040},
    [MODEL_GROUP_COMPRESSORS] = {11, 36704256},
    [MODEL_GROUP_INDEXERS] = {32, 45130752},
    [MODEL_GROUP_ENGRAM_TABLES] = {4, 202758032400},
    [MODEL_GROUP_ENGRAM_OTHER] = {8, 315043840},
    [MODEL_GROUP_DRAFT_ATTENTION] = {39, 380229120},
    [MODEL_GROUP_DRAFT_NORMS] = {6, 61440},
    [MODEL_GROUP_DRAFT_ROUTER] = {9, 3935232},
    [MODEL_GROUP_DRAFT_ROUTED_EXPERTS] = {2304, 7219445760},
    [MODEL_GROUP_DRAFT_SHARED_EXPERTS] = {18, 106272000},
    [MODEL_GROUP_DRAFT_MIXING] = {18, 11797128},
    [MODEL_GROUP_DRAFT_INPUT] = {3, 78730240},
    [MODEL_GROUP_DRAFT_HEADS] = {4, 132403712},
    [MODEL_GROUP_VISION] = {266, 970536960},
};

static void check_release_folder(const char *folder) {
    struct model_config config;
    struct model_size size;
    struct error error;
    if (is_failed(model_measure(folder, &config, &size, &error))) {
        fail_msg("%s", error.message);
    }
    for (int g = 0; g < MODEL_GROUP_COUNT; g++) {
        const struct model_bytes *want = &release_groups[g];
        if (size.groups[g].tensors != want->tensors || size.groups[g].bytes != want->bytes) {
            fail_msg(
                "%s: %zu tensors, %llu bytes",
                model_group_name((enum model_group)g),
                size.groups[g].tensors,
                (unsigned long long)size.groups[g].bytes
            );
        }
    }
    assert_int_equal(size.total.tensors, 96085);
    assert_int_equal(size.total.bytes, 510286023000);
    assert_int_equal(size.shards, 43);
    CLEANUP(buffer_deinit) struct buffer report = {NULL, 0, 0, 0};
    buffer_init(&report, BUFFER_CEILING_DEFAULT);
    assert_true(is_ok(model_inspect(folder, false, &report, &error)));
    assert_non_null(strstr(buffer_text(&report), " 890 bytes per token (113920 per block of 128)"));
    assert_non_null(strstr(buffer_text(&report), " 2906112 bytes of window rings, 12288 of"));
    buffer_clear(&report);
    assert_true(is_ok(model_inspect(folder, true, &report, &error)));
    CLEANUP(json_cleanup) struct json_document *document = NULL;
    assert_true(is_ok(json_parse(buffer_view(&report), NULL, &document, &error)));
    double per_token = 0;
    assert_true(is_ok(json_get_double(json_root(document), "kv_bytes_per_token", &per_token, &error)
    ));
    assert_true(per_token == 890.0);
    assert_int_equal(json_count(json_get(json_root(document), "plan")), 40);
}

static void model_release_sizes_match_the_specification(void **state) {
    (void)state;
    struct model_config config;
    parse_file("configs/release.json", &config);
    CLEANUP(buffer_deinit) struct buffer text = {NULL, 0, 0, 0};
    read_text("configs/release.json", &text);
    struct planned_checkpoint plan;
    planned_init(&plan, &config, 43);
    char folder[256];
    test_folder_make(folder);
    bool written = planned_write(&plan, folder, buffer_view(&text));
    if (written) {
        check_release_folder(folder);
    }
    planned_deinit(&plan);
    test_folder_remove(folder);
    if (!written) {
        print_message("SKIPPED model_release_sizes: no files of 100 GB in the temporary folder\n");
        skip();
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(config_release_gives_the_published_plan),
        cmocka_unit_test(rows_needed_match_the_specification),
        cmocka_unit_test(config_every_broken_field_is_refused_by_name),
        cmocka_unit_test(config_accepts_both_spellings_of_the_engram_pad),
        cmocka_unit_test(config_cut_anywhere_is_refused),
        cmocka_unit_test(model_tiny_a_roles_point_at_their_tensors),
        cmocka_unit_test(model_mini_opens),
        cmocka_unit_test(model_tiny_b_opens_from_four_shards),
        cmocka_unit_test(model_release_sizes_match_the_specification),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
