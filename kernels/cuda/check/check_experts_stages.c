/* experts stage by stage: no constant bounds the whole op, since a gate that another order of sums
 * moves to the next bf16 value may move a hidden channel to the next FP8 code, an eighth away, and one
 * large channel may carry a row. So each slot of a row runs alone, as an op that chooses one expert
 * while the other kind's down matrix is zero:
 *   hidden   the down matrix is the unit matrix, so the output is the hidden row itself. Where it is
 *            not the CPU's, gate and up are summed in double precision: both backends must have what
 *            some sum within the error of FP32 sums rounds to
 *   down     with the true down matrix the slot's output differs from the CPU's by what the different
 *            hidden channels, now known, explain, and by roundings of one bf16 step at most; outputs
 *            whose hidden rows are equal yet differ, and samples of all, are held to half a step of
 *            the double precision sum over the device's own hidden row
 *   output   the whole op's is the ascending FP32 sum of its slots', to the bit, on both
 * Hidden rows do not depend on the down matrix, and identity makes a slot alone what it is among
 * others, which the last stage shows again. */
#include "check_experts.h"

#include "kernels/cpu/number.h"

#include <math.h>

#define CPU     0
#define DEVICE  1
#define SAMPLES 20000 /* outputs of a case summed in double precision */

struct stages {
    struct check *check;
    const struct experts_call *call;
    int32_t slots;                               /* k, then the shared expert's */
    uint16_t *hidden[2], *outputs[2], *total[2]; /* [slots, R, hidden or D]; [R, D] */
    struct weight unit[2], zero[2];              /* of a routed, of the shared expert */
    struct expert_weights *unit_table, *zero_table;
    double *x; /* [D] a row decoded */
};

/* ---- the parts of the call ---- */

static struct weight make_down(struct check *check, const struct weight *like, bool is_unit) {
    struct weight down = {.dtype = like->dtype, .out = like->out, .in = like->in};
    bool is_fp4 = like->dtype == DTYPE_FP4;
    size_t in = (size_t)like->in;
    size_t scale_rows = (size_t)(is_fp4 ? like->out : (like->out + 31) / 32);
    uint8_t *codes = check_input(check, CHECK_SHARED, (size_t)like->out * in / (is_fp4 ? 2 : 1));
    uint8_t *scales = check_input(check, CHECK_SHARED, scale_rows * (in / 32));
    memset(scales, 127, scale_rows * (in / 32));
    for (size_t i = 0; is_unit && i < in; i++) {
        size_t at = i * in + i;
        if (is_fp4) {
            codes[at / 2] |= (uint8_t)(e2m1_encode(1.0F) << at % 2 * 4);
        } else {
            codes[at] = e4m3_encode(1.0F);
        }
    }
    down.data = codes;
    down.scale = scales;
    return down;
}

static struct expert_weights *make_table(const struct stages *stages, const struct weight *down) {
    int32_t experts = stages->call->op.experts;
    size_t bytes = (size_t)experts * sizeof(struct expert_weights);
    struct expert_weights *table = check_pointers(stages->check, CHECK_SHARED, bytes);
    for (int32_t e = 0; e < experts; e++) {
        table[e] = stages->call->op.routed[e];
        table[e].w2 = *down;
    }
    return table;
}

static void run_slot(struct stages *stages, int32_t slot, bool is_hidden) {
    struct check *check = stages->check;
    struct experts_call one = *stages->call;
    struct experts_op *op = &one.op;
    size_t chosen = (size_t)op->chosen;
    size_t rows = (size_t)op->rows;
    bool is_shared = slot == op->chosen;
    int32_t *ids = check_input(check, op->rows, sizeof *ids);
    float *weights = check_input(check, op->rows, sizeof *weights);
    for (size_t r = 0; r < rows; r++) {
        size_t from = r * chosen + (is_shared ? 0 : (size_t)slot);
        ids[r] = op->ids[from];
        weights[r] = op->weights[from];
    }
    op->ids = ids;
    op->weights = weights;
    op->chosen = 1;
    if (is_shared) {
        op->routed = stages->zero_table;
        one.shared.w2 = is_hidden ? stages->unit[1] : one.shared.w2;
    } else {
        op->routed = is_hidden ? stages->unit_table : op->routed;
        one.shared.w2 = stages->zero[1];
    }
    size_t dim = (size_t)op->dim;
    size_t width = (size_t)(is_hidden ? op->hidden : op->dim);
    memset(op->output, 0xA5, rows * dim * sizeof *op->output);
    check_run_again(check, check_call_experts, &one, sizeof one);
    for (int side = CPU; side <= DEVICE; side++) {
        const uint16_t *from = side == CPU ? op->output : check_got(check, op->output);
        uint16_t *to = (is_hidden ? stages->hidden : stages->outputs)[side];
        to += (size_t)slot * rows * width;
        for (size_t r = 0; r < rows; r++) {
            memcpy(to + r * width, from + r * dim, width * sizeof *to);
        }
    }
}

static const struct expert_weights *
expert_of(const struct stages *stages, int32_t slot, int32_t row) {
    const struct experts_op *op = &stages->call->op;
    if (slot == op->chosen) {
        return &stages->call->shared;
    }
    return &op->routed[op->ids[(size_t)row * (size_t)op->chosen + (size_t)slot]];
}

/* ---- sums in double precision ---- */

static double weight_at(const struct weight *weight, int32_t row, int32_t column) {
    size_t at = (size_t)row * (size_t)weight->in + (size_t)column;
    size_t group = (size_t)column / 32;
    size_t groups = (size_t)weight->in / 32;
    const uint8_t *codes = weight->data;
    if (weight->dtype == DTYPE_FP4) {
        uint8_t code = codes[at / 2] >> at % 2 * 4 & 15;
        return (double)e2m1_decode(code) *
               (double)e8m0_decode(weight->scale[(size_t)row * groups + group]);
    }
    return (double)e4m3_decode(codes[at]) *
           (double)e8m0_decode(weight->scale[(size_t)row / 32 * groups + group]);
}

struct sum {
    double value;
    double error; /* most that any FP32 order of these backends is off */
};

/* A backend adds at most in / 32 times in a row (the CPU to a lane of 16, the device 16 products to
 * one of two slices) and a few times more to bring partial sums together. Each time is off by 2^-22
 * of the magnitudes at most: a tensor core cuts off what it aligns rather than rounding it. */
static struct sum exact_sum(const struct weight *weight, int32_t row, const double *x) {
    double value = 0;
    double magnitude = 0;
    for (int32_t i = 0; i < weight->in; i++) {
        double term = weight_at(weight, row, i) * x[i];
        value += term;
        magnitude += fabs(term);
    }
    return (struct sum){value, (weight->in / 32 + 16) * 0x1p-22 * magnitude};
}

static double bf16_step(double value) {
    int exponent;
    (void)frexp(value, &exponent); // 2^(exponent - 1) <= |value|
    return value == 0 ? 0 : ldexp(1.0, exponent - 8);
}

/* ---- hidden rows ---- */

struct range {
    double low, high;
};

static struct range rounded(double low, double high) {
    return (struct range){(double)bf16_round((float)low), (double)bf16_round((float)high)};
}

static double clamped(double value, double low, double high) {
    return value < low ? low : value > high ? high : value;
}

/* What a hidden channel may be before it is quantised (spec 3.11). */
static struct range
hidden_range(const struct stages *stages, int32_t slot, int32_t row, int32_t channel) {
    const struct experts_op *op = &stages->call->op;
    const struct expert_weights *expert = expert_of(stages, slot, row);
    struct sum gate = exact_sum(&expert->w1, channel, stages->x);
    struct sum up = exact_sum(&expert->w3, channel, stages->x);
    struct range g = rounded(gate.value - gate.error, gate.value + gate.error);
    struct range u = rounded(up.value - up.error, up.value + up.error);
    double limit = op->limit > 0 ? (double)op->limit : HUGE_VAL;
    double weight = 1;
    if (slot < op->chosen) {
        weight = (double)op->weights[(size_t)row * (size_t)op->chosen + (size_t)slot];
    }
    struct range y = {HUGE_VAL, -HUGE_VAL};
    for (int corner = 0; corner < 4; corner++) {
        double a = clamped(corner % 2 == 0 ? g.low : g.high, -HUGE_VAL, limit);
        double b = clamped(corner / 2 == 0 ? u.low : u.high, -limit, limit);
        double value = weight * (a / (1 + exp(-a)) * b);
        y.low = fmin(y.low, value);
        y.high = fmax(y.high, value);
    }
    // exp, the division and two products round in FP32
    return rounded(y.low - fabs(y.low) * 0x1p-20, y.high + fabs(y.high) * 0x1p-20);
}

static double quantised(double value, uint8_t scale) {
    float scaled = float_clamp((float)value * e8m0_reciprocal(scale), 448.0F);
    return (double)e4m3_decode(e4m3_encode(scaled)) * (double)e8m0_decode(scale);
}

/* Whether `value`, of a group whose largest is `largest`, is what something in the range becomes. The
 * largest may have been rounded down to where a smaller scale begins: either may be the group's. */
static bool is_rounding(struct range range, double value, double largest) {
    for (int i = 0; i < 2; i++) {
        uint8_t scale = fp8_group_scale((float)largest * (i == 0 ? 1.0F : 1.03F));
        if (value >= quantised(range.low, scale) && value <= quantised(range.high, scale)) {
            return true;
        }
    }
    return false;
}

struct hidden_found {
    int64_t different, wrong;
    double worst; /* difference, of the channel's magnitude */
};

static void compare_group(
    const struct stages *stages,
    int32_t slot,
    int32_t row,
    int32_t first,
    const uint16_t *const sides[2],
    struct hidden_found *found
) {
    double largest[2] = {0, 0};
    for (int side = CPU; side <= DEVICE; side++) {
        for (int i = 0; i < 32; i++) {
            largest[side] = fmax(largest[side], fabs((double)bf16_decode(sides[side][i])));
        }
    }
    for (int i = 0; i < 32; i++) {
        if (sides[CPU][i] == sides[DEVICE][i]) {
            continue;
        }
        double cpu = (double)bf16_decode(sides[CPU][i]);
        double device = (double)bf16_decode(sides[DEVICE][i]);
        struct range range = hidden_range(stages, slot, row, first + i);
        bool is_right =
            is_rounding(range, cpu, largest[CPU]) && is_rounding(range, device, largest[DEVICE]);
        found->different++;
        found->wrong += is_right ? 0 : 1;
        if (fabs(cpu) > largest[CPU] / 64) {
            found->worst = fmax(found->worst, fabs(device - cpu) / fabs(cpu));
        }
    }
}

static bool compare_hidden(const struct stages *stages) {
    const struct experts_op *op = &stages->call->op;
    size_t width = (size_t)op->hidden;
    struct hidden_found found = {0, 0, 0};
    for (int32_t row = 0; row < op->rows; row++) {
        const uint8_t *codes = op->x.codes + (size_t)row * (size_t)op->dim;
        const uint8_t *scales = op->x.scales + (size_t)row * (size_t)op->dim / 32;
        for (int32_t i = 0; i < op->dim; i++) {
            stages->x[i] = (double)e4m3_decode(codes[i]) * (double)e8m0_decode(scales[i / 32]);
        }
        for (int32_t slot = 0; slot < stages->slots && found.wrong < 1000; slot++) {
            size_t at = ((size_t)slot * (size_t)op->rows + (size_t)row) * width;
            for (size_t c = 0; c < width; c += 32) {
                const uint16_t *const sides[2] = {
                    stages->hidden[CPU] + at + c, stages->hidden[DEVICE] + at + c};
                if (memcmp(sides[CPU], sides[DEVICE], 32 * sizeof(uint16_t)) != 0) {
                    compare_group(stages, slot, row, (int32_t)c, sides, &found);
                }
            }
        }
    }
    double all = (double)stages->slots * op->rows * op->hidden;
    check_report(
        stages->check,
        found.wrong == 0,
        "hidden: %lld of %.0f (%.1e) unlike the CPU's, by %.1f %% at most; %lld unexplained",
        (long long)found.different,
        all,
        (double)found.different / all,
        found.worst * 100,
        (long long)found.wrong
    );
    return found.wrong == 0;
}

/* ---- down products ---- */

struct down_found {
    int64_t different, wrong, summed;
    double worst;               /* unexplained difference, in bf16 steps */
    double worst_sum;           /* distance from the double precision sum, of what is allowed */
    int32_t slot, row, channel; /* the first wrong one */
};

struct down_row {
    const struct weight *down;
    const double *hidden;      /* the device's */
    const int32_t *moved;      /* channels that are not the CPU's */
    const double *differences; /* theirs */
    int32_t count;
};

static bool is_down_right(
    const struct down_row *r,
    int32_t j,
    uint16_t cpu,
    uint16_t device,
    bool is_sample,
    struct down_found *found
) {
    double got = (double)bf16_decode(device);
    double wanted = (double)bf16_decode(cpu);
    double explained = 0;
    for (int32_t i = 0; i < r->count; i++) {
        explained += weight_at(r->down, j, r->moved[i]) * r->differences[i];
    }
    double step = bf16_step(fmax(fabs(got), fabs(wanted)));
    double rest = fabs(got - wanted - explained);
    found->different += device != cpu ? 1 : 0;
    bool is_far = !(rest <= step);
    if (!is_far && !is_sample && (device == cpu || r->count > 0)) {
        found->worst = step > 0 ? fmax(found->worst, rest / step) : found->worst;
        return true;
    }
    struct sum sum = exact_sum(r->down, j, r->hidden);
    found->summed++;
    double room = bf16_step(fmax(fabs(got), fabs(sum.value))) / 2 + sum.error;
    double distance = fabs(got - sum.value);
    found->worst_sum = room > 0 ? fmax(found->worst_sum, distance / room) : found->worst_sum;
    double excess = rest - step - 3 * sum.error - fabs(explained) * 0x1p-20;
    found->worst = is_far || step == 0 ? found->worst : fmax(found->worst, rest / step);
    return distance <= room && !(excess > 0);
}

static void compare_down(const struct stages *stages) {
    const struct experts_op *op = &stages->call->op;
    size_t width = (size_t)op->hidden;
    double *hidden = check_host(stages->check, width * sizeof *hidden);
    double *differences = check_host(stages->check, width * sizeof *differences);
    int32_t *moved = check_host(stages->check, width * sizeof *moved);
    int64_t all = (int64_t)stages->slots * op->rows * op->dim;
    int64_t stride = all / SAMPLES + 1;
    struct down_found found = {0};
    for (int64_t entry = 0; entry < (int64_t)stages->slots * op->rows; entry++) {
        int32_t slot = (int32_t)(entry / op->rows);
        int32_t row = (int32_t)(entry % op->rows);
        struct down_row r = {&expert_of(stages, slot, row)->w2, hidden, moved, differences, 0};
        for (size_t i = 0; i < width; i++) {
            uint16_t cpu = stages->hidden[CPU][(size_t)entry * width + i];
            uint16_t device = stages->hidden[DEVICE][(size_t)entry * width + i];
            hidden[i] = (double)bf16_decode(device);
            if (cpu != device) {
                moved[r.count] = (int32_t)i;
                differences[r.count++] = hidden[i] - (double)bf16_decode(cpu);
            }
        }
        for (int32_t j = 0; j < op->dim; j++) {
            size_t at = (size_t)entry * (size_t)op->dim + (size_t)j;
            bool is_sample = (int64_t)at % stride == 0;
            uint16_t cpu = stages->outputs[CPU][at];
            uint16_t device = stages->outputs[DEVICE][at];
            if ((r.count == 0 && cpu == device && !is_sample) ||
                is_down_right(&r, j, cpu, device, is_sample, &found)) {
                continue;
            }
            if (found.wrong++ == 0) {
                found.slot = slot;
                found.row = row;
                found.channel = j;
            }
        }
    }
    char where[64] = "";
    if (found.wrong > 0) {
        snprintf(
            where, sizeof where, ", first [%d, %d] slot %d", found.row, found.channel, found.slot
        );
    }
    check_report(
        stages->check,
        found.wrong == 0,
        "down: %.1e unlike the CPU's, unexplained %.2f of 1 ulp; %lld exact sums, worst %.2f; "
        "%lld wrong%s",
        (double)found.different / (double)all,
        found.worst,
        (long long)found.summed,
        found.worst_sum,
        (long long)found.wrong,
        where
    );
}

/* ---- sums of the slots ---- */

static void compare_total(const struct stages *stages) {
    const struct experts_op *op = &stages->call->op;
    size_t count = (size_t)op->rows * (size_t)op->dim;
    int64_t wrong[2] = {0, 0};
    int64_t different = 0;
    double squares = 0;
    double worst = 0;
    for (size_t i = 0; i < count; i++) {
        for (int side = CPU; side <= DEVICE; side++) {
            float sum = 0.0F;
            for (int32_t slot = 0; slot < stages->slots; slot++) {
                sum += bf16_decode(stages->outputs[side][(size_t)slot * count + i]);
            }
            wrong[side] += bf16_encode(sum) != stages->total[side][i] ? 1 : 0;
        }
        double cpu = (double)bf16_decode(stages->total[CPU][i]);
        double device = (double)bf16_decode(stages->total[DEVICE][i]);
        different += stages->total[CPU][i] != stages->total[DEVICE][i] ? 1 : 0;
        squares += cpu * cpu;
        worst = fmax(worst, fabs(device - cpu));
    }
    check_report(
        stages->check,
        wrong[CPU] + wrong[DEVICE] == 0,
        "output: %lld are not the sum of their slots (%lld on the CPU); %.1e unlike the CPU's, by "
        "%.1e rms",
        (long long)wrong[DEVICE],
        (long long)wrong[CPU],
        (double)different / (double)count,
        squares > 0 ? worst / sqrt(squares / (double)count) : worst
    );
}

void check_experts_stages(struct check *check, const struct experts_call *call) {
    const struct experts_op *op = &call->op;
    ASSERT(op->hidden <= op->dim); // a hidden row fits an output row
    struct stages stages = {.check = check, .call = call, .slots = op->chosen + 1};
    size_t rows = (size_t)op->rows;
    size_t entries = rows * (size_t)stages.slots;
    size_t output_bytes = rows * (size_t)op->dim * sizeof(uint16_t);
    for (int side = CPU; side <= DEVICE; side++) {
        stages.hidden[side] = check_host(check, entries * (size_t)op->hidden * sizeof(uint16_t));
        stages.outputs[side] = check_host(check, entries * (size_t)op->dim * sizeof(uint16_t));
        stages.total[side] = check_host(check, output_bytes);
    }
    memcpy(stages.total[CPU], op->output, output_bytes);
    memcpy(stages.total[DEVICE], check_got(check, op->output), output_bytes);
    stages.x = check_host(check, (size_t)op->dim * sizeof *stages.x);
    for (int is_shared = 0; is_shared < 2; is_shared++) {
        const struct weight *like = is_shared ? &call->shared.w2 : &op->routed[0].w2;
        stages.unit[is_shared] = make_down(check, like, true);
        stages.zero[is_shared] = make_down(check, like, false);
    }
    stages.unit_table = make_table(&stages, &stages.unit[0]);
    stages.zero_table = make_table(&stages, &stages.zero[0]);
    for (int32_t slot = 0; slot < stages.slots; slot++) {
        run_slot(&stages, slot, true);
        run_slot(&stages, slot, false);
    }
    if (compare_hidden(&stages)) {
        compare_down(&stages);
    }
    compare_total(&stages);
}
