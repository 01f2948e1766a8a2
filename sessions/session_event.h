/* Members of the JSON of records, for the files that write it. Internal to sessions/. Pure. */
#ifndef HEARTH_SESSIONS_SESSION_EVENT_H
#define HEARTH_SESSIONS_SESSION_EVENT_H

#include "session.h"

/* Raw bytes of a model or a command as a string. */
void event_write_bytes(struct json_writer *writer, const char *name, struct view bytes);
void event_write_text(
    struct json_writer *writer, const char *name, struct view text
); /* unless empty */
void event_write_i64(struct json_writer *writer, const char *name, int64_t value);
void event_write_name(struct json_writer *writer, const char *name, const char *value);
/* JSON where it is, else a string; unless empty. */
void event_write_json_text(struct json_writer *writer, const char *name, struct view text);
void event_write_flag(
    struct json_writer *writer, const char *name, bool value
); /* only where it is set */

/* session_swarm_event.c; the first two write nothing when there is nothing. */
void event_write_swarms(struct json_writer *writer, const struct session_tree *tree);
void event_write_mail(struct json_writer *writer, const struct session_tree *tree);
void event_write_node(struct json_writer *writer, const struct session_node *node);

#endif
