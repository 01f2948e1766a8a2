/* Directory and commands of a test; see the header. */
#include "shell_support.h"

#include <unistd.h>

#define COMMAND_BYTES 4096

char base[64];

void base_make(const char *name) {
    int length = snprintf(base, sizeof base, "/var/tmp/hearth-%s-XXXXXX", name);
    assert_true(length > 0 && (size_t)length < sizeof base);
    assert_non_null(mkdtemp(base));
}

void base_remove(void) {
    shell("cd / && chmod -R u+rwX '%s' && rm -rf '%s'", base, base);
}

void shell(const char *format, ...) {
    char text[COMMAND_BYTES];
    int used = snprintf(
        text,
        sizeof text,
        "set -e; cd '%s'; export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1; ",
        base
    );
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text + used, sizeof text - (size_t)used, format, arguments);
    va_end(arguments);
    assert_true(length > 0 && (size_t)(used + length) < sizeof text);
    if (system(text) != 0) {
        fail_msg("%s", text + used);
    }
}
