/* What templates can call, as tables: filters, tests, methods, functions. */
#ifndef LG_CHAT_LIBRARY_H
#define LG_CHAT_LIBRARY_H

#include "base/status.h"
#include "chat/value.h"

#define TPL_PARAMETERS_MAX 5

typedef struct TplRun TplRun;

/* Arguments as a call has them. */
typedef struct TplArgs {
    const TplValue *items;
    size_t count;
    const LgStr *names;
    const TplValue *named;
    size_t named_count;
} TplArgs;

/* argv: the parameters in their order, absent ones TPL_ABSENT. */
typedef LgStatus (*TplFilterCall)(TplRun *r, TplValue self, const TplValue *argv, TplValue *out);
/* For those that hand arguments on. */
typedef LgStatus (*TplFilterOpen)(TplRun *r, TplValue self, const TplArgs *args, TplValue *out);
typedef LgStatus (*TplTestCall)(TplRun *r, TplValue self, TplValue other, bool *out);

typedef struct TplFilter {
    const char *name;
    const char *parameters; /* "old new count" */
    int required;
    TplFilterCall call;
    TplFilterOpen open; /* where call is NULL */
} TplFilter;

typedef struct TplTest {
    const char *name;
    int argument_count; /* 0 or 1 */
    TplTestCall call;
} TplTest;

typedef struct TplMethod {
    TplValueKind self;
    const char *name;
    const char *parameters;
    int required;
    TplFilterCall call;
    TplFilterOpen
        open; /* where call is NULL; both NULL: Python has it, templates may not call it */
} TplMethod;

typedef struct TplFunction {
    const char *name;
    LgStatus (*call)(TplRun *r, const TplArgs *args,
                     TplValue *out); /* NULL: Jinja has it, refused at parse */
} TplFunction;

const TplFilter *tpl_filter_find(LgStr name);
const TplTest *tpl_test_find(LgStr name);
const TplMethod *tpl_method_find(TplValueKind self, LgStr name);
const TplFunction *tpl_function_find(LgStr name);
void tpl_filter_names(Buf *out);
void tpl_test_names(Buf *out);
bool tpl_method_is_known(LgStr name); /* some type has it, called or not */
bool tpl_function_is_refused(LgStr name);
void tpl_method_names(Buf *out); /* those that are served */
void tpl_function_names(Buf *out);

/* Finds the parameters' values in args; what: "filter replace". */
LgStatus tpl_bind(TplRun *r, const char *what, const char *name, const char *parameters,
                  int required, const TplArgs *args, TplValue *argv);

/* The rows by part; each ends with a row without a name. */
extern const TplFilter tpl_text_filters[], tpl_sequence_filters[];
extern const TplMethod tpl_string_methods[], tpl_other_methods[];

#endif
