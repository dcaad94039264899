/* Numbers as text, as in the C locale, whatever locale the program runs in: what is parsed and
 * emitted must not change where a decimal point is a comma. */
#ifndef LG_BASE_NUMBER_H
#define LG_BASE_NUMBER_H

#include <stddef.h>

#define NUMBER_TEXT_MAX 32 /* bytes for what number_shortest writes */

/* As strtod. end (may be NULL): behind what was read. */
double number_parse(const char *text, char **end);

/* As printf of "%.*f" or "%.*e" ('f' or 'e'). Returns the characters that it has or would have. */
int number_print(char *text, size_t size, char form, int digits, double value);

/* The fewest significant digits that read back as the same double, or as the same float. */
void number_shortest(double value, char text[NUMBER_TEXT_MAX]);
void number_shortest_float(float value, char text[NUMBER_TEXT_MAX]);

#endif
