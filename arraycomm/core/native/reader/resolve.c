/* Any array to a Buffer: for reading (packed if it must be), for writing (refused if that is impossible), as a copy. */
#include "native.h"

/* Takes nothing from the view; the caller closes it. */
static struct buffer *plain(const struct view *view, int64_t count)
{
    PyObject *shape = buffer_shape(view->ndim, view->shape);
    struct buffer *b = shape ? buffer_new(view->data, count, view->dtype, shape, view->owner, NULL) : NULL;
    return buffer_place(b, view->device_type, view->device_index, view->stream, view->readonly || view->derived, view->fleeting);
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

static struct buffer *readable(const struct view *view, PyObject *object);

/* Its own library packs an array that does not lie on the host. */
static struct buffer *packed_elsewhere(PyObject *object)
{
    struct view view;
    PyObject *contiguous = refuse_call("contiguous", object, NULL);
    if (!contiguous || view_open(&view, contiguous)) {
        Py_XDECREF(contiguous);
        return NULL;
    }
    struct buffer *b = NULL;
    if (view_packed(&view))
        b = readable(&view, contiguous);
    else
        refuse("device_strided", object, NULL);
    view_close(&view);
    Py_DECREF(contiguous); /* the Buffer's owner keeps it */
    return b;
}

static struct buffer *readable(const struct view *view, PyObject *object)
{
    int64_t count = usable(view, object);
    if (count < 0)
        return NULL;
    if (!count || view_packed(view))
        return plain(view, count);
    struct buffer *b = view->device_type == DL_CPU ? packed(view, count) : packed_elsewhere(object);
    if (b)
        b->readonly = 1; /* who takes the input as output must not write into its copy */
    return b;
}

static struct buffer *copied(const struct view *view, PyObject *object)
{
    int64_t count = usable(view, object);
    if (count >= 0 && view->device_type == DL_CPU)
        return packed(view, count);
    if (count >= 0)
        refuse("device_copy", object, NULL);
    return NULL;
}

static struct buffer *writable(const struct view *view, PyObject *object)
{
    int64_t count = usable(view, object);
    if (count < 0)
        return NULL;
    if (view->readonly)
        refuse(view->unversioned ? "unversioned_out" : "readonly_out", object, NULL);
    else if (view->derived)
        refuse("derived_out", object, NULL);
    else if (count && !view_packed(view))
        refuse("strided_out", object, NULL);
    else
        return plain(view, count);
    return NULL;
}

static PyObject *resolved(PyObject *object, int (*open)(struct view *, PyObject *),
                          struct buffer *(*make)(const struct view *, PyObject *))
{
    struct view view;
    if (open(&view, object))
        return NULL;
    struct buffer *b = make(&view, object);
    view_close(&view);
    return (PyObject *)b;
}

PyObject *resolve_in(PyObject *Py_UNUSED(module), PyObject *object)
{
    return resolved(object, view_open, readable);
}

PyObject *resolve_pack(PyObject *Py_UNUSED(module), PyObject *object)
{
    return resolved(object, view_open, copied);
}

PyObject *resolve_out(PyObject *Py_UNUSED(module), PyObject *object)
{
    return resolved(object, view_open, writable);
}

PyObject *resolve_writable(PyObject *Py_UNUSED(module), PyObject *object)
{
    return resolved(object, view_open_writable, writable);
}
