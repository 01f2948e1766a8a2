/* What a model directory holds and would cost, as text or JSON: `hearth model inspect`.
 *
 * From config.json and the shards' headers alone; no weight is read. Thread: any.
 */
#ifndef HEARTH_ENGINE_MODEL_INSPECT_H
#define HEARTH_ENGINE_MODEL_INSPECT_H

#include "base/bytes.h"

/* Appends the report: dimensions, bytes by group and by storage class, cache bytes per token and per
 * sequence, layer plan. The JSON form is one object without a newline. Expected errors: those of
 * model_measure, and LIMIT when `out` is too small. */
MUST_CHECK result
model_inspect(const char *directory, bool json, struct buffer *out, struct error *error);

#endif
