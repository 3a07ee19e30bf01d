/* Element types in four languages: the engine's numbers, DLPack codes, PEP 3118 letters and NumPy's names. */
#include "native.h"
#include <string.h>

#define ROW(number, label, width, code, format) [number] = {label, width, {code, 8 * (width), 1}, format}
const struct dtype_row dtype_rows[ACOMM_DTYPES] = {
    ROW(ACOMM_BOOL, "bool", 1, DL_BOOL, "?"),
    ROW(ACOMM_INT8, "int8", 1, DL_INT, "b"),
    ROW(ACOMM_INT16, "int16", 2, DL_INT, "h"),
    ROW(ACOMM_INT32, "int32", 4, DL_INT, "i"),
    ROW(ACOMM_INT64, "int64", 8, DL_INT, "q"),
    ROW(ACOMM_UINT8, "uint8", 1, DL_UINT, "B"),
    ROW(ACOMM_UINT16, "uint16", 2, DL_UINT, "H"),
    ROW(ACOMM_UINT32, "uint32", 4, DL_UINT, "I"),
    ROW(ACOMM_UINT64, "uint64", 8, DL_UINT, "Q"),
    ROW(ACOMM_FLOAT16, "float16", 2, DL_FLOAT, "e"),
    ROW(ACOMM_BFLOAT16, "bfloat16", 2, DL_BFLOAT, NULL),
    ROW(ACOMM_FLOAT32, "float32", 4, DL_FLOAT, "f"),
    ROW(ACOMM_FLOAT64, "float64", 8, DL_FLOAT, "d"),
    ROW(ACOMM_COMPLEX64, "complex64", 8, DL_COMPLEX, "Zf"),
    ROW(ACOMM_COMPLEX128, "complex128", 16, DL_COMPLEX, "Zd"),
    ROW(ACOMM_FLOAT8_E3M4, "float8_e3m4", 1, DL_FLOAT8_E3M4, NULL),
    ROW(ACOMM_FLOAT8_E4M3, "float8_e4m3", 1, DL_FLOAT8_E4M3, NULL),
    ROW(ACOMM_FLOAT8_E4M3B11FNUZ, "float8_e4m3b11fnuz", 1, DL_FLOAT8_E4M3B11FNUZ, NULL),
    ROW(ACOMM_FLOAT8_E4M3FN, "float8_e4m3fn", 1, DL_FLOAT8_E4M3FN, NULL),
    ROW(ACOMM_FLOAT8_E4M3FNUZ, "float8_e4m3fnuz", 1, DL_FLOAT8_E4M3FNUZ, NULL),
    ROW(ACOMM_FLOAT8_E5M2, "float8_e5m2", 1, DL_FLOAT8_E5M2, NULL),
    ROW(ACOMM_FLOAT8_E5M2FNUZ, "float8_e5m2fnuz", 1, DL_FLOAT8_E5M2FNUZ, NULL),
    ROW(ACOMM_FLOAT8_E8M0FNU, "float8_e8m0fnu", 1, DL_FLOAT8_E8M0FNU, NULL),
};

/* NumPy's own dtype objects, in the order in which their types were first met. Arrays bring others too (unpickled, with metadata,
 * longlong), as many as they please: those are read each time, and nothing is kept of them. */
static struct { PyObject *descr; int dtype; } descrs[ACOMM_DTYPES];
static int descrs_known;

int dtype_of_dlpack(struct dl_dtype dl)
{
    for (int i = 0; i < ACOMM_DTYPES; i++)
        if (!memcmp(&dtype_rows[i].dl, &dl, sizeof dl))
            return i;
    return -1;
}

static int of_label(const char *label)
{
    for (int i = 0; i < ACOMM_DTYPES; i++)
        if (!strcmp(dtype_rows[i].label, label))
            return i;
    return -1;
}

/* Letters whose size depends on the platform ('l', 'n') are understood by their kind and the item's size. */
static int code_of_letter(const char *letter)
{
    if (letter[0] == 'Z')
        return letter[1] && !letter[2] && strchr("fd", letter[1]) ? DL_COMPLEX : -1;
    if (!letter[0] || letter[1])
        return -1;
    if (strchr("bhilqn", letter[0]))
        return DL_INT;
    if (strchr("BHILQN", letter[0]))
        return DL_UINT;
    if (strchr("efd", letter[0]))
        return DL_FLOAT;
    return letter[0] == '?' ? DL_BOOL : -1;
}

static int read_format(const char *format, Py_ssize_t width)
{
    const char native = PY_LITTLE_ENDIAN ? '<' : '>';
    if (*format == '@' || *format == '=' || *format == native)
        format++;
    int code = code_of_letter(format);
    if (code < 0 || width < 1 || width > 16)
        return -1;
    return dtype_of_dlpack((struct dl_dtype){(uint8_t)code, (uint8_t)(8 * width), 1});
}

int dtype_of_format(const char *format, Py_ssize_t width)
{
    static int8_t known[256]; /* by letter: 1 + what it was last */
    if (!format)
        return width == 1 ? ACOMM_UINT8 : -1;
    int8_t *last = &known[format[0] && !format[1] ? (unsigned char)format[0] : 0];
    if (*last && dtype_rows[*last - 1].width == width)
        return *last - 1;
    int dtype = read_format(format, width);
    if (last != known)
        *last = (int8_t)(dtype + 1);
    return dtype;
}

static int descr_of_object(PyObject *descr)
{
    PyObject *native = PyObject_GetAttrString(descr, "isnative"), *name = PyObject_GetAttrString(descr, "name");
    const char *label = native && name ? PyUnicode_AsUTF8AndSize(name, NULL) : NULL;
    int dtype = label && native == Py_True ? of_label(label) : -1;
    Py_XDECREF(native);
    Py_XDECREF(name);
    return dtype;
}

int dtype_of_descr(PyObject *descr)
{
    for (int i = 0; i < descrs_known; i++)
        if (descrs[i].descr == descr)
            return descrs[i].dtype;
    int dtype = descr_of_object(descr);
    if (dtype >= 0) /* a result can be made: known now, as later it would be too late */
        return dtype_descr(dtype) ? dtype : -1;
    return PyErr_Occurred() ? -1 : refuse("bad_dtype", descr, NULL);
}

static PyObject *descr_known(int dtype)
{
    for (int i = 0; i < descrs_known; i++)
        if (descrs[i].dtype == dtype)
            return descrs[i].descr;
    return NULL;
}

PyObject *dtype_descr(int dtype)
{
    PyObject *known = descr_known(dtype);
    if (known)
        return known;
    PyObject *label = PyUnicode_FromString(dtype_rows[dtype].label);
    PyObject *descr = label ? refuse_call("numpy_dtype", label, NULL) : NULL;
    Py_XDECREF(label);
    if (!descr || (known = descr_known(dtype))) { /* found by another thread meanwhile */
        Py_XDECREF(descr);
        return known;
    }
    descrs[descrs_known].dtype = dtype;
    return descrs[descrs_known++].descr = descr;
}
