/* When the process with JAX's coordinator has exited, jaxlib ends this one by abort(), in a thread of its own, at any time.
 * Before that Python (cpu_collectives.py), which is notified as early as jaxlib, must report the lost rank. */
#include <signal.h>
#include <stdatomic.h>
#include <time.h>

#include "acomm_xla.h"
#include "native.h"

#define LAST_WORD_LOOKS 1000 /* of a millisecond */

static struct sigaction last_word_before;
static atomic_bool last_word_said = true;

void acomm_mpi_said(void) { atomic_store(&last_word_said, true); }

/* Threads of Python are not jaxlib's: an abort there has other reasons. */
static void last_word_wait(int signal)
{
    const struct timespec millisecond = {.tv_nsec = 1000000};
    for (int i = 0; i < LAST_WORD_LOOKS && !atomic_load(&last_word_said) && !PyGILState_GetThisThreadState(); i++)
        nanosleep(&millisecond, NULL);
    sigaction(signal, &last_word_before, NULL);
    raise(signal);
}

void acomm_mpi_will_say(void)
{
    struct sigaction now = {.sa_handler = last_word_wait}, found;
    atomic_store(&last_word_said, false);
    sigemptyset(&now.sa_mask);
    if (!sigaction(SIGABRT, NULL, &found) && found.sa_handler != last_word_wait) {
        last_word_before = found;
        sigaction(SIGABRT, &now, NULL);
    }
}
