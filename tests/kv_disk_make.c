/* Makes a cache for test_cache_cli.py: kv_disk_make CACHE TEXTS [DESCRIPTION], or, with HOLD as the
 * description's place, keeps it open until standard input ends. */
#include "kv_disk_support.h"

#include "base/bytes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <unistd.h>

#include <cmocka.h>

int main(int argc, char **argv) {
    struct tier tier = {0};
    int64_t texts = 0;
    if (argc < 3 || !parse_i64(view_of_text(argv[2]), &texts)) {
        (void)fprintf(stderr, "usage: %s CACHE TEXTS [DESCRIPTION | HOLD]\n", argv[0]);
        return 2;
    }
    const struct clock clock = clock_real();
    tier.bytes = malloc(5000);
    tier.options = (struct kv_disk_options){
        .directory = argv[1],
        .root = {{0xAB}},
        .block_bytes = 5000,
        .description = argc > 3 ? argv[3] : "a model of tests, cpu",
        .clock = clock,
    };
    struct error error = {0};
    if (tier.bytes == NULL || is_failed(kv_disk_open(&tier.disk, &tier.options, &error))) {
        (void)fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    for (int32_t text = 1; text <= texts; text++) {
        tier_put_path(&tier, 1000 * text, 6);
    }
    if (argc > 3 && strcmp(argv[3], "HOLD") == 0) {
        char byte = 0;
        (void)printf("ready\n");
        (void)fflush(stdout);
        while (read(STDIN_FILENO, &byte, 1) > 0) {
        }
    }
    struct block block;
    char hex[KV_KEY_HEX_BYTES];
    block_make(&tier, 1000, 3, &block);
    kv_hex(block.key.bytes, hex);
    (void)printf("%s\n", hex);
    kv_disk_close(tier.disk);
    free(tier.bytes);
    return 0;
}
