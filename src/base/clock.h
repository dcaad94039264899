/* Monotonic time. */
#ifndef LG_BASE_CLOCK_H
#define LG_BASE_CLOCK_H

double clock_seconds(void);

#endif
