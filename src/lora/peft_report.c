/* What a load did, as JSON for people and programs, and as a hash for caches. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/float.h"
#include "base/hash.h"
#include "base/json.h"
#include "lora/peft.h"

/* ---- hash ---- */

typedef struct HashPart {
    const Tensor *tensor;
} HashPart;

static int by_name(const void *a, const void *b) {
    const HashPart *x = a, *y = b;
    return lg_str_cmp(x->tensor->name, y->tensor->name);
}

/* Numbers go in as text with a terminator each, so that no two lists of parts read the same. */
static void hash_tensor(Sha256 *h, const Tensor *t) {
    char bytes[65], line[192];
    sha256_hex(t->bytes ? (const void *)t->data : "", (size_t)t->bytes, bytes);
    int n = snprintf(line, sizeof line, "tensor %zu ", t->name.len);
    sha256_update(h, line, (size_t)n);
    sha256_update(h, t->name.ptr, t->name.len);
    n = snprintf(line, sizeof line, " %s %d", dtype_info(t->dtype)->name, t->rank);
    for (int i = 0; i < t->rank; i++)
        n += snprintf(line + n, sizeof line - (size_t)n, " %llu", (unsigned long long)t->shape[i]);
    sha256_update(h, line, (size_t)n);
    n = snprintf(line, sizeof line, " %s\n", bytes);
    sha256_update(h, line, (size_t)n);
}

/* alpha, r, rsLoRA and the patterns act through the scales alone. */
static void hash_entry(Sha256 *h, const PeftEntry *e) {
    char line[64];
    int n = snprintf(line, sizeof line, "module %zu ", e->module->name.len);
    sha256_update(h, line, (size_t)n);
    sha256_update(h, e->module->name.ptr, e->module->name.len);
    n = snprintf(line, sizeof line, " rank %d scale %08x dora %d\n", e->rank, float_bits(e->scale),
                 e->magnitude != NULL);
    sha256_update(h, line, (size_t)n);
    if (e->swapped)
        sha256_update(h, "swapped\n", strlen("swapped\n"));
}

static void hash_replaced(Sha256 *h, const PeftReplaced *r) {
    char line[96];
    int n = snprintf(line, sizeof line, "replaced %d %d from %llu\n", r->param, r->layer,
                     (unsigned long long)r->from);
    sha256_update(h, line, (size_t)n);
    for (uint64_t i = 0; r->tokens && i < r->rows; i++) {
        n = snprintf(line, sizeof line, "row %llu from %llu\n",
                     (unsigned long long)r->tokens[i].row, (unsigned long long)r->tokens[i].from);
        sha256_update(h, line, (size_t)n);
    }
}

LgStatus peft_hash(const PeftPlan *plan, Arena *arena, char hex[65], LgError *err) {
    HashPart *sorted = ARENA_ARRAY(arena, HashPart, plan->count * 4 + plan->replaced_count + 1);
    Sha256 *h = sorted ? sha256_create() : NULL;
    if (!h)
        return lg_fail_memory(err);
    size_t count = 0;
    for (size_t i = 0; i < plan->count; i++) {
        sorted[count++].tensor = plan->entries[i].a;
        sorted[count++].tensor = plan->entries[i].b;
        if (plan->entries[i].magnitude)
            sorted[count++].tensor = plan->entries[i].magnitude;
        if (plan->entries[i].b_bias)
            sorted[count++].tensor = plan->entries[i].b_bias;
    }
    for (size_t i = 0; i < plan->replaced_count; i++)
        if (peft_replaced_first(plan, i))
            sorted[count++].tensor = plan->replaced[i].tensor;
    qsort(sorted, count, sizeof *sorted, by_name);
    for (size_t i = 0; i < count; i++)
        hash_tensor(h, sorted[i].tensor);
    for (size_t i = 0; i < plan->count; i++)
        hash_entry(h, &plan->entries[i]);
    for (size_t i = 0; i < plan->replaced_count; i++)
        hash_replaced(h, &plan->replaced[i]);
    sha256_finish(h, hex);
    return LG_OK;
}

/* ---- report ---- */

bool peft_disregard(json_t *list, LgStr what, const char *why) {
    json_t *item = json_object();
    bool failed = json_object_set_new(item, "what", json_stringn_nocheck(what.ptr, what.len)) != 0;
    failed = json_object_set_new(item, "why", json_string(why)) != 0 || failed;
    return json_array_append_new(list, item) == 0 && !failed;
}

static json_t *site_json(const PeftEntry *e, const LoraTarget *t, const LangProgram *p) {
    LgStr site = p->tensors[p->sites[t->site].param].name;
    json_t *item = json_object();
    bool failed = json_object_set_new(item, "site", json_stringn(site.ptr, site.len)) != 0;
    LgStr module = e->module->name;
    failed |= json_object_set_new(item, "module", json_stringn(module.ptr, module.len)) != 0;
    failed |= json_object_set_new(item, "layer", json_integer(t->layer)) != 0;
    failed |= json_object_set_new(item, "rank", json_integer(e->rank)) != 0;
    failed |= json_object_set_new(item, "scale", json_real((double)e->scale)) != 0;
    failed |= json_object_set_new(item, "dora", json_boolean(e->magnitude != NULL)) != 0;
    if (t->expert >= 0)
        failed |= json_object_set_new(item, "expert", json_integer(t->expert)) != 0;
    if (e->module->experts)
        failed |=
            json_object_set_new(item, "experts", json_integer((json_int_t)e->module->experts)) != 0;
    if (failed) {
        json_decref(item);
        return NULL;
    }
    return item;
}

static json_t *replaced_json(const PeftReplaced *r, const LangProgram *p) {
    LgStr param = p->tensors[r->param].name, tensor = r->tensor->name;
    json_t *item = json_object();
    bool failed = json_object_set_new(item, "param", json_stringn(param.ptr, param.len)) != 0;
    failed |= json_object_set_new(item, "tensor", json_stringn(tensor.ptr, tensor.len)) != 0;
    failed |= json_object_set_new(item, "layer", json_integer(r->layer)) != 0;
    if (r->tokens)
        failed |= json_object_set_new(item, "rows", json_integer((json_int_t)r->rows)) != 0;
    if (failed) {
        json_decref(item);
        return NULL;
    }
    return item;
}

static bool add_replaced(json_t *report, const PeftPlan *plan, const LangProgram *p) {
    json_t *list = json_array();
    bool made = list != NULL;
    for (size_t i = 0; made && i < plan->replaced_count; i++)
        made = json_array_append_new(list, replaced_json(&plan->replaced[i], p)) == 0;
    return json_object_set_new(report, "replaced", list) == 0 && made;
}

static bool add_sites(json_t *list, const PeftPlan *plan, const LangProgram *p) {
    for (size_t i = 0; i < plan->count; i++)
        for (const LoraTarget *t = plan->entries[i].module->targets; t; t = t->next)
            if (json_array_append_new(list, site_json(&plan->entries[i], t, p)) != 0)
                return false;
    return true;
}

static bool add_note(json_t *notes, Buf *text) {
    bool added = !text->failed && json_array_append_new(notes, json_string(text->data)) == 0;
    buf_reset(text);
    return added;
}

static bool note_alphas(json_t *notes, const PeftPlan *plan, Buf *text) {
    size_t zero = 0, negative = 0;
    for (size_t i = 0; i < plan->count; i++) {
        zero += plan->entries[i].alpha == 0;
        negative += plan->entries[i].alpha < 0;
    }
    if (zero) {
        buf_printf(text, "alpha is 0 for %zu of %zu modules: there the adapter changes nothing",
                   zero, plan->count);
        if (!add_note(notes, text))
            return false;
    }
    if (negative) {
        buf_printf(text,
                   "alpha is negative for %zu of %zu modules: there the deltas are subtracted",
                   negative, plan->count);
        if (!add_note(notes, text))
            return false;
    }
    return true;
}

static bool note_patterns(json_t *notes, const PeftPatterns *p, Buf *text) {
    for (size_t i = 0; i < p->count; i++) {
        if (p->items[i].used)
            continue;
        buf_printf(text, "%s key \"", p->config_key);
        buf_printable(text, p->items[i].key, 120);
        buf_puts(text, "\" decides for no adapted module");
        if (!add_note(notes, text))
            return false;
    }
    return true;
}

static bool add_notes(json_t *notes, const PeftPlan *plan, const PeftConfig *config) {
    Buf text;
    buf_init(&text);
    bool added = note_alphas(notes, plan, &text) &&
                 note_patterns(notes, &config->rank_pattern, &text) &&
                 note_patterns(notes, &config->alpha_pattern, &text);
    if (added && plan->replaced_count) {
        buf_puts(&text, "the adapter replaces tensors of the base: it is used alone, at scale 1");
        added = add_note(notes, &text);
    }
    if (added && !config->has_r) {
        buf_puts(&text, "r is missing: ranks are those of the tensors");
        added = add_note(notes, &text);
    }
    buf_clear(&text);
    return added;
}

static bool add_totals(json_t *report, const PeftPlan *plan, const char *hash) {
    size_t unused = plan->copy_count + plan->replaced_tensors;
    for (size_t i = 0; i < plan->replaced_count; i++)
        unused -= peft_replaced_first(plan, i);
    json_int_t applied = (json_int_t)(plan->tensor_count - unused);
    json_t *counts = json_object();
    bool failed =
        json_object_set_new(counts, "modules", json_integer((json_int_t)plan->count)) != 0;
    failed |=
        json_object_set_new(counts, "tensors", json_integer((json_int_t)plan->tensor_count)) != 0;
    failed |= json_object_set_new(counts, "applied", json_integer(applied)) != 0;
    failed |= json_object_set_new(counts, "disregarded", json_integer((json_int_t)unused)) != 0;
    failed |= json_object_set_new(report, "tensors", counts) != 0;
    failed |= json_object_set_new(report, "bytes", json_integer((json_int_t)plan->bytes)) != 0;
    failed |= json_object_set_new(report, "hash", json_string(hash)) != 0;
    return !failed;
}

LgStatus peft_report(const PeftPlan *plan, const PeftConfig *config, const LangProgram *p,
                     const char *hash, json_t *disregarded, json_t **out, LgError *err) {
    json_t *report = json_object();
    json_t *sites = json_array(), *notes = json_array();
    bool made =
        report && sites && notes && add_sites(sites, plan, p) && add_notes(notes, plan, config);
    for (size_t i = 0; made && i < plan->copy_count; i++)
        made = peft_disregard(disregarded, plan->copies[i]->name,
                              "a copy of the base's weight, equal to it");
    /* each set_new takes its value over, on failure too */
    made = json_object_set_new(report, "sites", sites) == 0 && made;
    made = json_object_set_new(report, "disregarded", disregarded) == 0 && made;
    made = json_object_set_new(report, "notes", notes) == 0 && made;
    made = made && add_replaced(report, plan, p);
    made = made && add_totals(report, plan, hash);
    if (!made) {
        json_decref(report);
        return lg_fail_memory(err);
    }
    *out = report;
    return LG_OK;
}
