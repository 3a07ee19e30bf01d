/* Whether whoever waits is to stop for a signal: what Python installs is asked, in every wait. */
#include "base/interrupt.h"

#include <stddef.h>

#include "acomm.h"

static int (*interrupt_check)(void);

void acomm_set_interrupt(int (*check)(void))
{
    interrupt_check = check;
}

bool interrupt_pending(void)
{
    return interrupt_check && interrupt_check();
}
