/* Who runs commands in a workspace, and what of it all of them see mounted. Internal to sandbox/.
 *
 * A mount destination below the workspace may only be set up when no running command could have put
 * a symlink in its way (CVE-2026-87766). One command alone is safe, since its destinations are
 * checked before it runs. Further commands of the same host are let in only
 *   - with exactly the same destinations, each a direct child of the workspace or of another one of
 *     them: as a mount point in every running command it can be neither renamed nor replaced by any of
 *     them, and nothing above it can; or
 *   - when the first one had none: then none of the others gets one either.
 * Everything else, and any other host process, waits until the workspace is free.
 */
#ifndef HEARTH_SANDBOX_HOLD_H
#define HEARTH_SANDBOX_HOLD_H

#include "mounts.h"

struct hold; /* one workspace in use */

/* Of one sandbox; any thread. Git directories below the top of a workspace are looked for once, before
 * the first command runs there: those that commands make later stay theirs. */
struct hold_table;

/* Expected errors: MEMORY. */
MUST_CHECK result hold_table_create(struct hold_table **out, struct error *error);
void hold_table_destroy(struct hold_table *table); /* no command is running; accepts null */

/* Opens what `open_below` finds to mount below the workspace and takes a share in it, or refuses.
 * Sets mounts->hold; mounts->workspace and workspace_fd are set already. No other command starts or
 * ends in any workspace of the table meanwhile. Expected errors: those of `open_below`, LIMIT (see
 * above), IO, MEMORY. */
typedef result
hold_open_below(struct mounts *mounts, const struct sandbox_policy *policy, struct error *error);
MUST_CHECK result hold_acquire(
    struct hold_table *table,
    struct mounts *mounts,
    const struct sandbox_policy *policy,
    hold_open_below *open_below,
    struct error *error
);
void hold_release(struct hold *hold); /* accepts null */

#endif
