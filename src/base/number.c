#include "base/number.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>

/* The "C" locale takes no memory; where it cannot be had, the thread's own serves. */
typedef struct Scope {
    locale_t c, before;
} Scope;

static Scope scope_enter(void) {
    Scope s = {.c = newlocale(LC_ALL_MASK, "C", (locale_t)0)};
    if (s.c)
        s.before = uselocale(s.c);
    return s;
}

static void scope_leave(Scope s) {
    if (!s.c)
        return;
    uselocale(s.before);
    freelocale(s.c);
}

double number_parse(const char *text, char **end) {
    Scope s = scope_enter();
    double value = strtod(text, end);
    scope_leave(s);
    return value;
}

int number_print(char *text, size_t size, char form, int digits, double value) {
    Scope s = scope_enter();
    int n = form == 'e' ? snprintf(text, size, "%.*e", digits, value)
                        : snprintf(text, size, "%.*f", digits, value);
    scope_leave(s);
    return n;
}

void number_shortest(double value, char text[NUMBER_TEXT_MAX]) {
    Scope s = scope_enter();
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, NUMBER_TEXT_MAX, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    scope_leave(s);
}

void number_shortest_float(float value, char text[NUMBER_TEXT_MAX]) {
    Scope s = scope_enter();
    for (int digits = 1; digits <= 9; digits++) {
        snprintf(text, NUMBER_TEXT_MAX, "%.*g", digits, (double)value);
        if (strtof(text, NULL) == value)
            break;
    }
    scope_leave(s);
}
