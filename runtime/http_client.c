/* libcurl moves the bytes; redirections are followed here, so that each is decided. The URL is
 * parsed once, by libcurl, and the parsed form is both what is decided and what is fetched. */
#include "http_client.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdarg.h>
#include <strings.h>

#include "base/clock.h"

#define STEP_MS 1000 /* libcurl's timers are looked at so often at least */

struct http_client {
    struct http_client_options options;
    struct name_resolver *resolver;
    pthread_mutex_t decided_lock; /* one callback at a time */
};

/* One request of a fetch. */
struct exchange {
    struct http_client *client;
    const struct tool_fetch_request *request;
    struct tool_fetch_answer *answer;
    struct network_host host;
    int64_t until_ms;
    size_t header_bytes;
    CURL *easy;
    bool is_full;
    bool was_refused; /* an address, when it came to connecting */
    char trouble[CURL_ERROR_SIZE];
};

static int64_t now_ms(void) {
    struct clock clock = clock_real();
    return clock_monotonic_ms(&clock);
}

static void url_cleanup(CURLU **url) {
    curl_url_cleanup(*url);
}

static void text_cleanup(char **text) {
    curl_free(*text);
}

static void easy_cleanup(CURL **easy) {
    curl_easy_cleanup(*easy);
}

static void multi_cleanup(CURLM **multi) {
    if (*multi != NULL) {
        (void)curl_multi_cleanup(*multi);
    }
}

static void list_cleanup(struct curl_slist **list) {
    curl_slist_free_all(*list);
}

/* ---- open and close ------------------------------------------------------------------------- */

result http_client_open(
    struct http_client **out, const struct http_client_options *options, struct error *error
) {
    ASSERT(options->rules != NULL);
    CURLcode status = curl_global_init(CURL_GLOBAL_DEFAULT); // counts its callers
    if (status != CURLE_OK) {
        FAIL_FOREIGN(error, IO, (int)status, "libcurl: %s", curl_easy_strerror(status));
    }
    struct http_client *client = calloc(1, sizeof *client);
    if (client == NULL) {
        curl_global_cleanup();
        FAIL(error, MEMORY, "no memory for an HTTP client");
    }
    client->options = *options;
    int locked = pthread_mutex_init(&client->decided_lock, NULL);
    ASSERT(locked == 0);
    result opened =
        name_resolver_open(&client->resolver, options->resolve, options->resolve_context, error);
    if (is_failed(opened)) {
        http_client_close(client);
        return opened;
    }
    *out = client;
    return OK;
}

void http_client_close(struct http_client *client) {
    if (client == NULL) {
        return;
    }
    name_resolver_close(client->resolver);
    (void)pthread_mutex_destroy(&client->decided_lock);
    free(client);
    curl_global_cleanup();
}

void http_client_cleanup(struct http_client **client) {
    http_client_close(*client);
    *client = NULL;
}

/* ---- decisions ------------------------------------------------------------------------------ */

static void tell(const struct exchange *exchange, bool is_allowed, const char *reason) {
    struct http_client *client = exchange->client;
    if (client->options.decided == NULL) {
        return;
    }
    const struct network_decision decision = {
        .method = "GET",
        .host = exchange->host.text,
        .port = exchange->host.port,
        .is_allowed = is_allowed,
        .reason = reason,
    };
    int status = pthread_mutex_lock(&client->decided_lock);
    ASSERT(status == 0);
    client->options.decided(client->options.decided_context, &decision);
    status = pthread_mutex_unlock(&client->decided_lock);
    ASSERT(status == 0);
}

/* Words of a server reach a person and a model. */
static void make_printable(char *text) {
    for (; *text != '\0'; text++) {
        if (*text < 0x20 || *text > 0x7e) {
            *text = '?';
        }
    }
}

static void end(struct exchange *exchange, enum tool_fetch_end end, const char *format, ...)
    PRINTF_LIKE(3, 4);

static void end(struct exchange *exchange, enum tool_fetch_end end, const char *format, ...) {
    struct tool_fetch_answer *answer = exchange->answer;
    answer->end = end;
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(answer->reason, sizeof answer->reason, format, arguments);
    va_end(arguments);
    ASSERT(length >= 0);
    make_printable(answer->reason);
    if (end == TOOL_FETCH_REFUSED) {
        tell(exchange, false, answer->reason);
    }
}

/* The host of the URL, as it is decided, and put back in the form that was. False: ended. */
static bool decide_name(struct exchange *exchange, CURLU *url) {
    CLEANUP(text_cleanup) char *scheme = NULL;
    CLEANUP(text_cleanup) char *host = NULL;
    CLEANUP(text_cleanup) char *port = NULL;
    CLEANUP(text_cleanup) char *user = NULL;
    CLEANUP(text_cleanup) char *password = NULL;
    (void)curl_url_get(url, CURLUPART_SCHEME, &scheme, 0);
    (void)curl_url_get(url, CURLUPART_HOST, &host, 0);
    (void)curl_url_get(url, CURLUPART_PORT, &port, CURLU_DEFAULT_PORT);
    (void)curl_url_get(url, CURLUPART_USER, &user, 0);
    (void)curl_url_get(url, CURLUPART_PASSWORD, &password, 0);
    char text[NETWORK_HOST_BYTES + 16];
    int length =
        host != NULL && port != NULL ? snprintf(text, sizeof text, "%s:%s", host, port) : 0;
    struct network_host parsed;
    if (scheme == NULL || length <= 0 || (size_t)length >= sizeof text || user != NULL ||
        password != NULL || is_failed(network_host_parse(view_of_text(text), 0, &parsed, NULL))) {
        end(exchange, TOOL_FETCH_FAILED, "the URL's host is malformed, or it names a user");
        return false;
    }
    exchange->host = parsed;
    unsigned number = parsed.port;
    bool is_plain = strcasecmp(scheme, "http") == 0;
    if (!is_plain && strcasecmp(scheme, "https") != 0) {
        end(exchange, TOOL_FETCH_REFUSED, "%s:// is not fetched, only https://", scheme);
        return false;
    }
    if (!network_rules_allow(exchange->client->options.rules, &parsed)) {
        end(exchange, TOOL_FETCH_REFUSED, "%s:%u is not on the allow-list", parsed.text, number);
        return false;
    }
    if (is_plain && !parsed.is_address) {
        end(exchange, TOOL_FETCH_REFUSED, "http:// is not fetched from a name, only https://");
        return false;
    }
    if (!parsed.is_address && curl_url_set(url, CURLUPART_HOST, parsed.text, 0) != CURLUE_OK) {
        end(exchange, TOOL_FETCH_FAILED, "the URL's host is malformed");
        return false;
    }
    return true;
}

/* Appends "," and the address, v6 in brackets. */
static result
append_address(struct buffer *pin, const struct sockaddr_storage *address, struct error *error) {
    char text[INET6_ADDRSTRLEN];
    bool is_v6 = address->ss_family == AF_INET6;
    if (is_v6) {
        struct sockaddr_in6 v6;
        memcpy(&v6, address, sizeof v6);
        (void)inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof text);
    } else {
        struct sockaddr_in v4;
        memcpy(&v4, address, sizeof v4);
        (void)inet_ntop(AF_INET, &v4.sin_addr, text, sizeof text);
    }
    const char *comma = pin->data[pin->length - 1] == ':' ? "" : ",";
    return buffer_append_format(
        pin, error, "%s%s%s%s", comma, is_v6 ? "[" : "", text, is_v6 ? "]" : ""
    );
}

/* Resolves the name and leaves libcurl no others than the allowed addresses. `*pin` stays empty for
 * an address. *goes_on false: ended. */
static result decide_addresses(
    struct exchange *exchange, struct buffer *pin, bool *goes_on, struct error *error
) {
    const struct network_host *host = &exchange->host;
    struct name_addresses found = {.count = 0};
    *goes_on = true;
    if (host->is_address) {
        return OK; // listed literally
    }
    struct error failure = {0};
    result looked = name_lookup(
        exchange->client->resolver,
        host->text,
        host->port,
        exchange->request->cancel_fd,
        exchange->until_ms,
        &found,
        &failure
    );
    if (is_failed(looked)) {
        *goes_on = false;
        enum tool_fetch_end how = looked.code == RESULT_TIMEOUT     ? TOOL_FETCH_TIMEOUT
                                  : looked.code == RESULT_CANCELLED ? TOOL_FETCH_CANCELLED
                                                                    : TOOL_FETCH_FAILED;
        end(exchange, how, "%s", failure.message);
        return OK;
    }
    TRY(buffer_append_format(pin, error, "%s:%u:", host->text, (unsigned)host->port));
    size_t head = pin->length;
    for (size_t i = 0; i < found.count; i++) {
        const struct sockaddr *generic = (const struct sockaddr *)&found.items[i];
        if (network_rules_allow_address(exchange->client->options.rules, generic, host->port)) {
            TRY(append_address(pin, &found.items[i], error));
        }
    }
    if (pin->length == head) {
        *goes_on = false;
        end(exchange,
            TOOL_FETCH_REFUSED,
            "%s has no address in the public internet, and none listed literally",
            host->text);
    }
    return OK;
}

/* ---- libcurl's callbacks -------------------------------------------------------------------- */

/* The last word on an address, whatever led libcurl to it. */
static curl_socket_t
open_socket(void *context, curlsocktype purpose, struct curl_sockaddr *address) {
    struct exchange *exchange = context;
    const struct network_rules *rules = exchange->client->options.rules;
    if (purpose != CURLSOCKTYPE_IPCXN ||
        !network_rules_allow_address(rules, &address->addr, exchange->host.port)) {
        exchange->was_refused = true;
        return CURL_SOCKET_BAD;
    }
    return socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
}

static size_t take_body(char *bytes, size_t size, size_t count, void *context) {
    struct exchange *exchange = context;
    struct tool_fetch_answer *answer = exchange->answer;
    size_t length = size * count;
    long code = 0;
    (void)curl_easy_getinfo(exchange->easy, CURLINFO_RESPONSE_CODE, &code);
    if (code >= 300 && code < 400) {
        return length; // of a redirection: nobody reads it; bounded by the time
    }
    size_t room = exchange->request->bytes_max - answer->body.length;
    size_t kept = length < room ? length : room;
    if (is_failed(buffer_append(&answer->body, view_of(bytes, kept), NULL))) {
        exchange->is_full = answer->is_cut = true;
        return 0;
    }
    if (kept < length) {
        exchange->is_full = answer->is_cut = true;
        return 0; // libcurl ends the transfer
    }
    return length;
}

static size_t take_header(char *bytes, size_t size, size_t count, void *context) {
    struct exchange *exchange = context;
    size_t length = size * count;
    (void)bytes;
    exchange->header_bytes += length;
    return exchange->header_bytes > HTTP_HEADERS_BYTES ? 0 : length;
}

/* ---- one request ---------------------------------------------------------------------------- */

#define SET(option, value) failed |= curl_easy_setopt(easy, option, value) != CURLE_OK

static result configure(
    CURL *easy,
    struct exchange *exchange,
    CURLU *url,
    const struct curl_slist *pins,
    struct error *error
) {
    bool failed = false;
    int64_t left = exchange->until_ms - now_ms();
    SET(CURLOPT_CURLU, url);
    SET(CURLOPT_PROTOCOLS_STR, "http,https");
    SET(CURLOPT_RESOLVE, pins);
    SET(CURLOPT_PROXY, ""); // not that of the environment
    SET(CURLOPT_FOLLOWLOCATION, 0L);
    SET(CURLOPT_NOSIGNAL, 1L);
    SET(CURLOPT_TIMEOUT_MS, (long)(left > 1 ? left : 1) + 1); // libcurl may end one early
    SET(CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
    SET(CURLOPT_SSL_VERIFYPEER, 1L);
    SET(CURLOPT_SSL_VERIFYHOST, 2L);
    SET(CURLOPT_NETRC, (long)CURL_NETRC_IGNORED);
    SET(CURLOPT_USERAGENT, "hearth/" HEARTH_VERSION);
    SET(CURLOPT_ACCEPT_ENCODING, ""); // all that libcurl can undo
    SET(CURLOPT_OPENSOCKETFUNCTION, open_socket);
    SET(CURLOPT_OPENSOCKETDATA, exchange);
    SET(CURLOPT_WRITEFUNCTION, take_body);
    SET(CURLOPT_WRITEDATA, exchange);
    SET(CURLOPT_HEADERFUNCTION, take_header);
    SET(CURLOPT_HEADERDATA, exchange);
    SET(CURLOPT_ERRORBUFFER, exchange->trouble);
    if (exchange->client->options.authorities != NULL) {
        SET(CURLOPT_CAINFO, exchange->client->options.authorities);
    }
    if (failed) {
        FAIL(error, IO, "libcurl does not take an option");
    }
    return OK;
}

/* Runs the transfer; false when it was cancelled. */
static result transfer(
    CURLM *multi,
    const struct exchange *exchange,
    bool *cancelled,
    CURLcode *out,
    struct error *error
) {
    *cancelled = false;
    for (;;) {
        int running = 0;
        CURLMcode status = curl_multi_perform(multi, &running);
        int left = 0;
        for (CURLMsg *message = curl_multi_info_read(multi, &left); message != NULL;
             message = curl_multi_info_read(multi, &left)) {
            if (message->msg == CURLMSG_DONE) {
                *out = message->data.result;
                return OK;
            }
        }
        struct curl_waitfd cancel = {
            .fd = exchange->request->cancel_fd, .events = CURL_WAIT_POLLIN};
        bool has_cancel = cancel.fd >= 0;
        if (status == CURLM_OK) {
            status = curl_multi_poll(multi, &cancel, has_cancel ? 1 : 0, STEP_MS, NULL);
        }
        if (status != CURLM_OK) {
            FAIL_FOREIGN(error, IO, (int)status, "libcurl: %s", curl_multi_strerror(status));
        }
        if (has_cancel && cancel.revents != 0) {
            *cancelled = true;
            return OK;
        }
    }
}

/* Turns what became of the transfer into the answer. `*next` is where it leads to, or null. */
static void conclude(struct exchange *exchange, CURL *easy, CURLcode status, char **next) {
    struct tool_fetch_answer *answer = exchange->answer;
    if (exchange->was_refused) {
        end(exchange,
            TOOL_FETCH_REFUSED,
            "%s leads to an address that is not allowed",
            exchange->host.text);
        return;
    }
    if (status == CURLE_OPERATION_TIMEDOUT) {
        end(exchange, TOOL_FETCH_TIMEOUT, "%s did not answer in time", exchange->host.text);
        return;
    }
    if (status != CURLE_OK && !exchange->is_full) {
        const char *words =
            exchange->trouble[0] != '\0' ? exchange->trouble : curl_easy_strerror(status);
        end(exchange, TOOL_FETCH_FAILED, "%s: %.300s", exchange->host.text, words);
        return;
    }
    long code = 0;
    char *type = NULL;
    char *redirection = NULL;
    (void)curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &code);
    (void)curl_easy_getinfo(easy, CURLINFO_CONTENT_TYPE, &type);
    (void)curl_easy_getinfo(easy, CURLINFO_REDIRECT_URL, &redirection);
    answer->end = TOOL_FETCH_DONE;
    answer->status = (int)code;
    (void
    )snprintf(answer->content_type, sizeof answer->content_type, "%s", type != NULL ? type : "");
    make_printable(answer->content_type);
    if (redirection != NULL) {
        *next = strdup(redirection);
    }
}

/* One request of the chain. `*next`: an owned URL to go on with, or null when it is over. */
static result
fetch_one(struct exchange *exchange, const char *address, char **next, struct error *error) {
    struct tool_fetch_answer *answer = exchange->answer;
    CLEANUP(url_cleanup) CURLU *url = curl_url();
    CLEANUP(easy_cleanup) CURL *easy = curl_easy_init();
    CLEANUP(multi_cleanup) CURLM *multi = curl_multi_init();
    CLEANUP(list_cleanup) struct curl_slist *pins = NULL;
    CLEANUP(buffer_deinit) struct buffer pin;
    buffer_init(&pin, 4096);
    exchange->easy = easy;
    if (url == NULL || easy == NULL || multi == NULL) {
        FAIL(error, MEMORY, "no memory for an HTTP request");
    }
    if (curl_url_set(url, CURLUPART_URL, address, 0) != CURLUE_OK) {
        end(exchange, TOOL_FETCH_FAILED, "the URL is malformed");
        return OK;
    }
    bool goes_on = decide_name(exchange, url);
    if (goes_on) {
        TRY(decide_addresses(exchange, &pin, &goes_on, error));
    }
    if (!goes_on) {
        return OK;
    }
    tell(exchange, true, "");
    (void)snprintf(answer->url, sizeof answer->url, "%s", address);
    make_printable(answer->url);
    if (pin.length > 0) {
        pins = curl_slist_append(NULL, buffer_text(&pin));
        if (pins == NULL) {
            FAIL(error, MEMORY, "no memory for an HTTP request");
        }
    }
    TRY(configure(easy, exchange, url, pins, error));
    if (curl_multi_add_handle(multi, easy) != CURLM_OK) {
        FAIL(error, IO, "libcurl does not take a request");
    }
    bool cancelled = false;
    CURLcode status = CURLE_OK;
    result moved = transfer(multi, exchange, &cancelled, &status, error);
    if (is_ok(moved) && cancelled) {
        end(exchange, TOOL_FETCH_CANCELLED, "cancelled");
    } else if (is_ok(moved)) {
        conclude(exchange, easy, status, next);
    }
    (void)curl_multi_remove_handle(multi, easy);
    return moved;
}

result http_client_fetch(
    void *client,
    const struct tool_fetch_request *request,
    struct tool_fetch_answer *out,
    struct error *error
) {
    CLEANUP(free_cleanup) char *address = strdup(request->url);
    int64_t until_ms = now_ms() + request->time_ms_max;
    for (unsigned i = 0; i <= HTTP_REDIRECTIONS_MAX; i++) {
        if (address == NULL) {
            FAIL(error, MEMORY, "no memory for an HTTP request");
        }
        struct exchange exchange = {
            .client = client,
            .request = request,
            .answer = out,
            .until_ms = until_ms,
        };
        out->is_cut = false;
        out->reason[0] = '\0';
        buffer_clear(&out->body);
        CLEANUP(free_cleanup) char *next = NULL;
        TRY(fetch_one(&exchange, address, &next, error));
        if (next == NULL || strlen(next) >= TOOL_FETCH_URL_BYTES) {
            return OK;
        }
        free(address);
        address = TAKE(next);
    }
    out->end = TOOL_FETCH_FAILED;
    (void
    )snprintf(out->reason, sizeof out->reason, "more than %d redirections", HTTP_REDIRECTIONS_MAX);
    return OK;
}
