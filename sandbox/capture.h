/* Keeps the first and the last bytes of a stream and counts the rest. Internal to sandbox/. */
#ifndef HEARTH_SANDBOX_CAPTURE_H
#define HEARTH_SANDBOX_CAPTURE_H

#include "base/bytes.h"

struct capture {
    unsigned char *head;
    size_t head_bytes;
    size_t head_max;
    unsigned char *ring; /* the last tail_max bytes behind the head */
    size_t ring_bytes;
    size_t ring_at; /* where the next byte goes */
    size_t tail_max;
    uint64_t total;
};

/* `kept` bytes in all, half of them for the head. Expected errors: MEMORY. */
MUST_CHECK result capture_init(struct capture *capture, size_t kept, struct error *error);
void capture_deinit(struct capture *capture);
void capture_add(struct capture *capture, const unsigned char *bytes, size_t length);
/* Makes the tail one piece, so that it can be viewed. */
void capture_settle(struct capture *capture);
struct view capture_head(const struct capture *capture);
struct view capture_tail(const struct capture *capture); /* after capture_settle */
uint64_t capture_dropped(const struct capture *capture);

#endif
