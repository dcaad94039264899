/* The shape of an adapter site, read from its statement: what the checker asks for and the rewrite
 * builds on. */
#ifndef LG_LANG_SITES_H
#define LG_LANG_SITES_H

#include "lang/lang.h"

typedef struct SiteShape {
    bool lookup;       /* y = W[table[..], out..] */
    const LangExpr *x; /* product: the other factor; NULL for a lookup */
    const LangExpr *w;
    /* W's indexes in stored order: [0, lookup_count) are lookups (experts), then out, then in.  Of
     * a lookup site: the looked-up axis alone is "in", and the rest is out. */
    int lookup_count, out_begin, out_end, in_begin, in_end;
} SiteShape;

/* NULL, or why the statement is no site of the param (a phrase for a message). */
const char *site_shape(const LangTensor *tensors, const LangStmt *stmt, int param, SiteShape *out);

#endif
