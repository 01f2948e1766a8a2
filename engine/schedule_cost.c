/* What steps cost, learnt from those that ran. See schedule.h.
 *
 * A Kalman filter over (fixed, us per row of each kind): it tells the fixed part from the rows'
 * as soon as steps differ, and follows costs that drift (longer contexts, another clock rate). What
 * it cannot explain moves it by a bounded step only and raises a load factor, which forgets.
 */
#include "schedule.h"

#include <math.h>

/* Usual error of a step's duration, as part of it: the machine does other things too. */
#define NOISE 0.08
/* Parts of its value that a cost may drift by in one step. */
#define DRIFT 0.01
/* Errors beyond so many times the expected one are outliers. */
#define OUTLIER 3.0
/* So many outliers of one direction in a row are a machine that has changed: costs count as unknown
 * by a part of their values. */
#define STREAK       3
#define STREAK_DRIFT 0.5
/* One step at most doubles the load; each good step takes back a part of it. */
#define LOAD_RISE     2.0
#define LOAD_MAX      8.0
#define LOAD_RELEASE  0.25
#define STEP_WEIGHT   0.1
#define US_LEAST      0.1 /* of a row: costs are divided by it */
#define FIXED_UNKNOWN 0.3 /* usual error of the fixed part at first, of a step's time */
#define ROW_UNKNOWN   1.0 /* the same of a row, of its share */

static int32_t total_rows(const struct schedule_rows_count *rows) {
    int32_t total = 0;
    for (int kind = 0; kind < SCHEDULE_ROW_KINDS; kind++) {
        ASSERT(rows->rows[kind] >= 0);
        total += rows->rows[kind];
    }
    return total;
}

static void fill_features(const struct schedule_rows_count *rows, double features[]) {
    features[0] = 1;
    for (int kind = 0; kind < SCHEDULE_ROW_KINDS; kind++) {
        features[1 + kind] = rows->rows[kind];
    }
}

/* A kind that never ran costs what the dearest of the others does. */
static double row_cost(const struct schedule_cost *cost, int kind) {
    if (cost->rows[kind] > 0) {
        return cost->us[1 + kind];
    }
    double most = 0;
    for (int other = 0; other < SCHEDULE_ROW_KINDS; other++) {
        if (cost->rows[other] > 0 && cost->us[1 + other] > most) {
            most = cost->us[1 + other];
        }
    }
    return most;
}

double schedule_cost_row(const struct schedule_cost *cost, enum schedule_row kind) {
    return cost->steps == 0 ? 0 : row_cost(cost, (int)kind) * cost->load;
}

double schedule_cost_fixed(const struct schedule_cost *cost) {
    return cost->steps == 0 ? 0 : cost->us[0] * cost->load;
}

double
schedule_cost_predict(const struct schedule_cost *cost, const struct schedule_rows_count *rows) {
    if (cost->steps == 0) {
        return 0;
    }
    double us = cost->us[0];
    for (int kind = 0; kind < SCHEDULE_ROW_KINDS; kind++) {
        us += row_cost(cost, kind) * rows->rows[kind];
    }
    return us * cost->load;
}

/* First rows of that kind: its cost starts at what was assumed of it, with nothing sure. */
static void begin_kind(struct schedule_cost *cost, int kind, double us) {
    int term = 1 + kind;
    cost->us[term] = us < US_LEAST ? US_LEAST : us;
    for (int other = 0; other < SCHEDULE_COST_TERMS; other++) {
        cost->covariance[term][other] = 0;
        cost->covariance[other][term] = 0;
    }
    double unsure = ROW_UNKNOWN * cost->us[term];
    cost->covariance[term][term] = unsure * unsure;
}

static void begin_all(struct schedule_cost *cost, double taken, int32_t total) {
    cost->load = 1;
    cost->step_us = taken;
    cost->us[0] = 0;
    double unsure = FIXED_UNKNOWN * taken;
    cost->covariance[0][0] = unsure * unsure;
    for (int kind = 0; kind < SCHEDULE_ROW_KINDS; kind++) {
        begin_kind(cost, kind, taken / total);
    }
}

/* One step of the filter; `features` without the load. */
static void
correct(struct schedule_cost *cost, const double features[], double error, double noise) {
    double spread[SCHEDULE_COST_TERMS]; /* covariance * features */
    double variance = noise;
    for (int i = 0; i < SCHEDULE_COST_TERMS; i++) {
        spread[i] = 0;
        for (int j = 0; j < SCHEDULE_COST_TERMS; j++) {
            spread[i] += cost->covariance[i][j] * features[j];
        }
    }
    for (int i = 0; i < SCHEDULE_COST_TERMS; i++) {
        variance += features[i] * spread[i];
    }
    double bound = OUTLIER * sqrt(variance);
    if (error > bound) {
        cost->streak = cost->streak > 0 ? cost->streak + 1 : 1;
    } else if (error < -bound) {
        cost->streak = cost->streak < 0 ? cost->streak - 1 : -1;
    } else {
        cost->streak = 0;
    }
    if (cost->streak != 0) {
        cost->outliers++;
        error = error > 0 ? bound : -bound;
    }
    for (int i = 0; i < SCHEDULE_COST_TERMS; i++) {
        double least = i == 0 ? 0 : US_LEAST;
        cost->us[i] += spread[i] / variance * error;
        cost->us[i] = cost->us[i] < least ? least : cost->us[i];
        for (int j = 0; j <= i; j++) {
            double value = cost->covariance[i][j] - spread[i] * spread[j] / variance;
            cost->covariance[i][j] = value;
            cost->covariance[j][i] = value;
        }
    }
    for (int i = 0; i < SCHEDULE_COST_TERMS; i++) {
        if (cost->covariance[i][i] < 0) { /* rounding */
            cost->covariance[i][i] = 0;
        }
    }
}

/* Only what this step tells something about becomes less sure. */
static void drift(struct schedule_cost *cost, const double features[], double explained) {
    bool is_changed = cost->streak >= STREAK || cost->streak <= -STREAK;
    double part = is_changed ? STREAK_DRIFT : DRIFT;
    cost->streak = is_changed ? 0 : cost->streak;
    for (int i = 0; i < SCHEDULE_COST_TERMS; i++) {
        if (features[i] > 0) {
            /* The fixed part may be none so far: then a part of the step stands for it. */
            double scale = i == 0 ? 0.5 * (cost->us[0] + 0.1 * explained) : cost->us[i];
            cost->covariance[i][i] += part * scale * (part * scale);
        }
    }
}

void schedule_cost_update(
    struct schedule_cost *cost, const struct schedule_rows_count *rows, int64_t taken_us
) {
    int32_t total = total_rows(rows);
    if (total == 0) {
        return;
    }
    double taken = taken_us < 1 ? 1 : (double)taken_us;
    if (cost->steps == 0) {
        begin_all(cost, taken, total);
    }
    for (int kind = 0; kind < SCHEDULE_ROW_KINDS; kind++) {
        if (rows->rows[kind] > 0 && cost->rows[kind] == 0 && cost->steps > 0) {
            begin_kind(cost, kind, row_cost(cost, kind));
        }
    }
    for (int kind = 0; kind < SCHEDULE_ROW_KINDS; kind++) {
        cost->rows[kind] += rows->rows[kind];
    }
    double features[SCHEDULE_COST_TERMS];
    fill_features(rows, features);
    double explained = 0;
    for (int i = 0; i < SCHEDULE_COST_TERMS; i++) {
        explained += cost->us[i] * features[i];
    }
    drift(cost, features, explained);
    double larger = taken > explained ? taken : explained;
    correct(cost, features, taken - explained, NOISE * larger * (NOISE * larger));
    cost->steps++;
    cost->rows_seen = total > cost->rows_seen ? total : cost->rows_seen;
    if (rows->rows[SCHEDULE_DECODE] > 0) {
        cost->step_us += STEP_WEIGHT * (taken - cost->step_us);
    }
    /* What is left after the correction is the load. */
    double now = 0;
    for (int i = 0; i < SCHEDULE_COST_TERMS; i++) {
        now += cost->us[i] * features[i];
    }
    double most = LOAD_RISE * cost->load < LOAD_MAX ? LOAD_RISE * cost->load : LOAD_MAX;
    double ratio = taken / now < most ? taken / now : most;
    double released = cost->load - LOAD_RELEASE * (cost->load - 1);
    cost->load = ratio > released ? ratio : released;
}
