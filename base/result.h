/* Result and error record shared by every folder.
 *
 * A function that can fail returns `result` and fills the caller's `struct error` (which may be
 * null). Errors are values: nothing here prints, exits or keeps a thread-local last error.
 * Thread: any; a `struct error` belongs to one thread at a time.
 */
#ifndef HEARTH_BASE_RESULT_H
#define HEARTH_BASE_RESULT_H

#include <alloca.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

enum result_code {
    RESULT_OK = 0,
    RESULT_MEMORY,        /* an allocation failed */
    RESULT_IO,            /* the operating system refused; error.foreign is errno */
    RESULT_TIMEOUT,       /* a deadline passed */
    RESULT_CANCELLED,     /* the caller asked to stop */
    RESULT_LIMIT,         /* a named limit was reached, or something does not fit */
    RESULT_NOT_FOUND,     /* a named object does not exist */
    RESULT_INVALID_INPUT, /* what a person, model or peer gave is wrong */
    RESULT_UNSUPPORTED,   /* well-formed, but not something this build or machine can do */
    RESULT_CORRUPT,       /* stored data contradicts itself */
    RESULT_DEVICE         /* an accelerator or its runtime failed */
};

/* One field, so that an int is never taken for a result by accident. */
typedef struct {
    enum result_code code;
} result;

#define ERROR_MESSAGE_BYTES 480

/* What went wrong, from the outside in: "while loading shard 3: tensor 'embed.weight': ...". */
struct error {
    enum result_code code;
    int foreign; /* errno, SQLite or libuv code where it arose, else 0 */
    int line;
    const char *file; /* static string */
    char message[ERROR_MESSAGE_BYTES];
};

#define MUST_CHECK                       __attribute__((warn_unused_result))
#define PRINTF_LIKE(format_at, first_at) __attribute__((format(printf, format_at, first_at)))

/* Fills the record and returns the result; never allocates, truncates long messages. */
result error_set(
    struct error *error,
    enum result_code code,
    int foreign,
    const char *file,
    int line,
    const char *format,
    ...
) PRINTF_LIKE(6, 7);

/* Puts context in front of the message already there and returns the same result. */
result error_note(struct error *error, result failed, const char *format, ...) PRINTF_LIKE(3, 4);

/* A limit met while a stored file is read is that file's fault, not a refusal by this machine:
 * LIMIT becomes CORRUPT, anything else stays. */
result limit_as_corrupt(result value, struct error *error);

/* "corrupt", "limit", ...: a stable lower-case word for logs and JSON. */
const char *result_name(enum result_code code);

static inline result result_ok(void) {
    result ok = {RESULT_OK};
    return ok;
}

static inline bool is_ok(result value) {
    return value.code == RESULT_OK;
}

static inline bool is_failed(result value) {
    return value.code != RESULT_OK;
}

/* Says that a failure is of no consequence here; give the reason in a comment beside it. */
static inline void result_ignore(result value) {
    (void)value;
}

#define OK (result_ok())

/* Tells the compiler what error_set asserts, so that callers' outputs are known to be set. */
static inline result result_failed(result value) {
    if (value.code == RESULT_OK) {
        __builtin_unreachable();
    }
    return value;
}

/* Returns a failure from the current function. */
#define FAIL(error, CODE, ...)                                                                     \
    return result_failed(error_set((error), RESULT_##CODE, 0, __FILE__, __LINE__, __VA_ARGS__))

/* The same with the foreign code (errno and the like) kept. */
#define FAIL_FOREIGN(error, CODE, foreign_code, ...)                                               \
    return result_failed(                                                                          \
        error_set((error), RESULT_##CODE, (foreign_code), __FILE__, __LINE__, __VA_ARGS__)         \
    )

/* Passes a failure up. */
#define TRY(call)                                                                                  \
    do {                                                                                           \
        result try_result_ = (call);                                                               \
        if (try_result_.code != RESULT_OK) {                                                       \
            return try_result_;                                                                    \
        }                                                                                          \
    } while (0)

/* Passes a failure up with context in front: TRY_NOTE(error, load(..., error), "shard %u", n). */
#define TRY_NOTE(error, call, ...)                                                                 \
    do {                                                                                           \
        result try_result_ = (call);                                                               \
        if (try_result_.code != RESULT_OK) {                                                       \
            return error_note((error), try_result_, __VA_ARGS__);                                  \
        }                                                                                          \
    } while (0)

/* CLEANUP(f) type x = ...: f(&x) runs when x leaves its scope. */
#define CLEANUP(function) __attribute__((cleanup(function)))

/* Moves ownership out of a pointer variable: return TAKE(p). */
static inline void *take_pointer(void *pointer_to_pointer) {
    void *taken;
    memcpy(&taken, pointer_to_pointer, sizeof taken);
    memset(pointer_to_pointer, 0, sizeof taken);
    return taken;
}
#define TAKE(pointer) take_pointer(&(pointer))

void free_cleanup(void *pointer_to_pointer); /* CLEANUP(free_cleanup) char *text = NULL; */
void fd_cleanup(const int *fd);              /* CLEANUP(fd_cleanup) int fd = -1; closes when >= 0 */
void file_cleanup(FILE **file);

__attribute__((noreturn)) void assert_failed(const char *condition, const char *file, int line);

/* States what the programmer guarantees; on in release. Foreign input is refused, not asserted. */
#define ASSERT(condition)                                                                          \
    do {                                                                                           \
        if (__builtin_expect(!(condition), 0)) {                                                   \
            assert_failed(#condition, __FILE__, __LINE__);                                         \
        }                                                                                          \
    } while (0)

#ifdef NDEBUG_HOT
#define ASSERT_DEBUG(condition) ((void)0)
#else
#define ASSERT_DEBUG(condition) ASSERT(condition)
#endif

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

static inline bool size_add(size_t a, size_t b, size_t *sum) {
    return !__builtin_add_overflow(a, b, sum);
}

static inline bool size_multiply(size_t a, size_t b, size_t *product) {
    return !__builtin_mul_overflow(a, b, product);
}

static inline int32_t narrow_i32(int64_t value) {
    ASSERT(value >= INT32_MIN && value <= INT32_MAX);
    return (int32_t)value;
}

#ifdef __cplusplus
}
#else
/* Banned: unbounded or silent-on-error calls. */
#undef alloca
#pragma GCC poison strcpy strcat strtok sprintf vsprintf gets atoi atol atof alloca
#endif

#endif
