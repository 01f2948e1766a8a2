/* Standard output without blocking the loop: bytes are queued and written by a worker, one write
 * at a time and in order. Thread: loop.
 */
#ifndef HEARTH_RUNTIME_OUTPUT_H
#define HEARTH_RUNTIME_OUTPUT_H

#include "base/bytes.h"

/* Text waiting for a reader that does not read. Reaching it is an error of the run, not a wait. */
#define OUTPUT_BYTES_MAX ((size_t)64 << 20)

struct output;
struct uv_loop_s;

/* Borrows the descriptor. `loop` null: every append is written at once, blocking (for commands that
 * have no loop). Expected errors: MEMORY. */
MUST_CHECK result
output_create(struct output **out, struct uv_loop_s *loop, int fd, struct error *error);
/* Only when idle (output_is_idle) or without a loop. */
void output_destroy(struct output *output);
/* Queues bytes; errors stick, see output_status. */
void output_append(struct output *output, struct view bytes);
void output_append_text(struct output *output, const char *text);
/* The buffer to build text in; call output_flush afterwards. */
struct buffer *output_buffer(struct output *output);
void output_flush(struct output *output);
bool output_is_idle(const struct output *output);
/* The first failure: IO (closed pipe, full disk) or LIMIT. Everything later is dropped. */
result output_status(const struct output *output, struct error *error);
/* Called whenever a queued write ended. */
void output_on_idle(struct output *output, void (*idle)(void *context), void *context);

#endif
