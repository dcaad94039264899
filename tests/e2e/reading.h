/* A second reading of statements, in double and with an error bound beside every value: how far a
 * right program may be off that works in f32, adds in any order, and rounds once a store. A
 * program's own values take the place of the computed ones as soon as they were held to them, so
 * that the bounds are those of one statement (or of as many as the program keeps to itself) and do
 * not pile up. */
#ifndef LG_TESTS_READING_H
#define LG_TESTS_READING_H

#include "ir/adapter.h"
#include "ir/bind.h"
#include "ir/step.h"

typedef struct Reading Reading;

/* positions_max, slots_max: what the states have room for. NULL: allocation failed. */
Reading *reading_create(const LangProgram *p, const Binding *binding, bool store_f32, int slots_max,
                        int positions_max);
void reading_destroy(Reading *b);
void reading_install(Reading *b, int32_t slot, const AdapterData *adapter);

/* A step begins; its statements follow in the program's order. */
void reading_step(Reading *b, const Step *step);
/* Values and bounds of the statement's targets; states are written at once. */
void reading_stmt(Reading *b, const LangStmt *s, int layer);

typedef struct ReadingReport {
    uint64_t elems;  /* held to a bound */
    double worst;    /* largest error as a part of its bound */
    uint64_t broken; /* past their bound */
    char first[400]; /* the first of those */
} ReadingReport;

/* Holds the elements that were computed since the last check to the program's, which it takes over.
 * `step` is in units of elements from row to row of `actual`. One of actual_f32, actual_f64. */
void reading_check(Reading *b, int tensor, const float *actual_f32, const double *actual_f64,
                   const char *where, ReadingReport *report);

#endif
