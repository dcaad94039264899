/* The public handles; for src/api alone. */
#ifndef LG_API_INTERNAL_H
#define LG_API_INTERNAL_H

#include "chat/set.h"
#include "engine/engine.h"
#include "text/tokenizer.h"

struct LgEngine {
    Engine *engine;
    Tokenizer *tokenizer; /* opened on first use */
    ChatSet chat;         /* opened on first use */
    LgSequence *first;    /* those that the caller holds */
};

/* Whichever of the two the caller gives back first: the sequence of a closed engine is empty. */
struct LgSequence {
    Sequence *sequence; /* NULL, as engine: the engine was closed */
    LgEngine *engine;
    LgSequence *next;
    Detok detok;
    bool detok_open;
    size_t text_ids; /* new ids already turned to text */
    bool text_done;
    bool text_given; /* text has been handed out; otherwise a call failed and the next gives it */
    Buf text;
};

/* text.c: the tokenizer of a checkpoint, from tokenizer.json or a GGUF's vocabulary. */
LgStatus api_tokenizer(LgEngine *e, LgError *err);
/* What a GGUF's metadata say: its vocabulary; its templates and tokens, into an empty set, which
 * the caller clears on failure too. */
LgStatus api_gguf_tokenizer(const Gguf *g, Tokenizer **out, LgError *err);
LgStatus api_gguf_templates(const Gguf *g, ChatSet *s, LgError *err);
/* A file of the checkpoint's folder; one that is not there is an empty one. */
LgStatus api_read_settings(const LgEngine *e, const char *name, Buf *out, LgError *err);

/* A jansson value as a string that the caller frees with lg_free_memory; takes the reference. */
LgStatus api_json_text(json_t *value, char **out, LgError *err);

/* Fails where an argument that must not be NULL is. */
#define API_NEED(pointer)                                                                          \
    do {                                                                                           \
        if (!(pointer))                                                                            \
            return lg_fail(error, LG_BAD_INPUT, 0, "%s: argument \"%s\" is NULL", __func__,        \
                           #pointer);                                                              \
    } while (0)

#endif
