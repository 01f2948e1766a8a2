/* Address ranges follow IANA's special-purpose registries (RFC 6890 and its updates), plus the
 * metadata services that sit on public addresses. */
#include "network_rules.h"

#include <arpa/inet.h>
#include <netinet/in.h>

struct rule {
    char suffix[NETWORK_HOST_BYTES]; /* "name", or ".name" for all below it */
    bool is_address;
    struct sockaddr_storage address;
    uint16_t port; /* 0: 80 and 443 */
};

struct network_rules {
    size_t count;
    struct rule rules[];
};

/* ---- hosts ---------------------------------------------------------------------------------- */

static bool is_alphanumeric(unsigned char byte) {
    return (byte >= 'a' && byte <= 'z') || (byte >= '0' && byte <= '9');
}

/* Whether resolvers may read the lower-case name as an address in a form of their own ("127.1",
 * "0x7f.1", "1.2.3.4" that had a last dot): its last label is a decimal or hexadecimal number. The
 * same question as the URL standard's "ends in a number". */
static bool ends_in_number(const char *name) {
    const char *dot = strrchr(name, '.');
    const char *label = dot != NULL ? dot + 1 : name;
    const char *digits = "0123456789";
    if (strncmp(label, "0x", 2) == 0) {
        label += 2;
        digits = "0123456789abcdef";
    }
    return label[strspn(label, digits)] == '\0';
}

/* Lower-case name into out[NETWORK_HOST_BYTES]; a last dot is taken off. */
static bool parse_name(struct view text, char *out) {
    if (text.length > 1 && text.data[text.length - 1] == '.') {
        text.length -= 1;
    }
    if (text.length == 0 || text.length >= NETWORK_HOST_BYTES - 2) {
        return false;
    }
    size_t label = 0;
    for (size_t i = 0; i < text.length; i++) {
        unsigned char byte = text.data[i];
        byte = byte >= 'A' && byte <= 'Z' ? (unsigned char)(byte - 'A' + 'a') : byte;
        bool ends = byte == '.';
        bool fits = is_alphanumeric(byte) || byte == '_' || (byte == '-' && label > 0);
        if (ends ? label == 0 || text.data[i - 1] == '-' : !fits || label >= 63) {
            return false;
        }
        label = ends ? 0 : label + 1;
        out[i] = (char)byte;
    }
    out[text.length] = '\0';
    return label > 0 && out[text.length - 1] != '-' && !ends_in_number(out);
}

/* The four-part decimal form alone; inet_pton takes no other. */
static bool parse_v4(struct view text, struct network_host *out) {
    char copy[INET_ADDRSTRLEN];
    struct sockaddr_in address = {.sin_family = AF_INET};
    if (text.length == 0 || text.length >= sizeof copy) {
        return false;
    }
    memcpy(copy, text.data, text.length);
    copy[text.length] = '\0';
    if (strlen(copy) != text.length || inet_pton(AF_INET, copy, &address.sin_addr) != 1) {
        return false;
    }
    memcpy(&out->address, &address, sizeof address);
    memcpy(out->text, copy, text.length + 1);
    out->is_address = true;
    return true;
}

static bool parse_v6(struct view text, struct network_host *out) {
    char copy[INET6_ADDRSTRLEN];
    struct sockaddr_in6 address = {.sin6_family = AF_INET6};
    if (text.length == 0 || text.length >= sizeof copy) {
        return false;
    }
    memcpy(copy, text.data, text.length);
    copy[text.length] = '\0';
    if (strlen(copy) != text.length || inet_pton(AF_INET6, copy, &address.sin6_addr) != 1 ||
        inet_ntop(AF_INET6, &address.sin6_addr, out->text, sizeof out->text) == NULL) {
        return false;
    }
    memcpy(&out->address, &address, sizeof address);
    out->is_address = true;
    return true;
}

/* `text` without a port; v6 addresses in brackets. */
static bool parse_host(struct view text, struct network_host *out) {
    memset(out, 0, sizeof *out);
    if (text.length >= 2 && text.data[0] == '[' && text.data[text.length - 1] == ']') {
        return parse_v6(view_slice(text, 1, text.length - 2), out);
    }
    return parse_v4(text, out) || parse_name(text, out->text);
}

/* Parts text at the port's colon; *port stays 0 when there is none. */
static bool split_port(struct view *text, uint16_t *port) {
    size_t from = 0;
    if (text->length > 0 && text->data[0] == '[') {
        from = view_find(*text, view_of_text("]"), 0);
        if (from == SIZE_MAX) {
            return false;
        }
    }
    size_t colon = view_find(*text, view_of_text(":"), from);
    if (colon == SIZE_MAX) {
        return true;
    }
    uint64_t number = 0;
    struct view digits = view_slice(*text, colon + 1, SIZE_MAX);
    if (digits.length > 5 || !parse_u64(digits, &number) || number == 0 || number > UINT16_MAX) {
        return false;
    }
    *text = view_slice(*text, 0, colon);
    *port = (uint16_t)number;
    return true;
}

result network_host_parse(
    struct view text, uint16_t default_port, struct network_host *out, struct error *error
) {
    struct network_host host;
    struct view rest = text;
    uint16_t port = default_port;
    if (!split_port(&rest, &port) || !parse_host(rest, &host) || port == 0) {
        CLEANUP(buffer_deinit) struct buffer shown = {.ceiling = 1024};
        result_ignore(utf8_append_lossy(&shown, view_slice(text, 0, 100), NULL)); // for the message
        FAIL(error, INVALID_INPUT, "'%s' is not a host with a port", buffer_text(&shown));
    }
    host.port = port;
    *out = host;
    return OK;
}

/* ---- list ----------------------------------------------------------------------------------- */

static bool parse_rule(struct view text, struct rule *out) {
    struct network_host host;
    memset(out, 0, sizeof *out);
    if (!split_port(&text, &out->port)) {
        return false;
    }
    if (view_starts_with(text, view_of_text("*."))) {
        if (!parse_host(view_slice(text, 2, SIZE_MAX), &host) || host.is_address ||
            strchr(host.text, '.') == NULL) {
            return false; // "*.com" is no list
        }
        (void)snprintf(out->suffix, sizeof out->suffix, ".%.253s", host.text);
        return true;
    }
    if (!parse_host(text, &host)) {
        return false;
    }
    memcpy(out->suffix, host.text, sizeof out->suffix);
    out->is_address = host.is_address;
    out->address = host.address;
    return true;
}

static result add_rule(struct network_rules *rules, struct view text, struct error *error) {
    while (text.length > 0 && text.data[0] == ' ') {
        text = view_slice(text, 1, SIZE_MAX);
    }
    while (text.length > 0 && text.data[text.length - 1] == ' ') {
        text.length -= 1;
    }
    if (!parse_rule(text, &rules->rules[rules->count])) {
        CLEANUP(buffer_deinit) struct buffer shown = {.ceiling = 1024};
        result_ignore(utf8_append_lossy(&shown, view_slice(text, 0, 100), NULL)); // for the message
        FAIL(
            error,
            INVALID_INPUT,
            "network entry '%s' is not HOST[:PORT] (a name, *.name.tld, or an address)",
            buffer_text(&shown)
        );
    }
    rules->count += 1;
    return OK;
}

static struct network_rules *allocate(size_t count) {
    struct network_rules *rules = NULL;
    return calloc(1, sizeof *rules + count * sizeof rules->rules[0]);
}

static result check_count(size_t count, struct error *error) {
    if (count > NETWORK_RULES_MAX) {
        FAIL(error, LIMIT, "%zu network entries, at most %d", count, NETWORK_RULES_MAX);
    }
    return OK;
}

result network_rules_create(
    struct network_rules **out, const char *const *entries, size_t count, struct error *error
) {
    TRY(check_count(count, error));
    CLEANUP(network_rules_cleanup) struct network_rules *rules = allocate(count);
    if (rules == NULL) {
        FAIL(error, MEMORY, "no memory for %zu network entries", count);
    }
    for (size_t i = 0; i < count; i++) {
        TRY(add_rule(rules, view_of_text(entries[i]), error));
    }
    *out = TAKE(rules);
    return OK;
}

result network_rules_parse(struct network_rules **out, struct view text, struct error *error) {
    size_t count = text.length > 0 ? 1 : 0;
    for (size_t i = 0; i < text.length; i++) {
        count += text.data[i] == ',' ? 1 : 0;
    }
    TRY(check_count(count, error));
    CLEANUP(network_rules_cleanup) struct network_rules *rules = allocate(count);
    if (rules == NULL) {
        FAIL(error, MEMORY, "no memory for %zu network entries", count);
    }
    size_t from = 0;
    for (size_t i = 0; i < count; i++) {
        size_t end = view_find(text, view_of_text(","), from);
        end = end == SIZE_MAX ? text.length : end;
        TRY(add_rule(rules, view_slice(text, from, end - from), error));
        from = end + 1;
    }
    *out = TAKE(rules);
    return OK;
}

void network_rules_destroy(struct network_rules *rules) {
    free(rules);
}

void network_rules_cleanup(struct network_rules **rules) {
    network_rules_destroy(*rules);
    *rules = NULL;
}

static bool port_matches(const struct rule *rule, uint16_t port) {
    return rule->port != 0 ? rule->port == port : port == 80 || port == 443;
}

static bool same_address(const struct sockaddr *a, const struct sockaddr *b) {
    if (a->sa_family != b->sa_family) {
        return false;
    }
    if (a->sa_family == AF_INET) {
        struct sockaddr_in x;
        struct sockaddr_in y;
        memcpy(&x, a, sizeof x);
        memcpy(&y, b, sizeof y);
        return x.sin_addr.s_addr == y.sin_addr.s_addr;
    }
    struct sockaddr_in6 x;
    struct sockaddr_in6 y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return memcmp(&x.sin6_addr, &y.sin6_addr, sizeof x.sin6_addr) == 0;
}

bool network_rules_allow(const struct network_rules *rules, const struct network_host *host) {
    size_t length = strlen(host->text);
    for (size_t i = 0; i < rules->count; i++) {
        const struct rule *rule = &rules->rules[i];
        if (!port_matches(rule, host->port) || rule->is_address != host->is_address) {
            continue;
        }
        size_t bytes = strlen(rule->suffix);
        bool is_below = rule->suffix[0] == '.' && length > bytes &&
                        memcmp(host->text + length - bytes, rule->suffix, bytes) == 0;
        if (is_below || strcmp(host->text, rule->suffix) == 0) {
            return true;
        }
    }
    return false;
}

/* ---- addresses ------------------------------------------------------------------------------ */

static bool v4_is_public(uint32_t address) {
    static const struct {
        uint32_t base;
        unsigned bits;
    } special[] = {
        {0x00000000, 8},  // this network
        {0x0a000000, 8},  // private
        {0x64400000, 10}, // shared by carriers; a cloud's metadata service
        {0x7f000000, 8},  // loopback
        {0xa9fe0000, 16}, // link-local; most clouds' metadata services
        {0xac100000, 12}, // private
        {0xc0000000, 24}, // protocol assignments
        {0xc0000200, 24}, // documentation
        {0xc0586300, 24}, // 6to4 relays
        {0xc0a80000, 16}, // private
        {0xc6120000, 15}, // benchmarks
        {0xc6336400, 24}, // documentation
        {0xcb007100, 24}, // documentation
        {0xe0000000, 4},  // multicast
        {0xf0000000, 4},  // reserved, broadcast
        {0xa83f8110, 32}, // 168.63.129.16: a cloud's metadata service
    };
    for (size_t i = 0; i < COUNT_OF(special); i++) {
        if ((address ^ special[i].base) >> (32 - special[i].bits) == 0) {
            return false;
        }
    }
    return true;
}

static uint32_t read_u32(const unsigned char *bytes) {
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

static bool v6_is_public(const unsigned char bytes[16]) {
    static const unsigned char mapped[12] = {[10] = 0xff, [11] = 0xff};
    static const unsigned char translated[12] = {0x00, 0x64, 0xff, 0x9b};
    if (memcmp(bytes, mapped, sizeof mapped) == 0 ||
        memcmp(bytes, translated, sizeof translated) == 0) {
        return v4_is_public(read_u32(bytes + 12)); // the address that is really reached
    }
    uint32_t high = read_u32(bytes);
    bool is_global = high >> 29 == 1;                   // 2000::/3
    bool is_assignment = high >> 9 == 0x20010000U >> 9; // 2001::/23: Teredo and others
    bool is_documentation = high == 0x20010db8U || high >> 12 == 0x3fff0000U >> 12;
    bool is_6to4 = high >> 16 == 0x2002U; // holds any v4 address
    return is_global && !is_assignment && !is_documentation && !is_6to4;
}

bool network_address_is_public(const struct sockaddr *address) {
    if (address->sa_family == AF_INET) {
        struct sockaddr_in v4;
        memcpy(&v4, address, sizeof v4);
        return v4_is_public(ntohl(v4.sin_addr.s_addr));
    }
    if (address->sa_family == AF_INET6) {
        struct sockaddr_in6 v6;
        memcpy(&v6, address, sizeof v6);
        return v6_is_public(v6.sin6_addr.s6_addr);
    }
    return false;
}

bool network_rules_allow_address(
    const struct network_rules *rules, const struct sockaddr *address, uint16_t port
) {
    if (network_address_is_public(address)) {
        return true;
    }
    for (size_t i = 0; i < rules->count; i++) {
        struct sockaddr_storage listed = rules->rules[i].address;
        if (rules->rules[i].is_address && port_matches(&rules->rules[i], port) &&
            same_address((const struct sockaddr *)&listed, address)) {
            return true;
        }
    }
    return false;
}
