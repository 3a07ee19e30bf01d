/* The types and operations of reductions in MPI: its own ones where their results are ours, and otherwise types of so many bytes
 * with an operation over our kernels. Partial results are reduced (reduce.h), so narrow floats are float32 here, as between our
 * own algorithms; MPI's minimum of floats ignores NaN, its bool no sum, and Open MPI's sums of narrow integers do not wrap but
 * stop at the largest number. */
#include "mpi_fabric.h"
#include "reduce/reduce.h"

/* Of our own, as the library has written them; 0: not made yet. A type says what our operation does with it. */
static uint64_t types[ACOMM_DTYPES][ACOMM_REDOPS], ours;

static bool has_nan(int dtype)
{
    return dtype == ACOMM_FLOAT32 || dtype == ACOMM_FLOAT64 || reduce_complex(dtype);
}

/* MPI's operator is the one of all partial results: inout = in op inout. */
static void type_combine(void *in, void *inout, int *count, void *type)
{
    acomm_mpi *mpi = mpi_loaded();
    mpi_handle given = mpi_read(mpi, type);
    for (int dtype = 0; dtype < ACOMM_DTYPES; dtype++)
        for (int redop = 0; redop < ACOMM_REDOPS; redop++)
            if (types[dtype][redop] && mpi_read(mpi, &types[dtype][redop]) == given) {
                struct reduction r = {.dtype = dtype, .redop = redop};
                reduce_combine(&r, inout, in, (uint64_t)*count, true);
                return;
            }
}

static int type_make(acomm_mpi *mpi, int dtype, int redop)
{
    uint64_t type = 0;
    int rc = ours ? 0 : mpi->Op_create(type_combine, 1, &ours);
    rc = rc ? rc : mpi->Type_contiguous((int)acomm_dtype_bytes(dtype), mpi->byte, &type);
    rc = rc ? rc : mpi->Type_commit(&type);
    types[dtype][redop] = type;
    return rc;
}

int mpi_type_of(acomm_mpi *mpi, int dtype, int redop, struct mpi_type *out)
{
    dtype = reduce_partial_dtype(dtype);
    redop = redop == ACOMM_AVG || redop == ACOMM_PREMUL_SUM ? ACOMM_SUM : redop;
    if (reduce_complex(dtype) && redop == ACOMM_SUM) {
        int part = dtype == ACOMM_COMPLEX64 ? ACOMM_FLOAT32 : ACOMM_FLOAT64;
        *out = (struct mpi_type){mpi->types[part], mpi->ops[redop], 2};
        return 0;
    }
    bool exact = !has_nan(dtype) || redop == ACOMM_SUM || redop == ACOMM_PRODUCT;
    if (mpi->types[dtype] && exact) {
        *out = (struct mpi_type){mpi->types[dtype], mpi->ops[redop], 1};
        return 0;
    }
    int rc = types[dtype][redop] ? 0 : type_make(mpi, dtype, redop);
    *out = (struct mpi_type){mpi_read(mpi, &types[dtype][redop]), mpi_read(mpi, &ours), 1};
    return rc;
}
