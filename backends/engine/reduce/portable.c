/* Reduction kernels for what every CPU of the architecture has: SSE2 on x86-64, NEON on AArch64. */
#ifdef __aarch64__
#define REDUCE_NAME "neon"
#else
#define REDUCE_NAME "portable"
#endif
/* Products of complex numbers are only here: where a fused multiply-add exists, GCC 12 uses it in vectorised complex
 * loops in spite of -ffp-contract=off, and the remainder of the loop rounds differently. */
#define REDUCE_COMPLEX
#define REDUCE_LEVEL reduce_portable
#include "reduce/kernels.h"
