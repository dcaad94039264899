/* A request of `run`: what one line of a batch file, or the options, ask for. */
#ifndef LG_CLI_REQUEST_H
#define LG_CLI_REQUEST_H

#include "cli/cli.h"

typedef struct Request {
    int32_t *ids;
    size_t id_count;
    LgAdapterUse uses[LG_ADAPTERS_MAX];
    char *names[LG_ADAPTERS_MAX]; /* own the names of uses */
    size_t use_count;
    long line; /* of the batch file */
    long n;    /* negative: not said */
    bool eos;
    char *title; /* shown in text mode */
    LgSampling sampling;
    LgSequence *sequence;
} Request;

/* A prompt as text of the given kind, into r's ids. Exit code. */
int request_text(LgEngine *e, Request *r, const char *text, size_t bytes, LgTextKind kind);
/* A line of a batch file into r, which holds the defaults. number: of the line, for messages. */
int request_line(LgEngine *e, Request *r, const json_t *line, long number);
void request_clear(Request *r);

#endif
