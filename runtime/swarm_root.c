/* See swarm_root.h. */
#include "swarm_root.h"

result swarm_root_open(
    struct swarm_root **out, const struct swarm_root_options *options, struct error *error
) {
    (void)out;
    (void)options;
    FAIL(error, UNSUPPORTED, "roots of swarms are not made yet");
}
