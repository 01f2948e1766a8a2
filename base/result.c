/* Formats error records; never allocates, so it works when memory is short. */
#include "result.h"

#include <stdarg.h>
#include <unistd.h>

static const char *const names[] = {
    [RESULT_OK] = "ok",
    [RESULT_MEMORY] = "memory",
    [RESULT_IO] = "io",
    [RESULT_TIMEOUT] = "timeout",
    [RESULT_CANCELLED] = "cancelled",
    [RESULT_LIMIT] = "limit",
    [RESULT_NOT_FOUND] = "not_found",
    [RESULT_INVALID_INPUT] = "invalid_input",
    [RESULT_UNSUPPORTED] = "unsupported",
    [RESULT_CORRUPT] = "corrupt",
    [RESULT_DEVICE] = "device",
};

/* A message cut in the middle of a UTF-8 sequence would be invalid text: drop the torn tail. */
static void drop_torn_utf8(char *text) {
    size_t length = strlen(text);
    size_t back = 0;
    while (back < 3 && back < length && ((unsigned char)text[length - 1 - back] & 0xC0U) == 0x80U) {
        back += 1;
    }
    if (back >= length) {
        return;
    }
    unsigned char lead = (unsigned char)text[length - 1 - back];
    size_t need = lead >= 0xF0U ? 3 : lead >= 0xE0U ? 2 : lead >= 0xC0U ? 1 : 0;
    if (need > back) {
        text[length - 1 - back] = '\0';
    }
}

result error_set(
    struct error *error,
    enum result_code code,
    int foreign,
    const char *file,
    int line,
    const char *format,
    ...
) {
    ASSERT(code != RESULT_OK);
    result failed = {code};
    if (error == NULL) {
        return failed;
    }
    error->code = code;
    error->foreign = foreign;
    error->file = file;
    error->line = line;
    va_list arguments;
    va_start(arguments, format);
    int written = vsnprintf(error->message, sizeof error->message, format, arguments);
    va_end(arguments);
    if (written < 0) {
        error->message[0] = '\0';
    } else if ((size_t)written >= sizeof error->message) {
        drop_torn_utf8(error->message);
    }
    return failed;
}

result error_note(struct error *error, result failed, const char *format, ...) {
    ASSERT(failed.code != RESULT_OK);
    if (error == NULL) {
        return failed;
    }
    char inner[ERROR_MESSAGE_BYTES];
    memcpy(inner, error->message, sizeof inner);
    va_list arguments;
    va_start(arguments, format);
    int written = vsnprintf(error->message, sizeof error->message, format, arguments);
    va_end(arguments);
    if (written < 0) {
        written = 0;
    }
    size_t used = (size_t)written;
    if (used >= sizeof error->message - 1) {
        drop_torn_utf8(error->message);
        return failed;
    }
    int rest = snprintf(error->message + used, sizeof error->message - used, ": %s", inner);
    if (rest < 0) {
        error->message[used] = '\0';
    } else if ((size_t)rest >= sizeof error->message - used) {
        drop_torn_utf8(error->message);
    }
    return failed;
}

result limit_as_corrupt(result value, struct error *error) {
    if (value.code != RESULT_LIMIT) {
        return value;
    }
    if (error != NULL) {
        error->code = RESULT_CORRUPT;
    }
    value.code = RESULT_CORRUPT;
    return value;
}

const char *result_name(enum result_code code) {
    ASSERT((size_t)code < COUNT_OF(names));
    return names[code];
}

void free_cleanup(void *pointer_to_pointer) {
    free(take_pointer(pointer_to_pointer));
}

void fd_cleanup(const int *fd) {
    if (*fd >= 0) {
        close(*fd);
    }
}

void file_cleanup(FILE **file) {
    if (*file != NULL) {
        (void)fclose(*file); // read-only files; writers close by hand and check
        *file = NULL;
    }
}

_Noreturn void assert_failed(const char *condition, const char *file, int line) {
    (void)fprintf(stderr, "hearth: assertion failed: %s at %s:%d\n", condition, file, line);
    abort();
}
