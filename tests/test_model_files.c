/* Damaged and hostile checkpoints: every one is refused with a message that names the object. */
#include "engine/model.h"
#include "test_checkpoint.h"
#include "test_safetensors.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- one header ---- */

struct header_case {
    const char *header;
    uint64_t data_bytes; /* behind the header */
    enum result_code code;
    const char *message;
};

#define TENSOR(name, dtype, shape, offsets)                                                        \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static const struct header_case header_cases[] = {
    {"{" TENSOR("a", "F32", "[2,2]", "[0,16]") "}", 16, RESULT_OK, ""},
    {"{" TENSOR("a", "U8", "[3]", "[0,3]") "," TENSOR("b", "F32", "[1]", "[8,12]") "}    ",
     12,
     RESULT_OK,
     ""},
    {"{\"__metadata__\":{\"format\":\"pt\"}," TENSOR("a", "U8", "[]", "[0,1]") "}",
     1,
     RESULT_OK,
     ""},
    {"{" TENSOR("a", "U8", "[0]", "[0,0]") "," TENSOR("b", "U8", "[2]", "[0,2]") "}",
     2,
     RESULT_OK,
     ""},
    {"{" TENSOR("a", "F32", "[2,2]", "[0,16]") "}", 15, RESULT_CORRUPT, "15 bytes of data"},
    {"{" TENSOR("a", "U8", "[2]", "[4,2]") "}", 16, RESULT_CORRUPT, "[4, 2]"},
    {"{" TENSOR("a", "U8", "[2]", "[0,4]") "}", 4, RESULT_CORRUPT, "takes 2 bytes"},
    {"{" TENSOR("a", "U8", "[2]", "[-2,0]") "}", 4, RESULT_CORRUPT, "-2"},
    {"{" TENSOR("a", "U8", "[2]", "[0.5,2.5]") "}", 4, RESULT_CORRUPT, "0.5"},
    {"{" TENSOR("a", "U8", "[2]", "[0,2,4]") "}", 4, RESULT_CORRUPT, "3 numbers"},
    {"{" TENSOR("a", "U8", "[2]", "[0,18446744073709551617]") "}", 4, RESULT_CORRUPT, "1844674"},
    {"{" TENSOR("a", "U8", "[-1]", "[0,2]") "}", 4, RESULT_CORRUPT, "-1"},
    {"{" TENSOR("a", "U8", "[1.5]", "[0,2]") "}", 4, RESULT_CORRUPT, "1.5"},
    {"{" TENSOR("a", "U8", "[\"2\"]", "[0,2]") "}", 4, RESULT_CORRUPT, "shape"},
    {"{" TENSOR("a", "F32", "[4294967296,4294967296]", "[0,0]") "}",
     4,
     RESULT_CORRUPT,
     "overflows"},
    {"{" TENSOR("a", "F64", "[9223372036854775807]", "[0,8]") "}", 8, RESULT_CORRUPT, "overflows"},
    {"{" TENSOR("a", "U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]") "}",
     1,
     RESULT_UNSUPPORTED,
     "9 dimensions"},
    {"{" TENSOR("a", "F4", "[2]", "[0,2]") "}", 2, RESULT_UNSUPPORTED, "\"F4\""},
    {"{" TENSOR("a", "U8", "[4]", "[0,4]") "," TENSOR("b", "U8", "[4]", "[2,6]") "}",
     6,
     RESULT_CORRUPT,
     "'b' starts at 2"},
    {"{" TENSOR("a", "U8", "[4]", "[0,4]") "," TENSOR("b", "U8", "[4]", "[0,4]") "}",
     4,
     RESULT_CORRUPT,
     "inside the one before"},
    {"{" TENSOR("a", "U8", "[4]", "[0,4]") "," TENSOR("b", "U8", "[4]", "[100,104]") "}",
     104,
     RESULT_CORRUPT,
     "96 bytes before tensor 'b'"},
    {"{" TENSOR("a", "U8", "[4]", "[0,4]") "}", 1000, RESULT_CORRUPT, "behind the last tensor"},
    {"{" TENSOR("a", "U8", "[4]", "[0,4]") "," TENSOR("a", "U8", "[4]", "[4,8]") "}",
     8,
     RESULT_CORRUPT,
     "header"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, RESULT_CORRUPT, "tensor 'a'"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"x\":1}}",
     1,
     RESULT_CORRUPT,
     "tensor 'a'"},
    {"{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
     1,
     RESULT_CORRUPT,
     "header"},
    {"{\"a\":[]}", 0, RESULT_CORRUPT, "tensor 'a'"},
    {"{\"a\":{\"dtype\":7,\"shape\":[1],\"data_offsets\":[0,1]}}", 1, RESULT_CORRUPT, "dtype"},
    {"{\"\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
     1,
     RESULT_CORRUPT,
     "0 bytes"},
    {"{" TENSOR("a\\u001b[2J", "U8", "[1]", "[0,1]") "}", 1, RESULT_CORRUPT, "byte 0x1b"},
    {"{\"__metadata__\":{\"a\":1}}", 0, RESULT_CORRUPT, "__metadata__"},
    {"{\"__metadata__\":[]}", 0, RESULT_CORRUPT, "__metadata__"},
    {"[]", 0, RESULT_CORRUPT, "no JSON object"},
    {"", 0, RESULT_CORRUPT, "header"},
    {"{", 0, RESULT_CORRUPT, "header"},
    {"{} x", 0, RESULT_CORRUPT, "header"},
    {"{\"a\xff\":1}", 0, RESULT_CORRUPT, "header"},
    {"{\"__metadata__\":{\"a\":[[[[[[[[]]]]]]]]}}", 0, RESULT_CORRUPT, "header"},
};

static void parse_header(size_t number, const struct header_case *test) {
    CLEANUP(buffer_deinit) struct buffer file = {NULL, 0, 0, 0};
    CLEANUP(tensor_list_deinit) struct tensor_list list = {NULL, 0, 0, NULL, 0};
    struct error error;
    buffer_init(&file, 1 << 20);
    // Blanks bring the data to an even eight, as writers do.
    size_t length = strlen(test->header);
    size_t padded = (length + 7) / 8 * 8;
    for (unsigned i = 0; i < 8; i++) {
        assert_true(is_ok(buffer_append_byte(&file, (unsigned char)(padded >> (8 * i)), &error)));
    }
    assert_true(is_ok(buffer_append_text(&file, test->header, &error)));
    while (file.length < 8 + padded) {
        assert_true(is_ok(buffer_append_byte(&file, ' ', &error)));
    }
    uint64_t file_bytes = file.length + test->data_bytes;
    result parsed = safetensors_parse(buffer_view(&file), file_bytes, 0, &list, &error);
    if (parsed.code != test->code ||
        (is_failed(parsed) && strstr(error.message, test->message) == NULL)) {
        fail_msg(
            "case %zu, %s: %s: %s",
            number,
            test->header,
            result_name(parsed.code),
            is_ok(parsed) ? "" : error.message
        );
    }
}

static void header_every_kind_of_damage_is_refused(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(header_cases); i++) {
        parse_header(i, &header_cases[i]);
    }
}

static void header_length_beyond_file_or_limit_is_refused(void **state) {
    (void)state;
    struct {
        uint64_t length, file_bytes;
        enum result_code code;
        const char *message;
    } const cases[] = {
        {0xFFFFFFFFFFFFFFFFU, 100, RESULT_CORRUPT, "in a file of 100"},
        {0x7FFFFFFFFFFFFFF8U, 100, RESULT_CORRUPT, "in a file of 100"},
        {93, 100, RESULT_CORRUPT, "in a file of 100"},
        {(uint64_t)1 << 40, (uint64_t)1 << 41, RESULT_UNSUPPORTED, "1099511627776"},
        {2, 10, RESULT_OK, ""},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        unsigned char start[10] = {0};
        for (unsigned b = 0; b < 8; b++) {
            start[b] = (unsigned char)(cases[i].length >> (8 * b));
        }
        start[8] = '{';
        start[9] = '}';
        CLEANUP(tensor_list_deinit) struct tensor_list list = {NULL, 0, 0, NULL, 0};
        struct error error;
        error.message[0] = '\0';
        struct view view = view_of(start, sizeof start);
        result parsed = safetensors_parse(view, cases[i].file_bytes, 0, &list, &error);
        assert_int_equal(parsed.code, cases[i].code);
        assert_non_null(strstr(error.message, cases[i].message));
    }
    for (size_t length = 0; length < 8; length++) {
        CLEANUP(tensor_list_deinit) struct tensor_list list = {NULL, 0, 0, NULL, 0};
        struct error error;
        struct view view = view_of("\2\0\0\0\0\0\0\0", length);
        assert_int_equal(safetensors_parse(view, length, 0, &list, &error).code, RESULT_CORRUPT);
    }
}

static void header_unaligned_data_is_refused(void **state) {
    (void)state;
    static const char text[] = "{" TENSOR("a", "F32", "[1]", "[0,4]") "}";
    unsigned char file[128] = {sizeof text - 1};
    _Static_assert((sizeof text - 1) % 4 != 0, "the data must start off a multiple of four");
    memcpy(file + 8, text, sizeof text - 1);
    CLEANUP(tensor_list_deinit) struct tensor_list list = {NULL, 0, 0, NULL, 0};
    struct error error;
    struct view view = view_of(file, 8 + sizeof text - 1);
    result parsed = safetensors_parse(view, view.length + 4, 0, &list, &error);
    assert_int_equal(parsed.code, RESULT_UNSUPPORTED);
    assert_non_null(strstr(error.message, "not aligned"));
}

/* ---- whole checkpoints ---- */

struct fixture {
    struct model_config config;
    struct buffer text;
    char folder[256];
    struct planned_checkpoint plan;
};

static void fixture_open(struct fixture *f, uint32_t shards) {
    char path[TEST_PATH_MAX];
    struct error error;
    memset(f, 0, sizeof *f);
    buffer_init(&f->text, 1 << 20);
    assert_true(test_data_find(path, "golden/tiny-a/config.json"));
    assert_true(is_ok(file_read(path, &f->text, &error)));
    assert_true(is_ok(model_config_parse(buffer_view(&f->text), &f->config, &error)));
    planned_init(&f->plan, &f->config, shards);
    test_folder_make(f->folder);
}

static void fixture_write(struct fixture *f) {
    assert_true(planned_write(&f->plan, f->folder, buffer_view(&f->text)));
}

static void fixture_close(struct fixture *f) {
    planned_deinit(&f->plan);
    buffer_deinit(&f->text);
    test_folder_remove(f->folder);
}

/* Both ways in agree; `message` null: both succeed. */
static void expect(const struct fixture *f, enum result_code code, const char *message) {
    struct model_config config;
    struct model_size size;
    struct model *model = NULL;
    struct error measured;
    struct error opened;
    measured.message[0] = opened.message[0] = '\0';
    result a = model_measure(f->folder, &config, &size, &measured);
    result b = model_open(f->folder, &model, &opened);
    model_close(model);
    if (a.code != code || b.code != code) {
        fail_msg("%s: %s; %s", result_name(a.code), measured.message, opened.message);
    }
    if (is_ok(a)) {
        return;
    }
    ASSERT(message != NULL);
    if (strstr(measured.message, message) == NULL || strstr(opened.message, message) == NULL) {
        fail_msg("'%s' is not in: %s; %s", message, measured.message, opened.message);
    }
}

static void checkpoint_whole_one_opens(void **state) {
    (void)state;
    for (uint32_t shards = 1; shards <= 3; shards++) {
        struct fixture f;
        fixture_open(&f, shards);
        fixture_write(&f);
        expect(&f, RESULT_OK, NULL);
        fixture_close(&f);
    }
}

static void damage_missing(struct planned_checkpoint *plan) {
    planned_find(plan, "layers.3.attn.wq_b.scale")->leave_out = true;
}

static void damage_shape(struct planned_checkpoint *plan) {
    struct planned_tensor *t = planned_find(plan, "layers.3.attn.wq_b.weight");
    uint64_t rows = t->shape[0];
    t->shape[0] = t->shape[1];
    t->shape[1] = rows;
}

static void damage_rank(struct planned_checkpoint *plan) {
    struct planned_tensor *t = planned_find(plan, "norm.weight");
    t->rank = 2;
    t->shape[1] = 1;
}

static void damage_dtype(struct planned_checkpoint *plan) {
    planned_find(plan, "norm.weight")->dtype = "F16";
}

static void damage_engram_rows(struct planned_checkpoint *plan) {
    struct planned_tensor *t = planned_find(plan, "layers.1.engram.embed.weight");
    t->shape[0] -= 1;
    t->bytes -= t->shape[1];
}

static void rename_tensor(struct planned_checkpoint *plan, const char *from, const char *to) {
    memcpy(planned_find(plan, from)->name, to, strlen(to) + 1);
}

static void damage_role(struct planned_checkpoint *plan) {
    rename_tensor(
        plan, "layers.2.attn.compressor.wgate.weight", "layers.6.attn.compressor.wgate.weight"
    );
}

static void damage_surplus(struct planned_checkpoint *plan) {
    rename_tensor(plan, "layers.0.ffn.gate.bias_vl", "layers.0.ffn.gate.other");
}

static void damage_layer_number(struct planned_checkpoint *plan) {
    rename_tensor(plan, "layers.0.ffn.gate.bias_vl", "layers.00.ffn.gate.bias_vl");
}

static void damage_draft(struct planned_checkpoint *plan) {
    planned_find(plan, "mtp.1.markov_head.head.weight")->leave_out = true;
}

static void strip_draft(struct planned_checkpoint *plan) {
    for (size_t i = 0; i < plan->count; i++) {
        plan->tensors[i].leave_out = strncmp(plan->tensors[i].name, "mtp.", 4) == 0;
    }
}

static void strip_image_bias(struct planned_checkpoint *plan) {
    planned_find(plan, "layers.0.ffn.gate.bias_vl")->leave_out = true;
}

static void checkpoint_wrong_tensors_are_refused_by_name(void **state) {
    (void)state;
    struct {
        void (*damage)(struct planned_checkpoint *plan);
        enum result_code code;
        const char *message;
    } const cases[] = {
        {damage_missing, RESULT_CORRUPT, "'layers.3.attn.wq_b.scale' (F8_E8M0 [16, 3]) is missing"},
        {damage_shape, RESULT_CORRUPT, "[96, 512], the configuration wants F8_E4M3 [512, 96]"},
        {damage_rank, RESULT_CORRUPT, "'norm.weight' is BF16 [256, 1]"},
        {damage_dtype, RESULT_CORRUPT, "'norm.weight' is F16"},
        {damage_engram_rows, RESULT_CORRUPT, "[3143, 32]"},
        {damage_role, RESULT_CORRUPT, "'layers.2.attn.compressor.wgate.weight'"},
        {damage_surplus, RESULT_CORRUPT, "'layers.0.ffn.gate.other'"},
        {damage_layer_number, RESULT_CORRUPT, "'layers.00.ffn.gate.bias_vl'"},
        {damage_draft, RESULT_CORRUPT, "'mtp.1.markov_head.head.weight' is missing"},
        {strip_draft, RESULT_OK, NULL},
        {strip_image_bias, RESULT_OK, NULL},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct fixture f;
        fixture_open(&f, 1);
        cases[i].damage(&f.plan);
        fixture_write(&f);
        expect(&f, cases[i].code, cases[i].message);
        fixture_close(&f);
    }
}

static void checkpoint_truncated_file_is_refused(void **state) {
    (void)state;
    struct fixture f;
    fixture_open(&f, 1);
    fixture_write(&f);
    char path[512];
    struct stat status;
    int length = snprintf(path, sizeof path, "%s/model.safetensors", f.folder);
    assert_true(length > 0 && (size_t)length < sizeof path);
    assert_int_equal(stat(path, &status), 0);
    const off_t cuts[] = {status.st_size - 1, status.st_size / 2, 200000, 5000, 9, 8, 7, 1, 0};
    for (size_t i = 0; i < COUNT_OF(cuts); i++) {
        assert_int_equal(truncate(path, cuts[i]), 0);
        expect(&f, RESULT_CORRUPT, "model.safetensors");
    }
    fixture_close(&f);
}

static void checkpoint_wrong_index_is_refused(void **state) {
    (void)state;
    struct {
        const char *shard_map;
        int64_t total_size;
        const char *leave_out_of_map;
        const char *leave_out;
        enum result_code code;
        const char *message;
    } const cases[] = {
        {"model-00009-of-00002.safetensors", -1, NULL, NULL, RESULT_NOT_FOUND, "model-00009"},
        {"../model.safetensors", -1, NULL, NULL, RESULT_CORRUPT, "'../model.safetensors'"},
        {"/etc/passwd", -1, NULL, NULL, RESULT_CORRUPT, "'/etc/passwd'"},
        {"a/b.safetensors", -1, NULL, NULL, RESULT_CORRUPT, "'a/b.safetensors'"},
        {"..", -1, NULL, NULL, RESULT_CORRUPT, "'..'"},
        {"", -1, NULL, NULL, RESULT_CORRUPT, "no name of a shard"},
        {".hidden.safetensors", -1, NULL, NULL, RESULT_CORRUPT, "no name of a shard"},
        {"model-00002-of-00002.safetensors", -1, NULL, NULL, RESULT_CORRUPT, "places tensor"},
        {"config.json", -1, NULL, NULL, RESULT_CORRUPT, "'config.json'"},
        {NULL, 12, NULL, NULL, RESULT_CORRUPT, "total_size 12"},
        {NULL, -1, "layers.3.hc_ffn_fn", NULL, RESULT_CORRUPT, "'layers.3.hc_ffn_fn', which"},
        {NULL, -1, NULL, "layers.3.hc_ffn_fn", RESULT_CORRUPT, "no shard has it"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct fixture f;
        fixture_open(&f, 2);
        f.plan.shard_map = cases[i].shard_map;
        f.plan.total_size = cases[i].total_size;
        if (cases[i].leave_out_of_map != NULL) {
            planned_find(&f.plan, cases[i].leave_out_of_map)->leave_out_of_map = true;
        }
        if (cases[i].leave_out != NULL) {
            planned_find(&f.plan, cases[i].leave_out)->leave_out = true;
        }
        fixture_write(&f);
        expect(&f, cases[i].code, cases[i].message);
        fixture_close(&f);
    }
}

/* The same tensor in two shards; the index can name only one of them. */
static void checkpoint_tensor_in_two_shards_is_refused(void **state) {
    (void)state;
    struct fixture f;
    fixture_open(&f, 2);
    struct planned_tensor *t = planned_find(&f.plan, "layers.1.hc_ffn_scale");
    assert_int_equal(t->shard, 1);
    struct planned_tensor *other = planned_find(&f.plan, "layers.2.hc_ffn_scale");
    assert_int_equal(other->shard, 0);
    memcpy(other->name, t->name, sizeof t->name);
    other->leave_out_of_map = true;
    fixture_write(&f);
    expect(&f, RESULT_CORRUPT, "'layers.1.hc_ffn_scale' is in model-00001");
    fixture_close(&f);
}

static void checkpoint_index_of_other_shape_is_refused(void **state) {
    (void)state;
    const char *texts[] = {
        "",
        "[]",
        "{}",
        "{\"weight_map\":[]}",
        "{\"weight_map\":{\"a\":1}}",
        "{\"weight_map\":{}}",
        "{\"metadata\":{\"total_size\":-1},\"weight_map\":{}}",
        "{\"weight_map\":{\"a\":\"b.safetensors\",\"a\":\"b.safetensors\"}}",
    };
    struct fixture f;
    fixture_open(&f, 1);
    fixture_write(&f);
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        test_file_write(f.folder, "model.safetensors.index.json", view_of_text(texts[i]));
        expect(&f, RESULT_CORRUPT, "");
    }
    fixture_close(&f);
}

static void checkpoint_files_of_other_kinds_are_refused(void **state) {
    (void)state;
    struct fixture f;
    fixture_open(&f, 1);
    test_file_write(f.folder, "config.json", buffer_view(&f.text));
    expect(&f, RESULT_NOT_FOUND, "model.safetensors");
    char path[512];
    int length = snprintf(path, sizeof path, "%s/model.safetensors", f.folder);
    assert_true(length > 0 && (size_t)length < sizeof path);
    assert_int_equal(mkfifo(path, 0600), 0);
    expect(&f, RESULT_CORRUPT, "no regular file"); // and does not wait for a writer
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0700), 0);
    expect(&f, RESULT_CORRUPT, "no regular file");
    fixture_close(&f);
    struct fixture nowhere;
    memset(&nowhere, 0, sizeof nowhere);
    memcpy(nowhere.folder, "/nonexistent/model", sizeof "/nonexistent/model");
    expect(&nowhere, RESULT_NOT_FOUND, "/nonexistent/model");
}

static void checkpoint_fp8_scale_out_of_range_is_refused(void **state) {
    (void)state;
    struct fixture f;
    fixture_open(&f, 1);
    fixture_write(&f);
    struct safetensors *files = NULL;
    struct error error;
    assert_true(is_ok(safetensors_open(f.folder, false, &files, &error)));
    size_t at = safetensors_find(files, view_of_text("layers.3.attn.wq_b.scale"));
    uint64_t offset = safetensors_at(files, at)->begin + 5;
    safetensors_close(files);
    char path[512];
    int length = snprintf(path, sizeof path, "%s/model.safetensors", f.folder);
    assert_true(length > 0 && (size_t)length < sizeof path);
    const unsigned char bytes[] = {246, 247, 255};
    for (size_t i = 0; i < sizeof bytes; i++) {
        CLEANUP(file_cleanup) FILE *file = fopen(path, "r+b");
        assert_non_null(file);
        assert_int_equal(fseek(file, (long)offset, SEEK_SET), 0);
        assert_int_equal(fputc(bytes[i], file), bytes[i]);
        assert_int_equal(fflush(file), 0);
        struct model *model = NULL;
        result opened = model_open(f.folder, &model, &error);
        assert_int_equal(opened.code, i == 0 ? RESULT_OK : RESULT_CORRUPT);
        if (i > 0) {
            assert_non_null(strstr(error.message, "'layers.3.attn.wq_b.scale' has scale byte"));
            assert_non_null(strstr(error.message, "at 5"));
        }
        model_close(model);
    }
    fixture_close(&f);
}

static void model_digest_depends_on_every_part(void **state) {
    (void)state;
    char digests[4][65];
    for (int i = 0; i < 4; i++) {
        struct fixture f;
        fixture_open(&f, i == 2 ? 2 : 1);
        if (i == 3) {
            planned_find(&f.plan, "layers.0.ffn.gate.bias_vl")->leave_out = true;
        }
        fixture_write(&f);
        test_file_write(f.folder, "tokenizer.json", view_of_text(i == 1 ? "{} " : "{}"));
        struct model *model = NULL;
        struct error error;
        assert_true(is_ok(model_open(f.folder, &model, &error)));
        memcpy(digests[i], model->digest, sizeof digests[i]);
        model_close(model);
        assert_true(is_ok(model_open(f.folder, &model, &error)));
        assert_string_equal(digests[i], model->digest);
        model_close(model);
        fixture_close(&f);
    }
    for (int i = 0; i < 4; i++) {
        for (int j = 0; j < i; j++) {
            assert_string_not_equal(digests[i], digests[j]);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(header_every_kind_of_damage_is_refused),
        cmocka_unit_test(header_length_beyond_file_or_limit_is_refused),
        cmocka_unit_test(header_unaligned_data_is_refused),
        cmocka_unit_test(checkpoint_whole_one_opens),
        cmocka_unit_test(checkpoint_wrong_tensors_are_refused_by_name),
        cmocka_unit_test(checkpoint_truncated_file_is_refused),
        cmocka_unit_test(checkpoint_wrong_index_is_refused),
        cmocka_unit_test(checkpoint_tensor_in_two_shards_is_refused),
        cmocka_unit_test(checkpoint_index_of_other_shape_is_refused),
        cmocka_unit_test(checkpoint_files_of_other_kinds_are_refused),
        cmocka_unit_test(checkpoint_fp8_scale_out_of_range_is_refused),
        cmocka_unit_test(model_digest_depends_on_every_part),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
