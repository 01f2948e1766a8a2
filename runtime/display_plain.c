/* Events as lines of text: the whole of the plain form, and what the live view leaves to it.
 *
 * In plain lines everything that differs between two equal runs stands on lines that begin with "#".
 */
#include "diff.h"
#include "display_internal.h"

#include <inttypes.h>

#define PATCH_LINES_SHOWN 1000

/* ---- begin and end -------------------------------------------------------------------------- */

static void put_session(struct lines *lines, const struct run_event *event) {
    lines_format(
        lines, STYLE_DIM, "# session %s, seed %" PRIu64, event->session_id, event->sampling->seed
    );
    lines_format(
        lines, STYLE_DIM, "# model %.*s, %s", VIEW_ARGUMENTS(event->model), event->engine->backend
    );
    lines_format(lines, STYLE_DIM, "# workspace %.*s", VIEW_ARGUMENTS(event->workspace));
    if (event->is_resumed) {
        lines_format(
            lines,
            STYLE_DIM,
            "# goes on after turn %d with %d recorded tokens",
            event->status->turns_before,
            event->context_tokens
        );
    }
    lines_excerpt(lines, &(struct excerpt){.prefix = "task: "}, event->task);
}

static void put_change(struct lines *lines, const struct workspace_file_change *file) {
    static const char marks[] = {
        [WORKSPACE_ADDED] = 'A',
        [WORKSPACE_DELETED] = 'D',
        [WORKSPACE_MODIFIED] = 'M',
        [WORKSPACE_TYPE] = 'T',
    };
    if (file->binary) {
        lines_format(lines, STYLE_TEXT, " %c %.600s | binary", marks[file->change], file->path);
        return;
    }
    lines_format(
        lines,
        STYLE_TEXT,
        " %c %.600s | +%zu -%zu",
        marks[file->change],
        file->path,
        file->lines_added,
        file->lines_removed
    );
}

static void put_changes(struct lines *lines, const struct workspace_difference *difference) {
    if (difference->file_count == 0) {
        lines_format(lines, STYLE_TEXT, "%s", "no file changed");
        return;
    }
    lines_format(
        lines,
        STYLE_TEXT,
        "%zu file%s changed, %zu line%s added, %zu removed",
        difference->file_count,
        difference->file_count == 1 ? "" : "s",
        difference->lines_added,
        difference->lines_added == 1 ? "" : "s",
        difference->lines_removed
    );
    for (size_t i = 0; i < difference->file_count && i < 20; i++) {
        put_change(lines, &difference->files[i]);
    }
    if (difference->file_count > 20) {
        lines_format(lines, STYLE_TEXT, " ... and %zu more", difference->file_count - 20);
    }
}

/* How many drafts were tried depends on what they cost, so on the clock. */
static void put_drafts(struct lines *lines, const struct run_status *status) {
    if (status->drafted_tokens > 0) {
        lines_format(
            lines,
            STYLE_DIM,
            "# drafted %" PRId64 ", accepted %" PRId64,
            status->drafted_tokens,
            status->accepted_tokens
        );
    }
    if (status->preempted > 0) {
        lines_format(
            lines,
            STYLE_DIM,
            "# waited %" PRId64 " time%s for a more urgent one",
            status->preempted,
            status->preempted == 1 ? "" : "s"
        );
    }
}

static void put_finished(struct lines *lines, const struct run_event *event) {
    const struct run_status *status = event->status;
    int32_t turns = status->turn - status->turns_before;
    bool has_detail = event->detail[0] != '\0';
    lines_format(
        lines,
        event->exit_status == 0 ? STYLE_GOOD : STYLE_BAD,
        "%s%s%s%s",
        event->stop_text,
        has_detail ? " (" : "",
        event->detail,
        has_detail ? ")" : ""
    );
    lines_format(
        lines,
        STYLE_TEXT,
        "%d turn%s, %" PRId64 " tokens written",
        turns,
        turns == 1 ? "" : "s",
        status->tokens_sampled
    );
    /* What is reused depends on what earlier runs left in the cache. */
    lines_format(
        lines,
        STYLE_DIM,
        "# prompts: %" PRId64 " tokens reused, %" PRId64 " evaluated, %" PRId64 " rebuilt",
        status->reused_tokens,
        status->evaluated_tokens,
        status->rebuilt_tokens
    );
    put_drafts(lines, status);
    lines_format(
        lines,
        STYLE_DIM,
        "# %.2f s, %.0f tokens/s in the last turn",
        (double)event->duration_ms / 1000.0,
        status->tokens_per_second
    );
    if (event->session_id[0] != '\0') {
        const char *id = event->session_id;
        const char *state = event->state_option;
        lines_format(lines, STYLE_DIM, "# next: hearth sessions show %s%s", id, state);
        lines_format(lines, STYLE_DIM, "# go on: hearth run --resume %s%s", id, state);
    }
}

/* 5,321 */
static const char *grouped(int32_t number, char out[16]) {
    char digits[16];
    int length = snprintf(digits, sizeof digits, "%d", number);
    ASSERT(length > 0 && number >= 0);
    size_t at = 0;
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0) {
            out[at++] = ',';
        }
        out[at++] = digits[i];
    }
    out[at] = '\0';
    return out;
}

/* What the first generation of a resumed session did not have to evaluate, and why not more. */
static void put_resumed(struct lines *lines, const struct generation_facts *facts) {
    char numbers[7][16];
    char disk[48] = "";
    char host[48] = "";
    char rebuilt[64] = "";
    char miss[96] = "";
    int length = 0;
    if (facts->restored_disk > 0) {
        length = snprintf(
            disk, sizeof disk, "%s restored from disk, ", grouped(facts->restored_disk, numbers[0])
        );
    }
    if (facts->restored_host > 0) {
        length = snprintf(
            host, sizeof host, "%s from host memory, ", grouped(facts->restored_host, numbers[1])
        );
    }
    if (facts->rebuilt > 0) {
        bool is_approximate =
            facts->window_source != NULL && strcmp(facts->window_source, "replay") == 0;
        length = snprintf(
            rebuilt,
            sizeof rebuilt,
            ", windows %s from %s",
            is_approximate ? "replayed (approximate)" : "rebuilt",
            grouped(facts->rebuilt_from, numbers[2])
        );
    }
    if (facts->miss != NULL && strcmp(facts->miss, "none") != 0) {
        length = snprintf(
            miss,
            sizeof miss,
            "; missed at token %s: %s",
            grouped(facts->miss_token, numbers[3]),
            facts->miss
        );
    }
    ASSERT(length >= 0);
    for (char *at = miss; *at != '\0'; at++) {
        if (*at == '_') {
            *at = ' ';
        }
    }
    lines_format(
        lines,
        STYLE_DIM,
        "# resumed: %s tokens of context, %s%s%s evaluated%s%s",
        grouped(facts->prompt_tokens, numbers[4]),
        disk,
        host,
        grouped(facts->evaluated, numbers[5]),
        rebuilt,
        miss
    );
}

/* ---- events --------------------------------------------------------------------------------- */

/* Which guard ended a turn; the model is told in a message of its own. */
static void put_cut(struct lines *lines, enum finish_reason reason) {
    const char *why = reason == FINISH_LOOP        ? "it repeats one text (--max-repeats)"
                      : reason == FINISH_THINKING  ? "its thinking did not end (--max-thinking)"
                      : reason == FINISH_OPEN_CALL ? "its block of calls did not end (--max-call)"
                                                   : NULL;
    if (why != NULL) {
        lines_format(lines, STYLE_BAD, "! The turn was ended: %s.", why);
    }
}

/* What put_cut says of the same turn in the words of its option. */
static bool is_said_by_cut(const struct run_event *event) {
    /* By the person too, who knows. */
    bool is_end = event->problem == CHAT_PROBLEM_THINKING_UNCLOSED ||
                  event->problem == CHAT_PROBLEM_BLOCK_UNCLOSED ||
                  event->problem == CHAT_PROBLEM_END_MISSING;
    return is_end && (event->reason == FINISH_CANCELLED || event->reason == FINISH_LOOP ||
                      event->reason == FINISH_THINKING || event->reason == FINISH_OPEN_CALL);
}

static void put_idle(struct lines *lines, const struct run_event *event) {
    bool has_detail = event->detail != NULL && event->detail[0] != '\0';
    if (event->stop == NULL) {
        return; /* there was no task yet */
    }
    lines_format(
        lines,
        STYLE_DIM,
        "# %s%s%s%s",
        event->stop_text,
        has_detail ? " (" : "",
        has_detail ? event->detail : "",
        has_detail ? ")" : ""
    );
}

/* What was refused, and what a person allowed. */
static void put_decision(struct lines *lines, const struct run_event *event) {
    bool is_allowed = strcmp(event->verdict, "allow") == 0;
    if (is_allowed && strcmp(event->decided_by, "person") != 0) {
        return;
    }
    enum style style = is_allowed ? STYLE_DIM : STYLE_BAD;
    if (strcmp(event->decided_by, "person") == 0) {
        lines_format(lines, style, "  | %s by you", is_allowed ? "allowed" : "denied");
        return;
    }
    /* The reason is what is said of the tool. */
    lines_format(
        lines,
        style,
        "  | %.*s %s%.*s",
        VIEW_ARGUMENTS(event->call->name),
        event->reason_text.length > 0 ? "" : "is denied",
        VIEW_ARGUMENTS(event->reason_text)
    );
}

static void put_compacted(struct lines *lines, const struct run_event *event) {
    lines_format(
        lines,
        STYLE_DIM,
        "# the context was made shorter: %d tokens, now %d; outputs removed: %d",
        event->tokens_before,
        event->tokens_after,
        event->outputs_removed
    );
    lines_excerpt(lines, &(struct excerpt){.style = STYLE_DIM, .prefix = "# | "}, event->text);
}

/* How a person and the host came to terms; false for any other event. */
static bool put_interactive(struct lines *lines, const struct run_event *event) {
    if (event->type == RUN_IDLE) {
        put_idle(lines, event);
    } else if (event->type == RUN_USER) {
        lines_excerpt(lines, &(struct excerpt){.prefix = "you: "}, event->text);
    } else if (event->type == RUN_ASK) {
        display_put_ask(lines, event);
    } else if (event->type == RUN_DECISION) {
        put_decision(lines, event);
    } else if (event->type == RUN_HOOK) {
        lines_format(lines, STYLE_DIM, "# hook %s: %.*s", event->hook, VIEW_ARGUMENTS(event->text));
    } else if (event->type == RUN_COMPACTED) {
        put_compacted(lines, event);
    } else {
        return false;
    }
    return true;
}

void display_put_event(struct lines *lines, const struct run_event *event) {
    if (put_interactive(lines, event)) {
        return;
    }
    if (event->type == RUN_SESSION) {
        put_session(lines, event);
    } else if (event->type == RUN_EARLIER) {
        display_put_earlier(lines, NULL, event);
    } else if (event->type == RUN_PROBLEM && is_said_by_cut(event)) {
        return;
    } else if (event->type == RUN_PROBLEM) {
        lines_format(
            lines,
            STYLE_BAD,
            "! %s%s%.*s",
            chat_problem_text(event->problem),
            event->text.length > 0 ? " " : "",
            VIEW_ARGUMENTS(event->text)
        );
    } else if (event->type == RUN_USAGE) {
        put_cut(lines, event->reason);
    } else if (event->type == RUN_TOOL_CALL) {
        display_put_call(lines, event->call, event->overwrite);
    } else if (event->type == RUN_TOOL_RESULT) {
        display_put_result(lines, event->tool);
    } else if (event->type == RUN_CHANGES) {
        put_changes(lines, event->difference);
        if (event->shows_patch && event->difference->patch_bytes > 0) {
            struct view patch = view_of(event->difference->patch, event->difference->patch_bytes);
            (void)diff_put(
                lines, &(struct diff_form){.prefix = "", .lines_max = PATCH_LINES_SHOWN}, patch
            );
        }
    } else if (event->type == RUN_NOTE) {
        lines_format(lines, STYLE_DIM, "# %.*s", VIEW_ARGUMENTS(event->text));
    } else if (event->type == RUN_RESUMED) {
        put_resumed(lines, event->facts);
    } else if (event->type == RUN_WARNING) {
        lines_format(lines, STYLE_BAD, "# warning: %.*s", VIEW_ARGUMENTS(event->text));
    } else if (event->type == RUN_STUCK) {
        lines_format(
            lines,
            STYLE_BAD,
            "# stuck for %" PRId64 " s: %s",
            event->stuck->stuck_ms / 1000,
            event->stuck->why
        );
    } else if (event->type == RUN_FINISHED) {
        put_finished(lines, event);
    }
}
