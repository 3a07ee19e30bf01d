/* Reduction kernels for what every CPU of the architecture has: SSE2 on x86-64, NEON on AArch64. */
#ifdef __aarch64__
#define REDUCE_NAME "neon"
#else
#define REDUCE_NAME "portable"
#endif
#define REDUCE_LEVEL reduce_portable
#include "reduce_kernels.h"
