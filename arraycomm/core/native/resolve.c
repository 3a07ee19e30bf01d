/* Any array to a Buffer: for reading (packed if it must be), for writing (refused if that is impossible), as a copy. */
#include "native.h"

/* Takes nothing from the view; the caller closes it. */
static struct buffer *plain(const struct view *view, int64_t count)
{
    PyObject *shape = buffer_shape(view->ndim, view->shape);
    struct buffer *b = shape ? buffer_new(view->data, count, view->dtype, shape, view->owner, NULL) : NULL;
    if (b) {
        b->device_type = view->device_type;
        b->device_index = view->device_index;
        b->readonly = view->readonly || view->derived;
    }
    return b;
}

static struct buffer *packed(const struct view *view, int64_t count)
{
    PyObject *shape = buffer_shape(view->ndim, view->shape);
    struct buffer *b = shape ? buffer_allocate(view->dtype, count, shape) : NULL;
    Py_XDECREF(shape);
    if (b)
        pack_copy(view, count, (char *)(uintptr_t)b->address);
    return b;
}

/* Elements, having made sure that there is memory behind them; -1 with an exception. */
static int64_t usable(const struct view *view, PyObject *object)
{
    int64_t count = view_count(view);
    if (count > 0 && !view->data)
        return refuse("no_memory", object, NULL);
    return count;
}

static struct buffer *copied(const struct view *view, PyObject *object, const char *refusal)
{
    int64_t count = usable(view, object);
    if (count >= 0 && view->device_type == DL_CPU)
        return packed(view, count);
    if (count >= 0)
        refuse(refusal, object, NULL);
    return NULL;
}

static struct buffer *readable(const struct view *view, PyObject *object)
{
    int64_t count = usable(view, object);
    if (count < 0)
        return NULL;
    if (view_packed(view))
        return plain(view, count);
    struct buffer *b = copied(view, object, "device_strided");
    if (b)
        b->readonly = 1; /* who takes the input as output must not write into its copy */
    return b;
}

PyObject *resolve_in(PyObject *module, PyObject *object)
{
    struct view view;
    (void)module;
    if (view_open(&view, object))
        return NULL;
    struct buffer *b = readable(&view, object);
    view_close(&view);
    return (PyObject *)b;
}

PyObject *resolve_pack(PyObject *module, PyObject *object)
{
    struct view view;
    (void)module;
    if (view_open(&view, object))
        return NULL;
    struct buffer *b = copied(&view, object, "device_copy");
    view_close(&view);
    return (PyObject *)b;
}

static struct buffer *writable(const struct view *view, PyObject *object)
{
    int64_t count = usable(view, object);
    if (count < 0)
        return NULL;
    if (view->readonly)
        refuse("readonly_out", object, NULL);
    else if (view->derived)
        refuse("derived_out", object, NULL);
    else if (!view_packed(view))
        refuse("strided_out", object, NULL);
    else
        return plain(view, count);
    return NULL;
}

PyObject *resolve_out(PyObject *module, PyObject *object)
{
    struct view view;
    (void)module;
    if (view_open(&view, object))
        return NULL;
    struct buffer *b = writable(&view, object);
    view_close(&view);
    return (PyObject *)b;
}
