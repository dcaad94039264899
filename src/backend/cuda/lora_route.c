/* The route of a step: rows of the same set of adapters together, in tiles. */
#include <string.h>

#include "backend/cuda/lora_cuda.h"
#include "base/mem.h"

/* Written turn by turn, so that a copy out of one may still run. */
#define MIRRORS 2

/* One block of memory, on the device and as often in pinned memory of the host. */
typedef struct Layout {
    size_t tiles, rows, scales, bytes;
} Layout;

struct CudaRoute {
    const CudaDevice *device;
    int rows, tile_rows;
    Layout layout;
    CudaPtr memory;
    unsigned char *mirror[MIRRORS];
    void *done[MIRRORS];
    int next, last;
    int32_t *group;    /* [rows] work: of each row, -1: none */
    int32_t *sets;     /* [rows][LGC_SET] of the groups */
    int32_t *position; /* [rows + 1] where each group's rows go */
};

static Layout layout_of(int rows) {
    Layout l = {.tiles = 16};
    l.rows = l.tiles + (size_t)rows * sizeof(LgcTile);
    l.scales = l.rows + (size_t)(rows + 3) / 4 * 16;
    l.bytes = l.scales + (size_t)rows * LGC_SET * sizeof(float);
    return l;
}

static LgStatus allocate(CudaRoute *r, LgError *err) {
    const size_t rows = (size_t)r->rows;
    r->group = lg_alloc_array(rows, sizeof *r->group);
    r->sets = lg_alloc_array(rows, LGC_SET * sizeof *r->sets);
    r->position = lg_alloc_array(rows + 1, sizeof *r->position);
    if (!r->group || !r->sets || !r->position)
        return lg_fail_memory(err);
    LG_TRY(cuda_alloc(r->device, r->layout.bytes, "a route", &r->memory, err));
    for (int i = 0; i < MIRRORS; i++) {
        void *mirror = NULL;
        LG_TRY(cuda_pinned_alloc(r->device, r->layout.bytes, &mirror, err));
        memset(mirror, 0, r->layout.bytes);
        r->mirror[i] = mirror;
        CUDA_TRY(&r->device->driver, event_create(&r->done[i], 2), "a route's event", err);
    }
    return LG_OK;
}

LgStatus cuda_route_create(const CudaDevice *d, int rows, CudaRoute **out, LgError *err) {
    CudaRoute *r = lg_calloc(1, sizeof *r);
    if (!r)
        return lg_fail_memory(err);
    r->device = d;
    r->rows = rows;
    r->tile_rows = cuda_lora_plan(rows).tile_rows;
    r->layout = layout_of(rows);
    LgStatus status = allocate(r, err);
    if (status != LG_OK) {
        cuda_route_destroy(r);
        return status;
    }
    *out = r;
    return LG_OK;
}

void cuda_route_destroy(CudaRoute *r) {
    if (!r)
        return;
    for (int i = 0; i < MIRRORS; i++) {
        if (r->done[i]) {
            r->device->driver.event_wait(r->done[i]);
            r->device->driver.event_destroy(r->done[i]);
        }
        cuda_pinned_free(r->device, r->mirror[i]);
    }
    cuda_free(r->device, r->memory);
    lg_free(r->group);
    lg_free(r->sets);
    lg_free(r->position);
    lg_free(r);
}

/* Two rows are of one group where they have the same slots; what is behind the first negative one
 * does not count. */
static bool same_set(const int32_t *a, const int32_t *b) {
    for (int m = 0; m < LGC_SET; m++) {
        if (a[m] < 0 || b[m] < 0)
            return a[m] < 0 && b[m] < 0;
        if (a[m] != b[m])
            return false;
    }
    return true;
}

/* Numbers the groups in the order of their first rows; rows of one sequence follow each other, so
 * the group before is looked at first. */
static int find_groups(CudaRoute *r, const int32_t *sets, int count) {
    int groups = 0, before = 0;
    memset(r->position, 0, ((size_t)r->rows + 1) * sizeof *r->position);
    for (int i = 0; i < count; i++) {
        const int32_t *set = &sets[(size_t)i * LGC_SET];
        int g = before;
        r->group[i] = -1;
        if (set[0] < 0)
            continue;
        if (g >= groups || !same_set(set, &r->sets[(size_t)g * LGC_SET]))
            for (g = 0; g < groups && !same_set(set, &r->sets[(size_t)g * LGC_SET]); g++)
                ;
        if (g == groups) {
            bool ended = false;
            for (int m = 0; m < LGC_SET; m++) {
                ended = ended || set[m] < 0;
                r->sets[(size_t)g * LGC_SET + (size_t)m] = ended ? -1 : set[m];
            }
            groups++;
        }
        r->group[i] = before = g;
        r->position[g + 1]++;
    }
    for (int g = 0; g < groups; g++)
        r->position[g + 1] += r->position[g];
    return groups;
}

static int make_tiles(const CudaRoute *r, int groups, LgcTile *tiles) {
    int count = 0;
    for (int g = 0; g < groups; g++)
        for (int32_t at = r->position[g]; at < r->position[g + 1]; at += r->tile_rows) {
            LgcTile *t = &tiles[count++];
            memset(t, 0, sizeof *t);
            memcpy(t->slot, &r->sets[(size_t)g * LGC_SET], sizeof t->slot);
            t->first = at;
            t->count =
                r->position[g + 1] - at < r->tile_rows ? r->position[g + 1] - at : r->tile_rows;
        }
    return count;
}

LgStatus cuda_route_write(CudaRoute *r, const int32_t *sets, const float *scales, int count,
                          void *stream, LgError *err) {
    const CudaDriver *c = &r->device->driver;
    if (count > r->rows)
        return lg_fail(err, LG_LIMIT, 0, "a route has room for %d rows, not for %d", r->rows,
                       count);
    CUDA_TRY(c, event_wait(r->done[r->next]), "waiting for a route's copy", err);
    unsigned char *to = r->mirror[r->next];
    int32_t *rows = (int32_t *)(void *)(to + r->layout.rows);
    float *own = (float *)(void *)(to + r->layout.scales);
    int groups = find_groups(r, sets, count);
    *(int32_t *)(void *)to = make_tiles(r, groups, (LgcTile *)(void *)(to + r->layout.tiles));
    for (int i = 0; i < count; i++) {
        if (r->group[i] < 0)
            continue;
        int32_t at = r->position[r->group[i]]++;
        rows[at] = i;
        memcpy(&own[(size_t)at * LGC_SET], &scales[(size_t)i * LGC_SET], LGC_SET * sizeof *own);
    }
    CUDA_TRY(c, copy_up(r->memory, to, r->layout.bytes, stream), "writing a route", err);
    CUDA_TRY(c, event_record(r->done[r->next], stream), "writing a route", err);
    r->last = r->next;
    r->next = (r->next + 1) % MIRRORS;
    return LG_OK;
}

void cuda_route_view(const CudaRoute *r, LgcRoute *out) {
    out->tile_count = r->memory;
    out->tiles = r->memory + r->layout.tiles;
    out->rows = r->memory + r->layout.rows;
    out->scales = r->memory + r->layout.scales;
}

int cuda_route_tiles(const CudaRoute *r, const LgcTile **tiles, const int32_t **rows) {
    const unsigned char *from = r->mirror[r->last];
    *tiles = (const LgcTile *)(const void *)(from + r->layout.tiles);
    *rows = (const int32_t *)(const void *)(from + r->layout.rows);
    return *(const int32_t *)(const void *)from;
}
