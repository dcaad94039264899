/* How a program was produced: part of its type, not a label. */
#ifndef LG_IR_PROVENANCE_H
#define LG_IR_PROVENANCE_H

typedef enum ProvenanceKind {
    PROVENANCE_COMPILED,    /* every launch is stages that were lifted from the source */
    PROVENANCE_HAND_WRITTEN /* a lane of templates for one model, held to the .lg forward by
                               golden-token locks */
} ProvenanceKind;

typedef struct Provenance {
    ProvenanceKind kind;
    const char *model; /* the program's name */
    const char *lane;  /* HAND_WRITTEN: the lane; NULL otherwise */
} Provenance;

/* What a launch rests on. Compiled: at least one source line. HandWritten: a template and the lock
 * that holds it. The verifier refuses a launch that cites nothing. */
#define CITATION_LINES_MAX 24
typedef struct Citation {
    int line_count;
    int lines[CITATION_LINES_MAX];
    const char *template_name;
    const char *lock;
} Citation;

const char *provenance_text(ProvenanceKind kind); /* "Compiled", "HandWritten" */

#endif
