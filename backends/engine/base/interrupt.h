/* Whether whoever waits is to stop for a signal. */
#ifndef ACOMM_INTERRUPT_H
#define ACOMM_INTERRUPT_H
#include <stdbool.h>

/* Whether the caller's signal handlers raised: asks what acomm_set_interrupt() installed. Only for threads of the caller. */
bool interrupt_pending(void);
#endif
