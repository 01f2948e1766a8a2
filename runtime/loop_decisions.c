/* What is decided beside the calls, on other threads, on its way into the record. See loop.h. */
#include "loop_internal.h"

void loop_decisions_init(struct loop *loop) {
    int status = uv_mutex_init(&loop->decided_lock);
    ASSERT(status == 0); /* it takes no resource */
}

void loop_decisions_deinit(struct loop *loop) {
    uv_mutex_destroy(&loop->decided_lock);
    free(loop->decided);
}

static void fill(char *out, size_t bytes, const char *text) {
    int length = snprintf(out, bytes, "%s", text);
    ASSERT(length >= 0); /* too long: cut */
}

void loop_decided(struct loop *loop, const struct loop_decision *decision) {
    uv_mutex_lock(&loop->decided_lock);
    if (loop->decided == NULL) {
        loop->decided = calloc(LOOP_DECISIONS_MAX, sizeof *loop->decided);
    }
    if (loop->decided == NULL || loop->decided_count == LOOP_DECISIONS_MAX) {
        loop->decided_dropped++;
    } else {
        struct waiting_decision *kept = &loop->decided[loop->decided_count++];
        kept->is_allowed = decision->is_allowed;
        fill(kept->kind, sizeof kept->kind, decision->kind);
        fill(kept->subject, sizeof kept->subject, decision->subject);
        fill(kept->decider, sizeof kept->decider, decision->decider);
        fill(kept->reason, sizeof kept->reason, decision->reason);
    }
    uv_mutex_unlock(&loop->decided_lock);
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
    struct loop *loop = run->loop;
    uv_mutex_lock(&loop->decided_lock);
    struct waiting_decision *taken = loop->decided;
    size_t count = loop->decided_count;
    size_t dropped = loop->decided_dropped;
    loop->decided = NULL;
    loop->decided_count = 0;
    loop->decided_dropped = 0;
    uv_mutex_unlock(&loop->decided_lock);
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
