/* safetensors: 8 bytes of header length, a JSON header, then the tensors' bytes without a gap.
 * Nothing is read that the header does not account for, and nothing in the header is believed
 * before it has been compared with the file's size. Format: github.com/huggingface/safetensors,
 * "Format". */
#include "formats/safetensors.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "formats/tensor_set.h"

#define HEADER_BYTES_MAX 100000000u /* the format's own limit */
#define INDEX_BYTES_MAX (64u << 20)
#define SHARDS_MAX 4096

/* The types that the format names; each has the same name in our table. */
static const DType safetensors_dtypes[] = {
    DTYPE_F64,     DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_F8_E4M3,
    DTYPE_F8_E5M2, DTYPE_I64, DTYPE_I32, DTYPE_I16,  DTYPE_I8,
    DTYPE_U64,     DTYPE_U32, DTYPE_U16, DTYPE_U8,   DTYPE_BOOL,
};

/* What one file's parse carries around. */
typedef struct Reader {
    const char *what;
    const unsigned char *data; /* the bytes after the header */
    uint64_t data_bytes, data_offset;
    TensorSet *set;
    TensorSpan *spans;
    size_t span_count;
    LgError *err;
} Reader;

static LgStatus fail_tensor(Reader *r, LgStr name, const char *fault) {
    Buf shown;
    buf_init(&shown);
    buf_printable(&shown, name, 200);
    LgStatus status =
        lg_fail(r->err, LG_BAD_INPUT, 0, "%s: tensor \"%s\": %s", r->what, shown.data, fault);
    buf_clear(&shown);
    return status;
}

static bool dtype_of(LgStr name, DType *out) {
    for (size_t i = 0; i < sizeof safetensors_dtypes / sizeof safetensors_dtypes[0]; i++) {
        if (lg_str_eq_c(name, dtype_info(safetensors_dtypes[i])->name)) {
            *out = safetensors_dtypes[i];
            return true;
        }
    }
    return false;
}

static bool natural_of(const json_t *value, uint64_t *out) {
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return false;
    *out = (uint64_t)json_integer_value(value);
    return true;
}

static LgStatus read_dtype(Reader *r, Tensor *t, const json_t *info) {
    LgStr name = lg_json_string(json_object_get(info, "dtype"));
    if (!name.ptr)
        return fail_tensor(r, t->name, "\"dtype\" is missing or no string");
    if (dtype_of(name, &t->dtype))
        return LG_OK;
    Buf fault;
    buf_init(&fault);
    buf_puts(&fault, "dtype \"");
    buf_printable(&fault, name, 40);
    buf_puts(&fault, "\" is not known; F32, F16, BF16 and the format's other plain types are");
    LgStatus status = fail_tensor(r, t->name, fault.data);
    buf_clear(&fault);
    return status;
}

static LgStatus read_shape(Reader *r, Tensor *t, const json_t *info) {
    const json_t *shape = json_object_get(info, "shape");
    if (!json_is_array(shape))
        return fail_tensor(r, t->name, "\"shape\" is missing or no list");
    if (json_array_size(shape) > TENSOR_RANK_MAX)
        return fail_tensor(r, t->name, "it has more than 4 axes");
    t->rank = (int)json_array_size(shape);
    for (int i = 0; i < t->rank; i++)
        if (!natural_of(json_array_get(shape, (size_t)i), &t->shape[i]))
            return fail_tensor(r, t->name, "an axis of its shape is no natural number of 63 bits");
    return LG_OK;
}

static LgStatus read_span(Reader *r, Tensor *t, const json_t *info) {
    const json_t *offsets = json_object_get(info, "data_offsets");
    uint64_t begin, end, elems, bytes;
    if (!json_is_array(offsets) || json_array_size(offsets) != 2 ||
        !natural_of(json_array_get(offsets, 0), &begin) ||
        !natural_of(json_array_get(offsets, 1), &end))
        return fail_tensor(r, t->name, "\"data_offsets\" is no pair of natural numbers");
    if (begin > end)
        return fail_tensor(r, t->name, "its data ends before it begins");
    if (end > r->data_bytes)
        return fail_tensor(r, t->name, "its data lies past the end of the file");
    if (!tensor_shape_bytes(t->dtype, t->rank, t->shape, &elems, &bytes))
        return fail_tensor(r, t->name, "its shape multiplies to more than 64 bits");
    if (bytes != end - begin)
        return fail_tensor(r, t->name, "its shape needs another number of bytes than its data has");
    t->data = r->data ? r->data + begin : NULL;
    t->bytes = bytes;
    r->spans[r->span_count++] = (TensorSpan){begin, end, r->set->count};
    return LG_OK;
}

static LgStatus read_tensor(Reader *r, LgStr name, const json_t *info) {
    Tensor t = {.name = name};
    if (!json_is_object(info))
        return fail_tensor(r, name, "its entry is no object");
    LG_TRY(read_dtype(r, &t, info));
    LG_TRY(read_shape(r, &t, info));
    LG_TRY(read_span(r, &t, info));
    if (json_object_size(info) != 3)
        return fail_tensor(r, name, "its entry has keys other than dtype, shape and data_offsets");
    return tensor_set_add(r->set, r->what, &t, r->err);
}

static LgStatus check_metadata(Reader *r, json_t *metadata) {
    const char *key;
    json_t *value;
    bool strings = json_is_object(metadata);
    json_object_foreach(metadata, key, value) {
        strings = strings && json_is_string(value);
    }
    if (!strings)
        return lg_fail(r->err, LG_BAD_INPUT, 8, "%s: \"__metadata__\" must be an object of strings",
                       r->what);
    return LG_OK;
}

/* The spans must tile the data: an overlap would let two names share bytes, and a gap hides bytes
 * from every check. */
static LgStatus check_tiling(Reader *r) {
    tensor_spans_sort(r->spans, r->span_count);
    uint64_t end = 0;
    for (size_t i = 0; i < r->span_count; i++) {
        LgStr name = r->set->items[r->spans[i].tensor].name;
        if (r->spans[i].begin < end)
            return fail_tensor(r, name, "its data overlaps that of another tensor");
        if (r->spans[i].begin > end)
            return fail_tensor(r, name, "bytes in front of its data belong to no tensor");
        end = r->spans[i].end;
    }
    if (end != r->data_bytes)
        return lg_fail(r->err, LG_BAD_INPUT, r->data_offset + end,
                       "%s: %llu bytes after the last tensor belong to no tensor", r->what,
                       (unsigned long long)(r->data_bytes - end));
    return LG_OK;
}

static LgStatus read_entries(Reader *r, json_t *header) {
    const char *key;
    size_t key_len;
    json_t *value;
    json_object_keylen_foreach(header, key, key_len, value) {
        LgStr name = {key, key_len};
        if (lg_str_eq_c(name, "__metadata__"))
            LG_TRY(check_metadata(r, value));
        else
            LG_TRY(read_tensor(r, name, value));
    }
    return LG_OK;
}

static LgStatus read_header(Reader *r, const unsigned char *data, size_t size, json_t **header) {
    if (size < 8)
        return lg_fail(r->err, LG_BAD_INPUT, size,
                       "%s: the file has %zu bytes; a safetensors file has at least 8", r->what,
                       size);
    uint64_t length = 0;
    for (int i = 7; i >= 0; i--)
        length = length << 8 | data[i];
    if (length > size - 8)
        return lg_fail(r->err, LG_BAD_INPUT, 0,
                       "%s: the header length is %llu, but only %zu bytes follow it", r->what,
                       (unsigned long long)length, size - 8);
    if (length > HEADER_BYTES_MAX)
        return lg_fail(r->err, LG_LIMIT, 0, "%s: the header has %llu bytes; the format allows %u",
                       r->what, (unsigned long long)length, HEADER_BYTES_MAX);
    LgStr text = {(const char *)data + 8, (size_t)length};
    if (!lg_str_starts(text, "{"))
        return lg_fail(r->err, LG_BAD_INPUT, 8, "%s: the header does not begin with \"{\"",
                       r->what);
    LgStatus status = lg_json_parse(text, "header", header, r->err);
    if (status != LG_OK)
        return lg_fail_context(r->err, status, "%s", r->what);
    r->data_offset = 8 + length;
    r->data_bytes = size - 8 - length;
    r->data = data + r->data_offset;
    return LG_OK;
}

/* Adds the tensors of one file in memory to set. */
static LgStatus parse_into(const unsigned char *data, size_t size, const char *what, TensorSet *set,
                           LgError *err) {
    Reader r = {.what = what, .set = set, .err = err};
    json_t *header = NULL;
    LgStatus status = read_header(&r, data, size, &header);
    if (status != LG_OK)
        return status;
    r.spans = lg_alloc_array(json_object_size(header) + 1, sizeof *r.spans);
    status = r.spans ? read_entries(&r, header) : lg_fail_memory(err);
    if (status == LG_OK)
        status = check_tiling(&r);
    lg_free(r.spans);
    json_decref(header);
    return status;
}

LgStatus safetensors_parse(const unsigned char *data, size_t size, const char *what,
                           TensorSet **out, LgError *err) {
    TensorSet *set = tensor_set_create();
    LgStatus status = set ? parse_into(data, size, what, set, err) : lg_fail_memory(err);
    if (status == LG_OK)
        *out = set;
    else
        tensor_set_close(set);
    return status;
}

/* Maps the file `name` of dir and adds its tensors. */
static LgStatus add_file(const char *dir, LgStr name, TensorSet *set, LgError *err) {
    Buf path;
    buf_init(&path);
    FileMap map = {0};
    LgStatus status = file_inside(dir, name, &path, err);
    if (status == LG_OK)
        status = file_map_open(path.data, &map, err);
    if (status == LG_OK) {
        const unsigned char *data = map.data;
        size_t size = map.size;
        status = tensor_set_adopt(set, &map, err);
        buf_reset(&path);
        buf_str(&path, name);
        if (status == LG_OK && path.failed)
            status = lg_fail_memory(err);
        if (status == LG_OK)
            status = parse_into(data, size, path.data, set, err);
    }
    buf_clear(&path);
    return status;
}

/* The files that an index names, each read once, at its first mention. */
typedef struct Shards {
    const char *dir, *index_name;
    Map numbers;   /* file name → its number */
    size_t *first; /* [number] its first tensor in the set; one more entry than shards */
    size_t count;
    TensorSet *set;
    LgError *err;
} Shards;

static LgStatus fail_entry(const Shards *s, LgStr tensor, LgStr file, const char *fault) {
    Buf shown;
    buf_init(&shown);
    buf_puts(&shown, "tensor \"");
    buf_printable(&shown, tensor, 200);
    buf_puts(&shown, "\", file \"");
    buf_printable(&shown, file, 200);
    LgStatus status =
        lg_fail(s->err, LG_BAD_INPUT, 0, "%s: %s\": %s", s->index_name, shown.data, fault);
    buf_clear(&shown);
    return status;
}

static LgStatus read_shard(Shards *s, LgStr tensor, const json_t *value) {
    LgStr file = lg_json_string(value);
    if (!file.ptr)
        return fail_entry(s, tensor, file, "the file is no string");
    if (map_has(&s->numbers, file))
        return LG_OK;
    if (s->count == SHARDS_MAX)
        return lg_fail(s->err, LG_LIMIT, 0, "%s: it names more than %d files", s->index_name,
                       SHARDS_MAX);
    if (!lg_str_ends(file, ".safetensors"))
        return fail_entry(s, tensor, file, "a .safetensors file is expected");
    if (!map_set(&s->numbers, file, s->count))
        return lg_fail_memory(s->err);
    s->first[s->count++] = s->set->count;
    LgStatus status = add_file(s->dir, file, s->set, s->err);
    s->first[s->count] = s->set->count;
    if (status == LG_NOT_FOUND)
        return fail_entry(s, tensor, file, "there is no such file");
    return status;
}

static LgStatus check_entry(const Shards *s, LgStr tensor, const json_t *value) {
    LgStr file = lg_json_string(value);
    uint64_t number, index;
    if (!map_get(&s->numbers, file, &number) || !map_get(&s->set->by_name, tensor, &index) ||
        index < s->first[number] || index >= s->first[number + 1])
        return fail_entry(s, tensor, file, "the file has no such tensor");
    return LG_OK;
}

static LgStatus read_weight_map(Shards *s, json_t *map) {
    const char *key;
    size_t key_len;
    json_t *value;
    json_object_keylen_foreach(map, key, key_len, value) {
        LG_TRY(read_shard(s, (LgStr){key, key_len}, value));
    }
    json_object_keylen_foreach(map, key, key_len, value) {
        LG_TRY(check_entry(s, (LgStr){key, key_len}, value));
    }
    return LG_OK;
}

static LgStatus read_index(const char *dir, LgStr name, TensorSet *set, LgError *err) {
    Buf path, text;
    buf_init(&path);
    buf_init(&text);
    json_t *index = NULL;
    Shards s = {.dir = dir, .set = set, .err = err, .index_name = name.ptr};
    map_init(&s.numbers);
    LgStatus status = file_inside(dir, name, &path, err);
    if (status == LG_OK)
        status = file_read(path.data, INDEX_BYTES_MAX, &text, err);
    if (status == LG_OK)
        status = lg_json_parse(buf_view(&text), s.index_name, &index, err);
    if (status != LG_OK)
        goto done;
    json_t *map = json_object_get(index, "weight_map");
    if (!json_is_object(map)) {
        status = lg_fail(err, LG_BAD_INPUT, 0, "%s: \"weight_map\" is missing or no object",
                         s.index_name);
        goto done;
    }
    s.first = lg_calloc(SHARDS_MAX + 1, sizeof *s.first);
    status = s.first ? read_weight_map(&s, map) : lg_fail_memory(err);
done:
    lg_free(s.first);
    map_clear(&s.numbers);
    json_decref(index);
    buf_clear(&path);
    buf_clear(&text);
    return status;
}

LgStatus safetensors_open(const char *dir, const char *stem, TensorSet **out, LgError *err) {
    LgError found = {0};
    Buf name;
    buf_init(&name);
    buf_printf(&name, "%s.safetensors", stem);
    TensorSet *set = tensor_set_create();
    LgStatus status =
        set && !name.failed ? add_file(dir, buf_view(&name), set, &found) : lg_fail_memory(&found);
    if (status == LG_NOT_FOUND) {
        buf_puts(&name, ".index.json");
        status =
            name.failed ? lg_fail_memory(&found) : read_index(dir, buf_view(&name), set, &found);
        if (status == LG_NOT_FOUND)
            lg_fail(&found, LG_NOT_FOUND, 0,
                    "\"%s\" has neither %s.safetensors nor %s.safetensors.index.json", dir, stem,
                    stem);
    }
    buf_clear(&name);
    if (status == LG_OK) {
        *out = set;
        return LG_OK;
    }
    tensor_set_close(set);
    if (err)
        *err = found;
    return status;
}
