/* The functions of the kernels that test_reduce.py calls: in a library, whose own symbols the package's build hides. */
#include "acomm.h"
#include "reduce/table.h"

#define VISIBLE __attribute__((visibility("default")))

VISIBLE void library_reduce(const struct reduction *r, void *out, const void *const *in, int inputs, uint64_t count)
{
    reduce_all(r, out, in, inputs, count);
}

VISIBLE int library_force(const char *level)
{
    return reduce_force(level);
}

VISIBLE const char *library_level(void)
{
    return acomm_cpu();
}

VISIBLE void library_begin(const struct reduction *r, void *partial, const void *in, uint64_t count)
{
    reduce_begin(r, partial, in, count);
}

VISIBLE void library_finish(const struct reduction *r, void *out, const void *partial, uint64_t count)
{
    reduce_finish(r, out, partial, count);
}
