/* Which state of a trusted project's file was accepted: a command may write one where there is none yet,
 * or a checkout bring another, and it must not count by itself in the next run.
 *
 * One small file per workspace in STATE/trusted, out of reach of commands, with the digest of the
 * project's file; a workspace that is seen for the first time is taken as it is. Blocks on the disk.
 * Thread: any.
 */
#ifndef HEARTH_RUNTIME_CONFIG_TRUST_H
#define HEARTH_RUNTIME_CONFIG_TRUST_H

#include "base/sha256.h"

#define CONFIG_TRUST_NONE "none" /* the digest of a file that is missing */

enum config_trust { CONFIG_TRUST_NEW, CONFIG_TRUST_SAME, CONFIG_TRUST_CHANGED };

/* `workspace` is absolute and resolved. Expected errors: IO. */
MUST_CHECK result config_trust_look(
    const char *state,
    const char *workspace,
    const char *digest,
    enum config_trust *out,
    struct error *error
);
/* Makes the directories that are missing. Expected errors: IO. */
MUST_CHECK result config_trust_record(
    const char *state, const char *workspace, const char *digest, struct error *error
);

#endif
