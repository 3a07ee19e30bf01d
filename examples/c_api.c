/* Smooths a ring of numbers that is spread over the ranks, from C, until it changes no more; c_api.py starts it.
 *     cc -shared -fPIC -I"$(python -c 'import arraycomm; print(arraycomm.get_include())')" c_api.c -o c_api.so
 */
#include <arraycomm.h>
#include <dlfcn.h>
#include <math.h>
#include <string.h>

static const acomm_api *api;

/* path: arraycomm.get_library(). 0, or 1: it is no library of this version's. */
int ring_open(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    acomm_api_function get = library ? (acomm_api_function)dlsym(library, "arraycomm_api") : NULL;
    api = get ? get(ACOMM_API_VERSION) : NULL;
    return !api;
}

/* An edge of ours to one neighbour, the same of the other one's to here. */
static int exchange(int64_t group, const double *edge, int to, double *other, int from)
{
    acomm_call send = {.kind = ACOMM_SEND, .in = edge, .count = 1, .dtype = ACOMM_FLOAT64, .root = to};
    acomm_call receive = {.kind = ACOMM_RECV, .out = other, .count = 1, .dtype = ACOMM_FLOAT64, .root = from};
    return api->exchange(group, &send, &receive);
}

/* x: n numbers of this rank's, and a place on either side. Steps that were made, or -1 and why in `text`. */
int ring_smooth(int64_t group, double *x, int n, double least, char *text, size_t bytes)
{
    int32_t rank, size;
    int code = api->place(group, &rank, &size), steps = 0;
    double change = least;
    for (; !code && change >= least; steps++) {
        int left = (rank + size - 1) % size, right = (rank + 1) % size;
        code = exchange(group, &x[1], left, &x[n + 1], right);
        code = code ? code : exchange(group, &x[n], right, &x[0], left);
        double before = x[0], mine = 0;
        for (int i = 1; i <= n; i++) {
            double smooth = (before + 2 * x[i] + x[i + 1]) / 4;
            mine = fmax(mine, fabs(smooth - x[i]));
            before = x[i];
            x[i] = smooth;
        }
        acomm_call most = {.kind = ACOMM_ALL_REDUCE, .in = &mine, .out = &change, .count = 1, .dtype = ACOMM_FLOAT64,
                           .redop = ACOMM_MAX};
        code = code ? code : api->run(group, &most);
    }
    if (code)
        api->error(text, bytes, NULL);
    return code ? -1 : steps;
}
