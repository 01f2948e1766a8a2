/* A patch from foreign bytes and a file it is applied to: up to a line "=====" the patch, behind it
 * the file. What does not fit is told in words; what fits neither loses context nor makes up text. */
#include "tools/tool_patch.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Bytes of the lines of an update that are new, with a line end each, which may be CR LF. */
static size_t new_bytes(const struct patch *patch, const struct patch_file *file) {
    size_t bytes = 0;
    for (size_t i = 0; i < file->count; i++) {
        const struct patch_hunk *hunk = &patch->hunks[file->first + i];
        for (size_t j = 0; j < hunk->count; j++) {
            struct view line = patch->lines[hunk->first + j];
            bytes += line.length > 0 && line.data[0] == '+' ? line.length + 3 : 0;
        }
    }
    return bytes;
}

static void apply(const struct patch *patch, const struct patch_file *file, struct view content) {
    CLEANUP(buffer_deinit) struct buffer out = {NULL, 0, 0, 0};
    CLEANUP(buffer_deinit) struct buffer why = {NULL, 0, 0, 0};
    buffer_init(&out, BUFFER_CEILING_DEFAULT);
    buffer_init(&why, BUFFER_CEILING_DEFAULT);
    struct error error;
    ASSERT(is_ok(patch_apply(patch, file, content, &out, &why, &error)));
    if (why.length == 0 && file->kind == PATCH_UPDATE) {
        ASSERT(out.length <= content.length + new_bytes(patch, file));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct view input = view_of(data, size);
    struct view separator = view_of_text("=====\n");
    size_t end = view_find(input, separator, 0);
    struct view content = {NULL, 0};
    if (end != SIZE_MAX) {
        content = view_slice(input, end + separator.length, SIZE_MAX);
        input = view_slice(input, 0, end);
    }
    CLEANUP(patch_deinit) struct patch patch = {0};
    CLEANUP(buffer_deinit) struct buffer why = {NULL, 0, 0, 0};
    buffer_init(&why, BUFFER_CEILING_DEFAULT);
    struct error error;
    ASSERT(is_ok(patch_parse(input, &patch, &why, &error)));
    if (why.length > 0) {
        return 0;
    }
    ASSERT(patch.file_count > 0);
    for (size_t i = 0; i < patch.file_count; i++) {
        ASSERT(patch.files[i].path.length > 0);
        if (patch.files[i].kind != PATCH_DELETE) {
            apply(&patch, &patch.files[i], content);
        }
    }
    return 0;
}
