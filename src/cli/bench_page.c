/* The page of `bench`: plots drawn here as SVG, the whole table, and what the numbers hold for. */
#include <string.h>

#include "base/json.h"
#include "cli/bench.h"

typedef enum Value { VALUE_PREFILL, VALUE_DECODE, VALUE_FIRST, VALUE_STEP } Value;
typedef enum Axis { AXIS_SEQUENCES, AXIS_ADAPTERS, AXIS_RANK, AXIS_PROMPT } Axis;

typedef struct Chart {
    const char *title, *note, *x, *y;
    BenchSeries series;
    Axis axis;
    Value value;
} Chart;

static const Chart charts[] = {
    {"Decode, all sequences together", "More is better.", "sequences", "ids per second",
     BENCH_SEQUENCES, AXIS_SEQUENCES, VALUE_DECODE},
    {"Time between two ids of a sequence", "Less is better.", "sequences", "milliseconds",
     BENCH_SEQUENCES, AXIS_SEQUENCES, VALUE_STEP},
    {"Different adapters in one batch", "As many sequences each time; more is better.", "adapters",
     "ids per second", BENCH_ADAPTERS, AXIS_ADAPTERS, VALUE_DECODE},
    {"Rank of the adapters", "Each sequence has its own; more is better.", "rank", "ids per second",
     BENCH_RANKS, AXIS_RANK, VALUE_DECODE},
    {"Prefill of one prompt", "More is better.", "ids of the prompt", "ids per second",
     BENCH_PROMPTS, AXIS_PROMPT, VALUE_PREFILL},
    {"Time to the first id", "Less is better.", "ids of the prompt", "milliseconds", BENCH_PROMPTS,
     AXIS_PROMPT, VALUE_FIRST},
    {"Decode of one sequence behind a context", "More is better.", "positions before",
     "ids per second", BENCH_CONTEXTS, AXIS_PROMPT, VALUE_DECODE},
};

enum { WIDTH = 440, HEIGHT = 270, LEFT = 62, RIGHT = 16, TOP = 14, BOTTOM = 44, TICKS = 4 };

static const BenchStat *value_of(const BenchPoint *p, Value value) {
    const BenchStat *const all[] = {&p->prefill_rate, &p->decode_rate, &p->first_ms, &p->step_ms};
    return all[value];
}

static int place_of(const BenchPoint *p, Axis axis) {
    const int all[] = {p->sequences, p->adapters, p->rank, p->prompt};
    return all[axis];
}

static void escape(Buf *out, const char *text) {
    for (; text && *text; text++) {
        switch (*text) {
        case '<':
            buf_puts(out, "&lt;");
            break;
        case '>':
            buf_puts(out, "&gt;");
            break;
        case '&':
            buf_puts(out, "&amp;");
            break;
        case '"':
            buf_puts(out, "&quot;");
            break;
        default:
            buf_putc(out, *text);
        }
    }
}

/* The least of 1, 2, 2.5, 5 times a power of ten that is not below value. */
static double round_up(double value) {
    static const double steps[] = {1, 2, 2.5, 5, 10};
    double power = 1;
    while (power * 10 <= value)
        power *= 10;
    while (power > value)
        power /= 10;
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++)
        if (steps[i] * power >= value)
            return steps[i] * power;
    return 10 * power;
}

typedef struct Plot {
    const Chart *chart;
    const BenchPoint *points;
    size_t count;
    int places[BENCH_POINTS_MAX]; /* the values of x, in the order of measurement */
    int place_count;
    double top;
    Buf *out;
} Plot;

/* Equal distances between neighbours: the numbers are powers more often than not. */
static double x_of(const Plot *p, int place) {
    int at = 0;
    while (at < p->place_count && p->places[at] != place)
        at++;
    double inner = WIDTH - LEFT - RIGHT;
    return LEFT + inner * (at + 0.5) / p->place_count;
}

static double y_of(const Plot *p, double value) {
    return TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / p->top);
}

static void survey(Plot *p) {
    double most = 0;
    for (size_t i = 0; i < p->count; i++) {
        const BenchPoint *q = &p->points[i];
        if (q->series != p->chart->series)
            continue;
        int place = place_of(q, p->chart->axis), at = 0;
        while (at < p->place_count && p->places[at] != place)
            at++;
        if (at == p->place_count)
            p->places[p->place_count++] = place;
        double high = value_of(q, p->chart->value)->high;
        most = high > most ? high : most;
    }
    p->top = most > 0 ? TICKS * round_up(most / TICKS) : 1;
}

static void axes(const Plot *p) {
    for (int i = 0; i <= TICKS; i++) {
        double value = p->top * i / TICKS, y = y_of(p, value);
        buf_printf(p->out,
                   "<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>"
                   "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.5g</text>\n",
                   LEFT, WIDTH - RIGHT, y, y, LEFT - 6, y + 4, value);
    }
    for (int i = 0; i < p->place_count; i++)
        buf_printf(p->out, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%d</text>\n",
                   x_of(p, p->places[i]), HEIGHT - BOTTOM + 17, p->places[i]);
    buf_printf(p->out,
               "<text class=\"name\" x=\"%d\" y=\"%d\" text-anchor=\"middle\">%s</text>"
               "<text class=\"name\" transform=\"translate(13 %d) rotate(-90)\" "
               "text-anchor=\"middle\">%s</text>\n",
               (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, p->chart->x, (TOP + HEIGHT - BOTTOM) / 2,
               p->chart->y);
}

/* A series of adapters or ranks is one line; others have the base apart. */
static bool on_line(const Plot *p, const BenchPoint *q, bool adapted) {
    bool one = p->chart->axis == AXIS_ADAPTERS || p->chart->axis == AXIS_RANK;
    return q->series == p->chart->series && (one ? adapted : (q->adapters > 0) == adapted);
}

static void line(const Plot *p, bool adapted) {
    const char *class = adapted ? "adapted" : "base";
    bool first = true;
    for (size_t i = 0; i < p->count; i++) {
        const BenchPoint *q = &p->points[i];
        if (!on_line(p, q, adapted))
            continue;
        buf_printf(p->out, first ? "<polyline class=\"%s\" points=\"" : "", class);
        buf_printf(p->out, "%s%.1f,%.1f", first ? "" : " ", x_of(p, place_of(q, p->chart->axis)),
                   y_of(p, value_of(q, p->chart->value)->median));
        first = false;
    }
    buf_puts(p->out, first ? "" : "\"/>\n");
    for (size_t i = 0; i < p->count; i++) {
        const BenchPoint *q = &p->points[i];
        const BenchStat *v = value_of(q, p->chart->value);
        if (!on_line(p, q, adapted))
            continue;
        double x = x_of(p, place_of(q, p->chart->axis));
        buf_printf(p->out,
                   "<line class=\"%s\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>"
                   "<circle class=\"%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\"><title>%s %d: %.5g "
                   "(%.5g to %.5g) %s</title></circle>\n",
                   class, x, x, y_of(p, v->low), y_of(p, v->high), class, x, y_of(p, v->median),
                   p->chart->x, place_of(q, p->chart->axis), v->median, v->low, v->high,
                   p->chart->y);
    }
}

static void chart(const Chart *c, const BenchPoint *points, size_t count, Buf *out) {
    Plot p = {.chart = c, .points = points, .count = count, .out = out};
    survey(&p);
    if (p.place_count == 0)
        return;
    bool base = false, adapted = false;
    for (size_t i = 0; i < count; i++) {
        base = base || on_line(&p, &points[i], false);
        adapted = adapted || on_line(&p, &points[i], true);
    }
    buf_printf(out,
               "<figure><figcaption><b>%s</b> %s%s%s</figcaption>\n<svg viewBox=\"0 0 %d %d\" "
               "role=\"img\" aria-label=\"%s\">\n",
               c->title, c->note, base ? " <span class=\"base\">● base</span>" : "",
               adapted && base ? " <span class=\"adapted\">● with adapters</span>" : "", WIDTH,
               HEIGHT, c->title);
    axes(&p);
    line(&p, false);
    line(&p, true);
    buf_puts(out, "</svg></figure>\n");
}

static void condition(Buf *out, const char *name, const char *value) {
    buf_printf(out, "<dt>%s</dt><dd>", name);
    escape(out, value);
    buf_puts(out, "</dd>\n");
}

static void conditions(const BenchConditions *c, const json_t *program, Buf *out) {
    static const char *const keys[] = {"model", "provenance", "backend",
                                       "level", "store",      "digest"};
    char text[160];
    buf_puts(out, "<h2>Conditions</h2>\n<dl>\n");
    condition(out, "checkpoint", c->model);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const char *value = json_string_value(json_object_get(program, keys[i]));
        condition(out, i == 0 ? "page" : keys[i], value ? value : "");
    }
    condition(out, "cpu", c->cpu);
    snprintf(text, sizeof text, "%d on %d cores", c->threads, c->cores);
    condition(out, "threads", text);
    snprintf(text, sizeof text, "%.2f", c->load_average);
    condition(out, "load average before", c->load_average < 0 ? "unknown" : text);
    condition(out, "system", c->system);
    condition(out, "date", c->date);
    condition(out, "ligature", lg_version());
    buf_puts(out, "</dl>\n");
    buf_printf(out,
               "<p>Each number is the median of %d repeats; bars and the columns “low” and “high” "
               "are the least and the most of them. A repeat begins all its sequences at once with "
               "random prompts of their own, waits until each has its first id, then decodes %d "
               "ids for each. Prefill is all prompts' ids over the time until the last sequence "
               "has its first id. Generated adapters have random numbers for the attention and MLP "
               "projections; a rank of 0 means no adapter, or one that was given.</p>\n",
               c->repeats, c->steps);
}

static void cells(Buf *out, const BenchStat *s) {
    buf_printf(out, "<td><b>%.5g</b><td>%.5g<td>%.5g", s->median, s->low, s->high);
}

static void table(const BenchPoint *points, size_t count, Buf *out) {
    static const char *const groups[] = {"prefill, ids/s", "first id, ms", "decode, ids/s",
                                         "step, ms"};
    buf_puts(out, "<h2>All numbers</h2>\n<div class=\"wide\"><table>\n<tr><th rowspan=2>series<th "
                  "rowspan=2>sequences<th rowspan=2>adapters<th rowspan=2>rank<th "
                  "rowspan=2>prompt");
    for (size_t i = 0; i < 4; i++)
        buf_printf(out, "<th colspan=3>%s", groups[i]);
    buf_puts(out, "</tr>\n<tr>");
    for (size_t i = 0; i < 4; i++)
        buf_puts(out, "<th>median<th>low<th>high");
    buf_puts(out, "</tr>\n");
    for (size_t i = 0; i < count; i++) {
        const BenchPoint *p = &points[i];
        buf_printf(out, "<tr><td>%s<td>%d<td>%d<td>%d<td>%d", bench_series_name(p->series),
                   p->sequences, p->adapters, p->rank, p->prompt);
        cells(out, &p->prefill_rate);
        cells(out, &p->first_ms);
        cells(out, &p->decode_rate);
        cells(out, &p->step_ms);
        buf_puts(out, "</tr>\n");
    }
    buf_puts(out, "</table></div>\n");
}

static const char head[] =
    "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
    "<meta name=\"viewport\" content=\"width=device-width\">\n"
    "<style>\n"
    ":root { color-scheme: light dark; --ink: #1c2430; --soft: #5d6877; --rule: #d9dee5;\n"
    "  --paper: #fff; --base: #2563a8; --adapted: #c2571a }\n"
    "@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --soft: #9aa5b4;\n"
    "  --rule: #343c48; --paper: #14181f; --base: #6fb0f2; --adapted: #f09a5b } }\n"
    "body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);\n"
    "  max-width: 1000px; margin: 2em auto; padding: 0 1em }\n"
    "main { display: grid; grid-template-columns: repeat(auto-fit, minmax(330px, 1fr)); gap: 1em "
    "}\n"
    "figure { margin: 0 } figcaption { color: var(--soft); font-size: 13px }\n"
    "figcaption b { color: var(--ink); display: block; font-size: 15px }\n"
    "svg { width: 100%; height: auto; fill: var(--soft); font-size: 11px }\n"
    ".grid { stroke: var(--rule) } .name { font-size: 12px }\n"
    "polyline { fill: none; stroke-width: 2 } line.base, line.adapted { stroke-width: 1.5 }\n"
    "polyline.base, line.base { stroke: var(--base) } circle.base { fill: var(--base) }\n"
    "polyline.adapted, line.adapted { stroke: var(--adapted) }\n"
    "circle.adapted { fill: var(--adapted) }\n"
    "span.base { color: var(--base) } span.adapted { color: var(--adapted) }\n"
    "dl { display: grid; grid-template-columns: max-content 1fr; gap: 0 1em }\n"
    "dt { color: var(--soft) } dd { margin: 0; overflow-wrap: anywhere }\n"
    ".wide { overflow-x: auto } table { border-collapse: collapse; font-size: 13px }\n"
    "td, th { padding: 2px 8px; text-align: right; border-bottom: 1px solid var(--rule) }\n"
    "td { font-variant-numeric: tabular-nums } td:first-child { text-align: left }\n"
    "</style>\n";

void bench_page(const BenchConditions *c, const json_t *program, const BenchPoint *points,
                size_t count, Buf *out) {
    buf_puts(out, head);
    buf_puts(out, "<title>Bench of ");
    escape(out, c->model);
    buf_puts(out, "</title></head>\n<body>\n<h1>Bench of ");
    escape(out, c->model);
    buf_puts(out, "</h1>\n<main>\n");
    for (size_t i = 0; i < sizeof charts / sizeof charts[0]; i++)
        chart(&charts[i], points, count, out);
    buf_puts(out, "</main>\n");
    conditions(c, program, out);
    table(points, count, out);
    buf_puts(out, "</body></html>\n");
}
