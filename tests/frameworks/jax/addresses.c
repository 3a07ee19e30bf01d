/* Stands between jaxlib and the engine, as the library that MPITRAMPOLINE_LIB names: notes the arrays of each call and passes it on. What
 * is not defined here jaxlib finds in the engine, which this is linked against. ENGINE: its file. */
#include <dlfcn.h>
#include <stdint.h>

static struct { const void *in; void *out; } noted[64];
static int calls;

int noted_calls(void) { return calls; }
uintptr_t noted_in(int call) { return (uintptr_t)noted[call].in; }
uintptr_t noted_out(int call) { return (uintptr_t)noted[call].out; }
void noted_none(void) { calls = 0; }

static void *note(const char *name, const void *in, void *out)
{
    noted[calls].in = in;
    noted[calls++].out = out;
    return dlsym(dlopen(ENGINE, RTLD_NOW | RTLD_NOLOAD), name);
}

#define PASS(name, in, out, types, ...) \
    int MPIABI_##name types { return ((int (*) types)note("MPIABI_" #name, in, out))(__VA_ARGS__); }

PASS(Allreduce, in, out, (void *in, void *out, int count, intptr_t type, intptr_t op, void *comm), in, out, count, type, op, comm)
PASS(Allgather, in, out, (void *in, int count, intptr_t type, void *out, int counts, intptr_t types, void *comm),
     in, count, type, out, counts, types, comm)
PASS(Reduce_scatter, in, out, (void *in, void *out, int *counts, intptr_t type, intptr_t op, void *comm),
     in, out, counts, type, op, comm)
PASS(Sendrecv, in, out, (void *in, int count, intptr_t type, int to, int tag, void *out, int count_in, intptr_t type_in, int from,
     int tag_in, void *comm, void *status), in, count, type, to, tag, out, count_in, type_in, from, tag_in, comm, status)
PASS(Isend, in, 0, (void *in, int count, intptr_t type, int to, int tag, void *comm, void **request),
     in, count, type, to, tag, comm, request)
PASS(Irecv, 0, out, (void *out, int count, intptr_t type, int from, int tag, void *comm, void **request),
     out, count, type, from, tag, comm, request)
