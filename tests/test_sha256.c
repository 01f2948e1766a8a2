/* SHA-256 against the published examples and against itself in pieces. */
#include "base/sha256.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static void check(const char *text, const char *expected) {
    char hex[SHA256_HEX_BYTES];
    sha256_hex(view_of_text(text), hex);
    assert_string_equal(hex, expected);
}

static void sha256_published_examples_match(void **state) {
    (void)state;
    check("", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    check("abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    check(
        "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"
    );
    struct sha256 sha;
    sha256_init(&sha);
    char thousand[1000];
    memset(thousand, 'a', sizeof thousand);
    for (int i = 0; i < 1000; i++) {
        sha256_update(&sha, view_of(thousand, sizeof thousand));
    }
    char hex[SHA256_HEX_BYTES];
    sha256_finish_hex(&sha, hex);
    assert_string_equal(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

static void sha256_any_split_gives_the_same_digest(void **state) {
    (void)state;
    char text[200];
    for (size_t i = 0; i < sizeof text; i++) {
        text[i] = (char)(i * 7);
    }
    for (size_t length = 0; length <= sizeof text; length++) {
        char whole[SHA256_HEX_BYTES];
        sha256_hex(view_of(text, length), whole);
        for (size_t cut = 0; cut <= length; cut += 13) {
            struct sha256 sha;
            sha256_init(&sha);
            sha256_update(&sha, view_of(text, cut));
            sha256_update(&sha, view_of(text + cut, length - cut));
            char parts[SHA256_HEX_BYTES];
            sha256_finish_hex(&sha, parts);
            assert_string_equal(whole, parts);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sha256_published_examples_match),
        cmocka_unit_test(sha256_any_split_gives_the_same_digest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
