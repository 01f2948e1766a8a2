#include "tls_hello.h"

#define RECORD_HANDSHAKE     22
#define RECORD_HEADER_BYTES  5
#define RECORD_BYTES_MAX     ((size_t)16384)
#define MESSAGE_CLIENT_HELLO 1
#define EXTENSION_NAME       0
#define NAME_TYPE_HOST       0

/* Takes `count` bytes off the front. */
static bool take(struct view *rest, size_t count, struct view *out) {
    if (rest->length < count) {
        return false;
    }
    *out = view_slice(*rest, 0, count);
    *rest = view_slice(*rest, count, SIZE_MAX);
    return true;
}

static bool take_number(struct view *rest, size_t bytes, size_t *out) {
    struct view digits;
    if (!take(rest, bytes, &digits)) {
        return false;
    }
    *out = 0;
    for (size_t i = 0; i < bytes; i++) {
        *out = *out << 8 | digits.data[i];
    }
    return true;
}

/* A vector whose length is a number of `bytes` bytes in front of it. */
static bool take_vector(struct view *rest, size_t bytes, struct view *out) {
    size_t length = 0;
    return take_number(rest, bytes, &length) && take(rest, length, out);
}

static bool read_name_list(struct view extension, char name[TLS_NAME_BYTES]) {
    struct view list;
    if (!take_vector(&extension, 2, &list) || extension.length > 0) {
        return false;
    }
    while (list.length > 0) {
        size_t type = 0;
        struct view host;
        if (!take_number(&list, 1, &type) || !take_vector(&list, 2, &host)) {
            return false;
        }
        if (type != NAME_TYPE_HOST) {
            continue;
        }
        bool is_second = name[0] != '\0'; // which of them would count is the server's secret
        if (is_second || host.length == 0 || host.length >= TLS_NAME_BYTES ||
            memchr(host.data, '\0', host.length) != NULL) {
            return false;
        }
        memcpy(name, host.data, host.length);
        name[host.length] = '\0';
    }
    return true;
}

static bool read_hello(struct view hello, char name[TLS_NAME_BYTES]) {
    struct view skipped;
    struct view extensions;
    if (!take(&hello, 2 + 32, &skipped) || !take_vector(&hello, 1, &skipped) ||   // session
        !take_vector(&hello, 2, &skipped) || !take_vector(&hello, 1, &skipped)) { // ciphers
        return false;
    }
    if (hello.length == 0) {
        return true; // none, as of old
    }
    if (!take_vector(&hello, 2, &extensions) || hello.length > 0) {
        return false;
    }
    bool has_name = false;
    while (extensions.length > 0) {
        size_t type = 0;
        struct view extension;
        if (!take_number(&extensions, 2, &type) || !take_vector(&extensions, 2, &extension)) {
            return false;
        }
        if (type == EXTENSION_NAME && (has_name || !read_name_list(extension, name))) {
            return false;
        }
        has_name = has_name || type == EXTENSION_NAME;
    }
    return true;
}

/* Joins the records' fragments into `message`; false when one is malformed. */
static bool join_records(struct view bytes, unsigned char *message, size_t *length) {
    *length = 0;
    while (bytes.length >= RECORD_HEADER_BYTES) {
        size_t fragment_bytes = (size_t)bytes.data[3] << 8 | bytes.data[4];
        if (bytes.data[0] != RECORD_HANDSHAKE || bytes.data[1] != 3 || fragment_bytes == 0 ||
            fragment_bytes > RECORD_BYTES_MAX) {
            return false;
        }
        struct view fragment = view_slice(bytes, RECORD_HEADER_BYTES, fragment_bytes);
        memcpy(message + *length, fragment.data, fragment.length); // no more than came in
        *length += fragment.length;
        bytes = view_slice(bytes, RECORD_HEADER_BYTES + fragment_bytes, SIZE_MAX);
        if (*length >= 4) { // what follows the first message may be of another type
            size_t wanted = 4 + ((size_t)message[1] << 16 | (size_t)message[2] << 8 | message[3]);
            if (*length >= wanted) {
                return true;
            }
        }
    }
    return true;
}

enum tls_hello tls_hello_read(struct view bytes, char name[TLS_NAME_BYTES]) {
    name[0] = '\0';
    if (bytes.length == 0) {
        return TLS_HELLO_MORE;
    }
    if (bytes.data[0] != RECORD_HANDSHAKE || (bytes.length > 1 && bytes.data[1] != 3)) {
        return TLS_HELLO_OTHER;
    }
    bool is_cut = bytes.length > TLS_HELLO_BYTES_MAX;
    bytes = view_slice(bytes, 0, TLS_HELLO_BYTES_MAX);
    unsigned char message[TLS_HELLO_BYTES_MAX];
    size_t length = 0;
    if (!join_records(bytes, message, &length)) {
        return TLS_HELLO_BROKEN;
    }
    enum tls_hello unfinished = is_cut ? TLS_HELLO_BROKEN : TLS_HELLO_MORE;
    if (length > 0 && message[0] != MESSAGE_CLIENT_HELLO) {
        return TLS_HELLO_BROKEN;
    }
    struct view rest = view_of(message, length);
    struct view header;
    struct view hello;
    if (!take(&rest, 1, &header) || !take_vector(&rest, 3, &hello)) {
        bool is_too_long =
            length >= 4 && 4 + ((size_t)message[1] << 16 | (size_t)message[2] << 8 | message[3]) >
                               TLS_HELLO_BYTES_MAX - RECORD_HEADER_BYTES;
        return is_too_long ? TLS_HELLO_BROKEN : unfinished;
    }
    if (!read_hello(hello, name)) {
        name[0] = '\0';
        return TLS_HELLO_BROKEN;
    }
    return TLS_HELLO_DONE;
}
