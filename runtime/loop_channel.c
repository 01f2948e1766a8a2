/* What other threads send to a run: live output of its tools, and what is decided beside its calls, on its
 * way into the record. See loop.h. */
#include "loop_internal.h"

#define LIVE_BYTES_MAX ((size_t)64 << 10) /* that wait for the loop; more is dropped */

/* ---- life ----------------------------------------------------------------------------------- */

void run_channel_init(struct run_channel *channel, struct loop *loop) {
    *channel = (struct run_channel){.loop = loop};
    int status = uv_mutex_init(&channel->lock);
    ASSERT(status == 0); /* it takes no resource */
    buffer_init(&channel->live, BUFFER_CEILING_DEFAULT);
}

void run_channel_deinit(struct run_channel *channel) {
    uv_mutex_destroy(&channel->lock);
    free(channel->decided);
    buffer_deinit(&channel->live);
}

result run_channel_create(struct run_channel **out, struct loop *loop, struct error *error) {
    struct run_channel *channel = calloc(1, sizeof *channel);
    if (channel == NULL) {
        FAIL(error, MEMORY, "no memory for what tools send to a run");
    }
    run_channel_init(channel, loop);
    *out = channel;
    return OK;
}

void run_channel_destroy(struct run_channel *channel) {
    if (channel != NULL) {
        run_channel_deinit(channel);
        free(channel);
    }
}

/* ---- live output ---------------------------------------------------------------------------- */

void run_channel_output(void *context, struct view bytes) {
    struct run_channel *channel = context;
    uv_mutex_lock(&channel->lock);
    size_t room = LIVE_BYTES_MAX - channel->live.length;
    struct view taken = view_slice(bytes, 0, room);
    bool wakes = taken.length > 0 && is_ok(buffer_append(&channel->live, taken, NULL));
    uv_mutex_unlock(&channel->lock);
    if (wakes) {
        loop_wake(channel->loop);
    }
}

void loop_tool_output(void *loop, struct view bytes) {
    struct loop *target = loop;
    run_channel_output(&target->channel, bytes);
}

/* Bytes that end with a whole character, or with one that is broken for good. */
static size_t whole_characters(struct view text) {
    for (size_t back = 1; back <= 3 && back <= text.length; back++) {
        unsigned char byte = text.data[text.length - back];
        size_t needed = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : byte >= 0xC0 ? 2 : 1;
        if (byte >= 0xC0) {
            return needed > back ? text.length - back : text.length;
        }
        if (byte < 0x80) {
            break;
        }
    }
    return text.length;
}

result run_channel_take_output(struct run_channel *channel, bool is_last, struct buffer *out) {
    uv_mutex_lock(&channel->lock);
    struct view all = buffer_view(&channel->live);
    size_t length = is_last ? all.length : whole_characters(all);
    result copied = buffer_append(out, view_slice(all, 0, length), NULL);
    buffer_consume(&channel->live, length);
    uv_mutex_unlock(&channel->lock);
    return copied;
}

/* ---- decisions ------------------------------------------------------------------------------ */

static void fill(char *out, size_t bytes, const char *text) {
    int length = snprintf(out, bytes, "%s", text);
    ASSERT(length >= 0); /* too long: cut */
}

void run_channel_decided(struct run_channel *channel, const struct loop_decision *decision) {
    uv_mutex_lock(&channel->lock);
    if (channel->decided == NULL) {
        channel->decided = calloc(LOOP_DECISIONS_MAX, sizeof *channel->decided);
    }
    if (channel->decided == NULL || channel->decided_count == LOOP_DECISIONS_MAX) {
        channel->decided_dropped++;
    } else {
        struct waiting_decision *kept = &channel->decided[channel->decided_count++];
        kept->is_allowed = decision->is_allowed;
        fill(kept->kind, sizeof kept->kind, decision->kind);
        fill(kept->subject, sizeof kept->subject, decision->subject);
        fill(kept->decider, sizeof kept->decider, decision->decider);
        fill(kept->reason, sizeof kept->reason, decision->reason);
    }
    uv_mutex_unlock(&channel->lock);
}

void loop_decided(struct loop *loop, const struct loop_decision *decision) {
    run_channel_decided(&loop->channel, decision);
}

static result
record_one(struct run *run, const struct waiting_decision *kept, struct error *error) {
    const struct session_decision_begin decision = {
        .is_allowed = kept->is_allowed,
        .kind = view_of_text(kept->kind),
        .subject = view_of_text(kept->subject),
        .decider = view_of_text(kept->decider),
        .reason = view_of_text(kept->reason),
    };
    return recorder_decision(&run->recorder, &decision, error);
}

result run_record_decisions(struct run *run, struct error *error) {
    struct run_channel *channel = run->channel;
    uv_mutex_lock(&channel->lock);
    struct waiting_decision *taken = channel->decided;
    size_t count = channel->decided_count;
    size_t dropped = channel->decided_dropped;
    channel->decided = NULL;
    channel->decided_count = 0;
    channel->decided_dropped = 0;
    uv_mutex_unlock(&channel->lock);
    result recorded = OK;
    for (size_t i = 0; i < count && is_ok(recorded); i++) {
        recorded = record_one(run, &taken[i], error);
    }
    free(taken);
    if (is_ok(recorded) && dropped > 0) {
        struct waiting_decision rest = {.kind = "network", .subject = "?", .decider = "rule"};
        int length =
            snprintf(rest.reason, sizeof rest.reason, "%zu more decisions were not kept", dropped);
        ASSERT(length > 0);
        recorded = record_one(run, &rest, error);
    }
    return recorded;
}
