/* Formats a line on the stack and hands it to the sink in one call. */
#include "log.h"

#include <stdarg.h>
#include <time.h>
#include <unistd.h>

#define LOG_LINE_BYTES 1024

/* Set once before threads start (log.h), read-only afterwards. */
static struct {
    enum log_level level;
    log_sink *sink;
    void *context;
} configured = {LOG_WARNING, NULL, NULL};

static const char *const level_names[] = {"error", "warning", "info", "debug"};

void log_configure(enum log_level level, log_sink *sink, void *context) {
    configured.level = level;
    configured.sink = sink;
    configured.context = context;
}

bool log_is_on(enum log_level level) {
    return level <= configured.level;
}

const char *log_level_name(enum log_level level) {
    ASSERT((size_t)level < COUNT_OF(level_names));
    return level_names[level];
}

static void write_standard_error(const char *line, size_t length) {
    char out[LOG_LINE_BYTES + 1];
    memcpy(out, line, length);
    out[length] = '\n';
    ssize_t written = write(STDERR_FILENO, out, length + 1);
    (void)written; // nobody is left to tell when standard error is closed
}

void log_event(enum log_level level, const char *area, const char *event, const char *format, ...) {
    if (!log_is_on(level)) {
        return;
    }
    struct timespec now = {0, 0};
    clock_gettime(CLOCK_REALTIME, &now);
    struct tm utc;
    gmtime_r(&now.tv_sec, &utc);
    char line[LOG_LINE_BYTES];
    int head = snprintf(
        line,
        sizeof line,
        "%04d-%02d-%02dT%02d:%02d:%02d.%03ldZ %s %s %s ",
        utc.tm_year + 1900,
        utc.tm_mon + 1,
        utc.tm_mday,
        utc.tm_hour,
        utc.tm_min,
        utc.tm_sec,
        now.tv_nsec / 1000000,
        log_level_name(level),
        area,
        event
    );
    if (head < 0) {
        return;
    }
    size_t used = (size_t)head < sizeof line ? (size_t)head : sizeof line - 1;
    va_list arguments;
    va_start(arguments, format);
    int rest = vsnprintf(line + used, sizeof line - used, format, arguments);
    va_end(arguments);
    if (rest > 0) {
        used += (size_t)rest < sizeof line - used ? (size_t)rest : sizeof line - used - 1;
    }
    if (configured.sink == NULL) {
        write_standard_error(line, used);
    } else {
        configured.sink(configured.context, level, line, used);
    }
}
