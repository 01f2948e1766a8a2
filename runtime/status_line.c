/* Fields in the order of their weight, with words where all of them fit so; what does not fit even without
 * is left out from the end. */
#include "status_line.h"

#include <inttypes.h>
#include <stdarg.h>

struct writer {
    char *out;
    size_t length, columns;
    bool is_wide, is_cut;
};

PRINTF_LIKE(2, 3)
static void add_field(struct writer *writer, const char *format, ...) {
    char field[96];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(field, sizeof field, format, arguments);
    va_end(arguments);
    ASSERT(length >= 0);
    size_t bytes = (size_t)length < sizeof field ? (size_t)length : sizeof field - 1;
    size_t separator = writer->length > 0 ? 3 : 0;
    if (writer->length + separator + bytes > writer->columns) {
        writer->is_cut = true;
        return;
    }
    memcpy(writer->out + writer->length, " | ", separator);
    memcpy(writer->out + writer->length + separator, field, bytes);
    writer->length += separator + bytes;
    writer->out[writer->length] = '\0';
}

/* 950, 5.3k, 131k */
static const char *rounded(int64_t number, char out[24]) {
    int length = number < 1000    ? snprintf(out, 24, "%" PRId64, number)
                 : number < 10000 ? snprintf(out, 24, "%.1fk", (double)number / 1000.0)
                                  : snprintf(out, 24, "%" PRId64 "k", number / 1000);
    ASSERT(length > 0);
    return out;
}

static void add_activity(struct writer *writer, const struct run_status *status) {
    const char *activity = status->activity != NULL ? status->activity : "";
    if (status->prefill_total > 0) {
        add_field(writer, "%s %d/%d", activity, status->prefill_done, status->prefill_total);
    } else if (activity[0] != '\0') {
        add_field(writer, "%s", activity);
    }
}

static void add_budget(struct writer *writer, const struct run_status *status) {
    char number[24];
    if (status->time_left_ms >= 0) {
        int64_t seconds = status->time_left_ms / 1000;
        add_field(
            writer,
            "%" PRId64 ":%02" PRId64 "%s",
            seconds / 60,
            seconds % 60,
            writer->is_wide ? " left" : ""
        );
    }
    if (status->tokens_max > 0) {
        int64_t left = status->tokens_max - status->tokens_sampled;
        add_field(
            writer,
            writer->is_wide ? "%s tokens left" : "%s tok",
            rounded(left > 0 ? left : 0, number)
        );
    }
    if (status->calls_max > 0) {
        add_field(writer, "calls %" PRId32 "/%" PRId32, status->calls, status->calls_max);
    }
}

static void add_fields(struct writer *writer, const struct run_status *status) {
    char used[24];
    char left[24];
    int32_t room = status->context_max - status->context_tokens;
    add_activity(writer, status);
    if (status->context_max == 0) {
        return; /* the run has not begun */
    }
    if (writer->is_wide) {
        add_field(
            writer,
            "context %s used, %s left",
            rounded(status->context_tokens, used),
            rounded(room > 0 ? room : 0, left)
        );
    } else {
        add_field(
            writer,
            "%s/%s",
            rounded(status->context_tokens, used),
            rounded(status->context_max, left)
        );
    }
    if (status->tokens_per_second > 0.0) {
        add_field(writer, writer->is_wide ? "%.0f tok/s" : "%.0f/s", status->tokens_per_second);
    }
    add_budget(writer, status);
    if (status->effort == CHAT_EFFORT_OFF) {
        add_field(writer, "effort off");
    } else {
        add_field(writer, "effort %d", status->effort);
    }
    add_field(writer, "turn %d", status->turn);
    add_field(writer, "%s reused", rounded(status->reused_tokens, used));
}

void status_line_make(const struct run_status *status, int columns, char out[STATUS_LINE_BYTES]) {
    ASSERT(columns > 0);
    size_t room = (size_t)columns < STATUS_LINE_BYTES ? (size_t)columns : STATUS_LINE_BYTES - 1;
    struct writer writer = {.out = out, .columns = room, .is_wide = true};
    out[0] = '\0';
    add_fields(&writer, status);
    if (writer.is_cut) {
        writer = (struct writer){.out = out, .columns = room};
        out[0] = '\0';
        add_fields(&writer, status);
    }
}
