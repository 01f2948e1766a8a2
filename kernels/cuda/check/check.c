/* Cases, their buffers on both backends, running an op on both, identity on the device. */
#include "check.h"

#include <stdarg.h>

#define POISON      0xA5
#define GUARD_BYTES 256 /* behind every output on a real device; the emulation watches by itself */
#define HOST_PARTS  512
#define OP_BYTES    1024

enum buffer_kind { BUFFER_INPUT, BUFFER_POINTERS, BUFFER_OUTPUT };

struct check_buffer {
    struct check_buffer *next;
    enum buffer_kind kind;
    int32_t rows; /* CHECK_SHARED, or its rows go with the op's */
    size_t row_bytes, bytes, guard;
    unsigned char *cpu, *device;
    unsigned char *first; /* outputs: the first contents, guard included */
    unsigned char *got;   /* outputs: what the device gave in check_run */
    bool is_uploaded;
};

void check_stop(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(2);
}

void check_report(struct check *check, bool passed, const char *format, ...) {
    char text[160];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    printf("%-6s %-15s %-34s %s\n", passed ? "ok" : "FAILED", check->op, check->shape, text);
    fflush(stdout);
    check->checks++;
    check->failed += passed ? 0 : 1;
}

/* ---- cases ---- */

bool check_case(struct check *check, const char *op, const char *shape, ...) {
    check_case_end(check);
    if (check->only != NULL && strcmp(check->only, op) != 0) {
        return false;
    }
    va_list arguments;
    va_start(arguments, shape);
    vsnprintf(check->shape, sizeof check->shape, shape, arguments);
    va_end(arguments);
    snprintf(check->op, sizeof check->op, "%s", op);
    if (check->part != NULL && strstr(check->shape, check->part) == NULL) {
        return false;
    }
    uint64_t hash = 0xCBF29CE484222325U ^ check->seed;
    for (const char *name = check->op; *name != 0; name++) {
        hash = (hash ^ (unsigned char)*name) * 0x100000001B3U;
    }
    for (const char *name = check->shape; *name != 0; name++) {
        hash = (hash ^ (unsigned char)*name) * 0x100000001B3U;
    }
    check->random = hash;
    return true;
}

void check_case_end(struct check *check) {
    while (check->buffers != NULL) {
        struct check_buffer *buffer = check->buffers;
        check->buffers = buffer->next;
        check->cpu->release(check->cpu, buffer->cpu);
        check->device->release(check->device, buffer->device);
        free(buffer->first);
        free(buffer->got);
        free(buffer);
    }
    for (int32_t i = 0; i < check->host_part_count; i++) {
        free(check->host_parts[i]);
    }
    check->host_part_count = 0;
}

/* ---- buffers ---- */

static void *allocate(size_t bytes) {
    void *memory = calloc(bytes > 0 ? bytes : 1, 1);
    if (memory == NULL) {
        check_stop("out of memory: %zu bytes", bytes);
    }
    return memory;
}

static void *allocate_on(struct backend *backend, size_t bytes) {
    struct error error = {0};
    void *memory = NULL;
    if (is_failed(backend->allocate(backend, bytes > 0 ? bytes : 1, &memory, &error))) {
        check_stop("%s", error.message);
    }
    return memory;
}

static struct check_buffer *
add_buffer(struct check *check, enum buffer_kind kind, int32_t rows, size_t row_bytes) {
    ASSERT(rows >= 0);
    struct check_buffer *buffer = allocate(sizeof *buffer);
    buffer->kind = kind;
    buffer->rows = rows;
    buffer->row_bytes = row_bytes;
    buffer->bytes = row_bytes * (size_t)(rows == CHECK_SHARED ? 1 : rows);
    buffer->guard = check->emulated || kind != BUFFER_OUTPUT ? 0 : GUARD_BYTES;
    buffer->cpu = allocate_on(check->cpu, buffer->bytes);
    buffer->device = allocate_on(check->device, buffer->bytes + buffer->guard);
    buffer->next = check->buffers;
    check->buffers = buffer;
    return buffer;
}

void *check_input(struct check *check, int32_t rows, size_t row_bytes) {
    return add_buffer(check, BUFFER_INPUT, rows, row_bytes)->cpu;
}

void *check_pointers(struct check *check, int32_t rows, size_t row_bytes) {
    return add_buffer(check, BUFFER_POINTERS, rows, row_bytes)->cpu;
}

void *check_output(struct check *check, int32_t rows, size_t row_bytes) {
    struct check_buffer *buffer = add_buffer(check, BUFFER_OUTPUT, rows, row_bytes);
    memset(buffer->cpu, POISON, buffer->bytes);
    return buffer->cpu;
}

void *check_host(struct check *check, size_t bytes) {
    ASSERT(check->host_part_count < HOST_PARTS);
    if (check->host_parts == NULL) {
        check->host_parts = allocate(HOST_PARTS * sizeof *check->host_parts);
    }
    void *memory = allocate(bytes);
    check->host_parts[check->host_part_count++] = memory;
    return memory;
}

static struct check_buffer *buffer_of(const struct check *check, const void *pointer) {
    const unsigned char *at = pointer;
    for (struct check_buffer *buffer = check->buffers; buffer != NULL; buffer = buffer->next) {
        if (at >= buffer->cpu && at < buffer->cpu + buffer->bytes) {
            return buffer;
        }
    }
    return NULL;
}

/* Replaces pointers into the CPU's buffers by their twins, those into buffers with rows moved on by
 * `row` rows. A word that only looks like such a pointer would be a pair of absurd numbers. */
static void translate(const struct check *check, void *words, size_t bytes, int32_t row) {
    ASSERT(bytes % sizeof(void *) == 0);
    for (size_t at = 0; at < bytes; at += sizeof(void *)) {
        unsigned char *pointer;
        memcpy(&pointer, (unsigned char *)words + at, sizeof pointer);
        struct check_buffer *buffer = buffer_of(check, pointer);
        if (buffer != NULL) {
            size_t moved = buffer->rows == CHECK_SHARED ? 0 : (size_t)row * buffer->row_bytes;
            pointer = buffer->device + (pointer - buffer->cpu) + moved;
            memcpy((unsigned char *)words + at, &pointer, sizeof pointer);
        }
    }
}

static void keep_first(struct check_buffer *buffer) {
    free(buffer->first);
    free(buffer->got);
    buffer->first = allocate(buffer->bytes + buffer->guard);
    buffer->got = allocate(buffer->bytes + buffer->guard);
    memcpy(buffer->first, buffer->cpu, buffer->bytes);
    memset(buffer->first + buffer->bytes, POISON, buffer->guard);
}

static void bring(struct check *check, struct check_buffer *buffer) {
    struct backend *device = check->device;
    if (buffer->kind == BUFFER_POINTERS) {
        void *translated = allocate(buffer->bytes);
        memcpy(translated, buffer->cpu, buffer->bytes);
        translate(check, translated, buffer->bytes, 0);
        device->upload(device, buffer->device, translated, buffer->bytes);
        free(translated);
    } else if (buffer->kind == BUFFER_OUTPUT) {
        device->upload(device, buffer->device, buffer->first, buffer->bytes + buffer->guard);
    } else {
        device->upload(device, buffer->device, buffer->cpu, buffer->bytes);
    }
    buffer->is_uploaded = true;
}

/* ---- running ---- */

static void wait_for(const struct check *check, struct backend *backend) {
    struct error error = {0};
    if (is_failed(backend->synchronize(backend, &error))) {
        check_stop("%s %s: %s", check->op, check->shape, error.message);
    }
}

static void
enqueue_rows(struct check *check, check_call *call, const void *op, size_t op_bytes, int32_t row) {
    union {
        unsigned char bytes[OP_BYTES];
        void *aligned;
        double also;
    } copy;
    ASSERT(op_bytes <= sizeof copy.bytes);
    memcpy(copy.bytes, op, op_bytes);
    translate(check, copy.bytes, op_bytes, row);
    call(check->device, copy.bytes);
}

void check_enqueue(struct check *check, check_call *call, const void *op, size_t op_bytes) {
    for (struct check_buffer *buffer = check->buffers; buffer != NULL; buffer = buffer->next) {
        if (!buffer->is_uploaded) {
            if (buffer->kind == BUFFER_OUTPUT) {
                keep_first(buffer);
            }
            bring(check, buffer);
        }
    }
    enqueue_rows(check, call, op, op_bytes, 0);
}

static unsigned char *fetch(struct check *check, const struct check_buffer *buffer) {
    size_t bytes = buffer->bytes + buffer->guard;
    unsigned char *to = allocate(bytes);
    check->device->download(check->device, to, buffer->device, bytes);
    if (memcmp(to + buffer->bytes, buffer->first + buffer->bytes, buffer->guard) != 0) {
        check_report(check, false, "wrote behind a buffer of %zu bytes", buffer->bytes);
    }
    return to;
}

void check_run(struct check *check, check_call *call, const void *op, size_t op_bytes) {
    for (struct check_buffer *buffer = check->buffers; buffer != NULL; buffer = buffer->next) {
        buffer->is_uploaded = false; // the caller may have changed it
    }
    check_run_again(check, call, op, op_bytes);
}

void check_run_again(struct check *check, check_call *call, const void *op, size_t op_bytes) {
    for (struct check_buffer *buffer = check->buffers; buffer != NULL; buffer = buffer->next) {
        buffer->is_uploaded = buffer->is_uploaded && buffer->kind != BUFFER_OUTPUT;
    }
    check_enqueue(check, call, op, op_bytes);
    wait_for(check, check->device);
    call(check->cpu, op);
    wait_for(check, check->cpu);
    for (struct check_buffer *buffer = check->buffers; buffer != NULL; buffer = buffer->next) {
        if (buffer->kind == BUFFER_OUTPUT) {
            free(buffer->got);
            buffer->got = fetch(check, buffer);
        }
    }
}

const void *check_got(struct check *check, const void *pointer) {
    const struct check_buffer *buffer = buffer_of(check, pointer);
    ASSERT(buffer != NULL && buffer->kind == BUFFER_OUTPUT && buffer->got != NULL);
    return buffer->got + ((const unsigned char *)pointer - buffer->cpu);
}

void check_restore(struct check *check) {
    for (struct check_buffer *buffer = check->buffers; buffer != NULL; buffer = buffer->next) {
        if (buffer->kind == BUFFER_OUTPUT && buffer->is_uploaded) {
            bring(check, buffer);
        }
    }
}

/* ---- identity ---- */

struct difference {
    size_t bytes, first; /* how many differ, and the first one's offset */
};

static void differ(const void *a, const void *b, size_t bytes, struct difference *found) {
    const unsigned char *x = a;
    const unsigned char *y = b;
    for (size_t i = 0; i < bytes; i++) {
        if (x[i] != y[i]) {
            found->first = found->bytes == 0 ? i : found->first;
            found->bytes++;
        }
    }
}

static void report_identity(struct check *check, const char *how, struct difference found) {
    if (found.bytes == 0) {
        check_report(check, true, "identical %s", how);
    } else {
        check_report(
            check, false, "%zu bytes differ %s, first at %zu", found.bytes, how, found.first
        );
    }
}

void check_identical_part(struct check *check, const char *how, const void *from, size_t bytes) {
    const struct check_buffer *buffer = buffer_of(check, from);
    ASSERT(buffer != NULL && buffer->kind == BUFFER_OUTPUT && buffer->got != NULL);
    size_t at = (size_t)((const unsigned char *)from - buffer->cpu);
    ASSERT(at + bytes <= buffer->bytes);
    wait_for(check, check->device);
    unsigned char *now = fetch(check, buffer);
    struct difference found = {0, 0};
    differ(now + at, buffer->got + at, bytes, &found);
    free(now);
    report_identity(check, how, found);
}

static struct difference outputs_differ(struct check *check) {
    struct difference found = {0, 0};
    wait_for(check, check->device);
    for (struct check_buffer *buffer = check->buffers; buffer != NULL; buffer = buffer->next) {
        if (buffer->kind == BUFFER_OUTPUT) {
            unsigned char *now = fetch(check, buffer);
            differ(now, buffer->got, buffer->bytes, &found);
            free(now);
        }
    }
    return found;
}

void check_identical(struct check *check, const char *how) {
    report_identity(check, how, outputs_differ(check));
}

/* Runs rows [first, first + count) of the op alone. */
static void run_part(
    struct check *check,
    check_call *call,
    const void *op,
    size_t op_bytes,
    size_t rows_at,
    int32_t first,
    int32_t count
) {
    unsigned char part[OP_BYTES];
    ASSERT(op_bytes <= sizeof part);
    memcpy(part, op, op_bytes);
    memcpy(part + rows_at, &count, sizeof count);
    enqueue_rows(check, call, part, op_bytes, first);
}

/* Puts row r of all buffers with rows at place (r + shift) % rows. */
static void move_rows(struct check *check, int32_t shift) {
    for (struct check_buffer *buffer = check->buffers; buffer != NULL; buffer = buffer->next) {
        if (buffer->rows == CHECK_SHARED) {
            continue;
        }
        ASSERT(buffer->kind != BUFFER_POINTERS);
        size_t tail = (size_t)shift * buffer->row_bytes;
        size_t head = buffer->bytes - tail;
        const unsigned char *from = buffer->kind == BUFFER_OUTPUT ? buffer->first : buffer->cpu;
        check->device->upload(check->device, buffer->device + tail, from, head);
        check->device->upload(check->device, buffer->device, from + head, tail);
    }
}

static struct difference moved_differ(struct check *check, int32_t shift) {
    struct difference found = {0, 0};
    wait_for(check, check->device);
    for (struct check_buffer *buffer = check->buffers; buffer != NULL; buffer = buffer->next) {
        if (buffer->kind == BUFFER_OUTPUT && buffer->rows != CHECK_SHARED) {
            size_t tail = (size_t)shift * buffer->row_bytes;
            size_t head = buffer->bytes - tail;
            unsigned char *now = fetch(check, buffer);
            differ(now + tail, buffer->got, head, &found);
            differ(now, buffer->got + head, tail, &found);
            free(now);
        }
    }
    return found;
}

void check_rows(
    struct check *check, check_call *call, const void *op, size_t op_bytes, size_t rows_at
) {
    int32_t rows;
    memcpy(&rows, (const unsigned char *)op + rows_at, sizeof rows);
    for (struct check_buffer *buffer = check->buffers; buffer != NULL; buffer = buffer->next) {
        ASSERT(buffer->rows == CHECK_SHARED || buffer->rows == rows);
    }
    if (rows < 2) {
        return;
    }
    check_restore(check);
    for (int32_t first = 0, count = 1; first < rows; first += count, count = 2 * count + 1) {
        count = count < rows - first ? count : rows - first;
        run_part(check, call, op, op_bytes, rows_at, first, count);
    }
    struct difference chunks = outputs_differ(check);
    check_restore(check);
    int32_t eighth = rows < 16 ? 1 : rows / 8;
    for (int32_t first = 0; first < rows; first += eighth) {
        int32_t count = eighth < rows - first ? eighth : rows - first;
        if (count > 1) { // what is before the last row of the eighth
            run_part(check, call, op, op_bytes, rows_at, first, count - 1);
        }
        run_part(check, call, op, op_bytes, rows_at, first + count - 1, 1);
    }
    struct difference alone = outputs_differ(check);
    int32_t shift = rows / 2 + (rows > 4 ? 1 : 0);
    move_rows(check, shift);
    enqueue_rows(check, call, op, op_bytes, 0);
    struct difference moved = moved_differ(check, shift);
    if (chunks.bytes + alone.bytes + moved.bytes == 0) {
        check_report(check, true, "identical in chunks, alone, at other places of the batch");
    } else {
        report_identity(check, "in chunks of 1, 3, 7, ... rows", chunks);
        report_identity(check, "alone", alone);
        report_identity(check, "at other places of the batch", moved);
    }
    for (struct check_buffer *buffer = check->buffers; buffer != NULL; buffer = buffer->next) {
        bring(check, buffer);
    }
}

size_t check_output_bytes(const struct check *check, const void *pointer) {
    const struct check_buffer *buffer = buffer_of(check, pointer);
    ASSERT(buffer != NULL && buffer->kind == BUFFER_OUTPUT && pointer == buffer->cpu);
    return buffer->bytes;
}
