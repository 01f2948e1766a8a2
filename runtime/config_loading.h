/* A configuration that is being put together. Internal to config.c and config_merge.c. Thread: as config.h.
 */
#ifndef HEARTH_RUNTIME_CONFIG_LOADING_H
#define HEARTH_RUNTIME_CONFIG_LOADING_H

#include "config.h"
#include "config_internal.h"

struct loading {
    const struct config_options *options;
    struct config *config;
    struct config_memory *memory;
    const char *home; /* null: none */
    struct config_layer user, project, given;
    bool is_changed; /* the project's file, since it was accepted */
    const char *notes[CONFIG_NOTES_MAX];
    size_t note_count;
};

/* Remembers something to tell a person. Expected errors: MEMORY. */
MUST_CHECK result config_note(struct loading *loading, struct error *error, const char *format, ...)
    PRINTF_LIKE(3, 4);

/* One layer over what is there already, in this order, after the defaults. The project's counts as far as
 * the user's and trust let it. Expected errors: MEMORY. */
void config_merge_user(struct loading *loading);
MUST_CHECK result config_merge_project(struct loading *loading, struct error *error);
MUST_CHECK result config_merge_options(struct loading *loading, struct error *error);

#endif
