/* image: kind, width and height of a picture, for a model that cannot look at it.
 *
 * Layouts: PNG (RFC 2083, 11.2.2), GIF89a (18), JPEG (ITU T.81, B.1 and B.2.2), WebP (RFC 9649), BMP
 * (BITMAPCOREHEADER, BITMAPINFOHEADER). A JPEG's size comes behind segments of any length, which
 * are stepped over without being read.
 */
#include "tool_image.h"
#include "tool_internal.h"

#define HEAD_BYTES        ((size_t)64)
#define JPEG_SEGMENTS_MAX 1000 /* each up to 64 KiB: profiles and thumbnails come in such pieces */

static tool_run run_image;

const struct tool_row tool_row_image = {
    .shown =
        {"image",
         "Facts of an image file: kind, width, height and size.",
         OBJECT_SCHEMA(STRING_PROPERTY("path", "file path"), "\"path\""),
         TOOL_READS,
         false},
    .run = run_image,
};

static uint32_t big_endian(struct view bytes, size_t at, size_t count) {
    ASSERT(at + count <= bytes.length && count <= 4);
    uint32_t value = 0;
    for (size_t i = 0; i < count; i++) {
        value = value << 8U | bytes.data[at + i];
    }
    return value;
}

static uint32_t little_endian(struct view bytes, size_t at, size_t count) {
    ASSERT(at + count <= bytes.length && count <= 4);
    uint32_t value = 0;
    for (size_t i = count; i > 0; i--) {
        value = value << 8U | bytes.data[at + i - 1];
    }
    return value;
}

static bool has_text(struct view bytes, size_t at, const char *text) {
    return view_equals_text(view_slice(bytes, at, strlen(text)), text);
}

/* ------------------------------------------------------------------- headers ---- */

static bool parse_png(struct view head, struct image_facts *out) {
    if (head.length < 24 || !has_text(head, 0, "\x89PNG\r\n\x1a\n") ||
        !has_text(head, 12, "IHDR")) {
        return false;
    }
    *out = (struct image_facts){"PNG", big_endian(head, 16, 4), big_endian(head, 20, 4), 0};
    return true;
}

static bool parse_gif(struct view head, struct image_facts *out) {
    if (head.length < 10 || (!has_text(head, 0, "GIF87a") && !has_text(head, 0, "GIF89a"))) {
        return false;
    }
    *out = (struct image_facts){"GIF", little_endian(head, 6, 2), little_endian(head, 8, 2), 0};
    return true;
}

static bool parse_bmp(struct view head, struct image_facts *out) {
    if (head.length < 26 || !has_text(head, 0, "BM")) {
        return false;
    }
    uint32_t header = little_endian(head, 14, 4);
    if (header == 12) {
        *out =
            (struct image_facts){"BMP", little_endian(head, 18, 2), little_endian(head, 20, 2), 0};
        return true;
    }
    // A negative height says that the first row is the top one.
    uint32_t height = little_endian(head, 22, 4);
    height = height > INT32_MAX ? UINT32_MAX - height + 1 : height;
    *out = (struct image_facts){"BMP", little_endian(head, 18, 4), height, 0};
    return header >= 40 && header <= 124 && out->width <= INT32_MAX;
}

static bool parse_webp(struct view head, struct image_facts *out) {
    if (head.length < 30 || !has_text(head, 0, "RIFF") || !has_text(head, 8, "WEBP")) {
        return false;
    }
    *out = (struct image_facts){"WebP", 0, 0, 0};
    if (has_text(head, 12, "VP8X")) {
        out->width = little_endian(head, 24, 3) + 1;
        out->height = little_endian(head, 27, 3) + 1;
    } else if (has_text(head, 12, "VP8L") && head.data[20] == 0x2F) {
        uint32_t sizes = little_endian(head, 21, 4);
        out->width = (sizes & 0x3FFFU) + 1;
        out->height = (sizes >> 14U & 0x3FFFU) + 1;
    } else if (has_text(head, 12, "VP8 ") && has_text(head, 23, "\x9d\x01\x2a")) {
        out->width = little_endian(head, 26, 2) & 0x3FFFU;
        out->height = little_endian(head, 28, 2) & 0x3FFFU;
    }
    return true;
}

static bool
read_head(const struct beneath *root, const char *path, uint64_t at, struct buffer *out) {
    struct error why;
    buffer_clear(out);
    return is_ok(beneath_read(root, path, at, HEAD_BYTES, out, NULL, &why));
}

/* Start of frame: C0 to CF, but for the tables that share these numbers. */
static bool begins_frame(unsigned marker) {
    return marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC;
}

static bool find_jpeg_frame(
    const struct beneath *root, const char *path, struct buffer *bytes, struct image_facts *out
) {
    uint64_t at = 2; // behind "start of image"
    for (unsigned i = 0; i < JPEG_SEGMENTS_MAX && read_head(root, path, at, bytes); i++) {
        struct view head = buffer_view(bytes);
        if (head.length < 9 || head.data[0] != 0xFF) {
            return false;
        }
        unsigned marker = head.data[1];
        if (begins_frame(marker)) {
            *out = (struct image_facts){"JPEG", big_endian(head, 7, 2), big_endian(head, 5, 2), 0};
            return true;
        }
        bool is_fill = marker == 0xFF; // any number of them may stand before a marker
        bool is_alone = marker == 0x01 || (marker >= 0xD0 && marker <= 0xD7);
        uint32_t length = big_endian(head, 2, 2);
        if (!is_fill && !is_alone && length < 2) {
            return false;
        }
        at += is_fill ? 1 : 2 + (is_alone ? 0 : length);
    }
    return false;
}

bool image_facts_read(const struct beneath *root, const char *path, struct image_facts *out) {
    CLEANUP(buffer_deinit) struct buffer bytes = {NULL, 0, 0, 0};
    buffer_init(&bytes, HEAD_BYTES);
    struct beneath_info info = {0};
    struct error why;
    struct image_facts facts = {0};
    if (is_failed(beneath_stat(root, path, &info, &why)) || info.kind != BENEATH_FILE ||
        !read_head(root, path, 0, &bytes)) {
        return false;
    }
    struct view head = buffer_view(&bytes);
    bool is_image =
        parse_png(head, &facts) || parse_gif(head, &facts) || parse_bmp(head, &facts) ||
        parse_webp(head, &facts) ||
        (has_text(head, 0, "\xff\xd8\xff") && find_jpeg_frame(root, path, &bytes, &facts));
    facts.bytes = info.bytes;
    if (!is_image || facts.width == 0 || facts.height == 0) {
        return false;
    }
    *out = facts;
    return true;
}

result image_facts_answer(
    struct tool_result *out, struct view given, const struct image_facts *facts, struct error *error
) {
    return tool_answer(
        out,
        TOOL_OK,
        error,
        "%.*s: %s image, %u x %u pixels, %llu bytes",
        VIEW_ARGUMENTS(given),
        facts->kind,
        facts->width,
        facts->height,
        (unsigned long long)facts->bytes
    );
}

const char *file_kind(struct view head) {
    static const struct {
        const char *magic;
        size_t bytes;
        const char *kind;
    } kinds[] = {
        {"\x7f"
         "ELF",
         4,
         "ELF program"},
        {"\x1f\x8b", 2, "gzip archive"},
        {"PK\x03\x04", 4, "zip archive"},
        {"BZh", 3, "bzip2 archive"},
        {"\xfd"
         "7zXZ",
         5,
         "xz archive"},
        {"\x28\xb5\x2f\xfd", 4, "zstd archive"},
        {"%PDF-", 5, "PDF document"},
        {"SQLite format 3", 15, "SQLite database"},
        {"\x89PNG", 4, "damaged PNG image"},
        {"\xff\xfe", 2, "UTF-16 text"},
        {"\xfe\xff", 2, "UTF-16 text"},
        {"\0asm", 4, "WebAssembly module"},
        {"MZ", 2, "Windows program"},
    };
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        if (view_starts_with(head, view_of(kinds[i].magic, kinds[i].bytes))) {
            return kinds[i].kind;
        }
    }
    return "";
}

static result run_image(
    struct tool_context *context,
    struct json_value arguments,
    struct tool_result *out,
    struct error *error
) {
    struct view given = tool_argument(arguments, "path");
    char path[TOOL_PATH_BYTES];
    bool usable = false;
    TRY(tool_path(given, path, &usable, out, error));
    if (!usable) {
        return OK;
    }
    struct beneath_info info = {0};
    struct error why = {0};
    result status = beneath_stat(context->root, path, &info, &why);
    if (is_failed(status)) {
        return tool_file_failure(out, given, status, &why, error);
    }
    struct image_facts facts;
    if (!image_facts_read(context->root, path, &facts)) {
        return tool_answer(
            out,
            TOOL_ERROR,
            error,
            "error: %.*s is no PNG, JPEG, GIF, WebP or BMP image",
            VIEW_ARGUMENTS(given)
        );
    }
    return image_facts_answer(out, given, &facts, error);
}
