/* One structured line per event: time, level, area, event name, key=value pairs with units.
 *
 * Libraries return errors and do not log them; runtime logs once, where it decides. No secrets
 * and no transcript text above DEBUG. The sink is set once by main before threads start.
 * Thread: any; lines are written whole.
 */
#ifndef HEARTH_BASE_LOG_H
#define HEARTH_BASE_LOG_H

#include "result.h"

enum log_level { LOG_ERROR, LOG_WARNING, LOG_INFO, LOG_DEBUG };

/* Called with one line without a newline. Must not block for long and must not log. */
typedef void log_sink(void *context, enum log_level level, const char *line, size_t length);

/* `sink` null means standard error. Lines above `level` are dropped. */
void log_configure(enum log_level level, log_sink *sink, void *context);
bool log_is_on(enum log_level level);
const char *log_level_name(enum log_level level);

/* log_event(LOG_INFO, "engine", "model_loaded", "bytes=%zu shards=%u", bytes, shards); */
void log_event(enum log_level level, const char *area, const char *event, const char *format, ...)
    PRINTF_LIKE(4, 5);

#endif
