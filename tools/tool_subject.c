/* What a call is about: the command, the files and the address that its arguments name. See tool.h. */
#include "tool_internal.h"
#include "tool_patch.h"

void tool_subject_deinit(struct tool_subject *subject) {
    json_destroy(subject->arguments);
    buffer_deinit(&subject->renamed);
    *subject = (struct tool_subject){0};
}

static void add_path(struct tool_subject *subject, struct view path) {
    if (subject->path_count == TOOL_SUBJECT_PATHS_MAX) {
        subject->has_more_paths = true;
        return;
    }
    subject->paths[subject->path_count++] = path;
}

/* The files of a patch, read by what will apply it: another reader might see other names. One that is
 * wrong names none, and the call refuses it. */
static result add_patch(struct tool_subject *subject, struct view text, struct error *error) {
    CLEANUP(patch_deinit) struct patch patch = {0};
    CLEANUP(buffer_deinit) struct buffer why;
    buffer_init(&why, BUFFER_CEILING_DEFAULT);
    TRY(patch_parse(text, &patch, &why, error));
    for (size_t i = 0; why.length == 0 && i < patch.file_count; i++) {
        add_path(subject, patch.files[i].path);
        if (patch.files[i].moved_to.length > 0) {
            add_path(subject, patch.files[i].moved_to);
        }
    }
    return OK;
}

static result
take_argument(struct tool_subject *subject, struct json_value member, struct error *error) {
    struct view name = json_name(member);
    struct view text;
    if (!json_as_string(member, &text)) {
        return OK;
    }
    if (view_equals_text(name, "command") && (subject->effects & TOOL_EXECUTES) != 0) {
        subject->command = text;
    } else if (view_equals_text(name, "path")) {
        add_path(subject, text);
    } else if (view_equals_text(name, "url")) {
        subject->url = text;
    } else if (view_equals_text(name, "patch") && (subject->effects & TOOL_WRITES) != 0) {
        return add_patch(subject, text, error);
    }
    return OK;
}

static const struct tool_offer *find_offer(const struct tool_context *context, struct view name) {
    for (size_t i = 0; i < context->offer_count; i++) {
        if (view_equals_text(name, context->offers[i].shown->name)) {
            return &context->offers[i];
        }
    }
    return NULL;
}

/* Arguments that cannot be read are refused by the call itself. */
static result take_arguments(
    const struct tool_offer *offer,
    struct view arguments,
    struct tool_subject *subject,
    struct error *error
) {
    result parsed = json_parse(arguments, NULL, &subject->arguments, error);
    if (is_failed(parsed) || json_type(json_root(subject->arguments)) != JSON_OBJECT) {
        return parsed.code == RESULT_MEMORY ? parsed : OK;
    }
    if (offer->renames != NULL) {
        buffer_init(&subject->renamed, TOOL_ARGUMENTS_BYTES_MAX * 2);
        TRY(tool_dialect_rename(
            offer->renames, json_root(subject->arguments), &subject->renamed, error
        ));
        json_destroy(subject->arguments);
        subject->arguments = NULL;
        TRY(json_parse(buffer_view(&subject->renamed), NULL, &subject->arguments, error));
    }
    struct json_value member = json_first(json_root(subject->arguments));
    for (; json_type(member) != JSON_ABSENT; member = json_next(member)) {
        TRY(take_argument(subject, member, error));
    }
    return OK;
}

result tool_subject_find(
    const struct tool_context *context,
    struct view name,
    struct view arguments,
    struct tool_subject *out,
    struct error *error
) {
    *out = (struct tool_subject){0};
    const struct tool_offer *offer = find_offer(context, name);
    if (offer == NULL) {
        return OK;
    }
    out->tool = offer->row != NULL ? offer->row->shown.name : offer->shown->name;
    out->effects = offer->shown->effects;
    out->has_command = offer->row != NULL && (out->effects & TOOL_EXECUTES) != 0;
    return offer->row != NULL ? take_arguments(offer, arguments, out, error) : OK;
}
