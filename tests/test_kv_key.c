/* Path keys and replay lineages against vectors computed with Python's hashlib: they name files on
 * disk, so they never change. */
#include "engine/kv_key.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static const struct kv_lineage lineage = {{1}};
static const struct kv_key root;

static void expect_hex(const uint8_t bytes[32], const char *hex) {
    char text[KV_KEY_HEX_BYTES];
    kv_hex(bytes, text);
    assert_string_equal(text, hex);
}

static void kv_key_vectors_hold(void **state) {
    (void)state;
    int32_t tokens[2 * KV_BLOCK_TOKENS];
    struct kv_key keys[2];
    for (int32_t i = 0; i < KV_BLOCK_TOKENS; i++) {
        tokens[i] = i;
        tokens[KV_BLOCK_TOKENS + i] = -1;
    }
    kv_key_path(&root, &lineage, tokens, 2, keys);
    expect_hex(keys[0].bytes, "c9dc32e27afd2655103571aac9c7d6e511cf1e6fafaea6a55bce6d9f08572cc8");
    expect_hex(keys[1].bytes, "42762592a8746b4bb1ec5adf8ff5b5204e2662bcb75015684d2eb1693c7054d7");
    struct kv_key second;
    kv_key_make(&keys[0], &lineage, tokens + KV_BLOCK_TOKENS, &second);
    assert_true(kv_key_equals(&second, &keys[1]));
    assert_false(kv_key_equals(&keys[0], &keys[1]));
    assert_true(kv_key_is_root(&root));
    assert_false(kv_key_is_root(&second));
}

static void kv_lineage_vectors_hold(void **state) {
    (void)state;
    struct kv_lineage child;
    kv_lineage_replay(&lineage, 256, &child);
    expect_hex(child.bytes, "62b2068dd90194e63e3a9fc72564b8f4f0c063ab387cba0993f15dde8a5581f0");
    kv_lineage_decoder_replay(&lineage, 256, &child);
    expect_hex(child.bytes, "09bf992b557a5967100f8f3c32974d3f59541aa538de83059485727ae0f8ee09");
    assert_false(kv_lineage_equals(&lineage, &child));
}

static void kv_hex_round_trip_and_refusals(void **state) {
    (void)state;
    char text[KV_KEY_HEX_BYTES];
    uint8_t bytes[32] = {0};
    kv_hex(lineage.bytes, text);
    assert_true(kv_hex_parse(text, bytes));
    assert_memory_equal(bytes, lineage.bytes, 32);
    text[5] = 'g';
    assert_false(kv_hex_parse(text, bytes));
    text[5] = '\0';
    assert_false(kv_hex_parse(text, bytes));
    assert_false(kv_hex_parse("", bytes));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kv_key_vectors_hold),
        cmocka_unit_test(kv_lineage_vectors_hold),
        cmocka_unit_test(kv_hex_round_trip_and_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
