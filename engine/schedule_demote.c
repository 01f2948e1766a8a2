/* Who gives his blocks back. See schedule.h. */
#include "schedule.h"

/* Shares of blocks are fractions that add up to whole ones but for rounding. */
#define ROUNDING 0.01

static bool goes_before(const struct schedule_idle *a, const struct schedule_idle *b) {
    if (a->is_queued != b->is_queued) {
        return b->is_queued;
    }
    if (a->is_over != b->is_over) {
        return a->is_over;
    }
    if (a->return_us != b->return_us) {
        return a->return_us > b->return_us;
    }
    if (a->idle_us != b->idle_us) {
        return a->idle_us < b->idle_us;
    }
    return a->id < b->id;
}

int32_t schedule_demote(
    const struct schedule_machine *machine,
    const struct schedule_sequence *blocked,
    const struct schedule_idle *idle,
    int32_t count
) {
    int64_t missing = blocked->blocks_needed - (machine->blocks_total - machine->blocks_promised);
    bool has_waited = machine->now_us - blocked->since_us >= SCHEDULE_DEMOTE_US;
    if (missing <= 0 || (machine->running > 0 && missing <= machine->blocks_open && !has_waited)) {
        return -1;
    }
    double held = 0;
    int32_t found = -1;
    for (int32_t i = 0; i < count; i++) {
        held += idle[i].blocks;
        if (idle[i].blocks > 0 && (found < 0 || goes_before(&idle[i], &idle[found]))) {
            found = i;
        }
    }
    return machine->running > 0 && held + ROUNDING < (double)missing ? -1 : found;
}
