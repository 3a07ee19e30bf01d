/* XLA's side of a handler's call, by the header that JAX brings: it builds the frame that XLA would, around one operation. */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "xla/ffi/api/c_api.h"

#define PUBLIC __attribute__((visibility("default")))

struct XLA_FFI_Error { char text[2000]; };
struct context { void *stream; }; /* XLA's own, whose name differs from release to release */
static __thread struct XLA_FFI_Error said;

static XLA_FFI_Error *new_error(XLA_FFI_Error_Create_Args *args)
{
    snprintf(said.text, sizeof said.text, "%d: %s", (int)args->errc, args->message);
    return &said;
}

static XLA_FFI_Error *stream_of(XLA_FFI_Stream_Get_Args *args)
{
    if (args->struct_size < XLA_FFI_Stream_Get_Args_STRUCT_SIZE || !args->ctx) {
        snprintf(said.text, sizeof said.text, "no context");
        return &said;
    }
    args->stream = ((struct context *)(void *)args->ctx)->stream;
    return NULL;
}

static const XLA_FFI_Api api = {
    .struct_size = XLA_FFI_Api_STRUCT_SIZE,
    .api_version = {.struct_size = XLA_FFI_Api_Version_STRUCT_SIZE, .major_version = XLA_FFI_API_MAJOR,
                    .minor_version = XLA_FFI_API_MINOR},
    .XLA_FFI_Error_Create = new_error,
    .XLA_FFI_Stream_Get = stream_of,
};

struct array { bool there; void *data; };

static int64_t list(const struct array *array, XLA_FFI_Buffer *buffers, void **places)
{
    int64_t count = 0;
    if (array->there) {
        buffers[count] = (XLA_FFI_Buffer){.struct_size = XLA_FFI_Buffer_STRUCT_SIZE, .dtype = XLA_FFI_DataType_U8,
                                          .data = array->data};
        count++;
    }
    buffers[count] = (XLA_FFI_Buffer){.struct_size = XLA_FFI_Buffer_STRUCT_SIZE, .dtype = XLA_FFI_DataType_TOKEN};
    count++;
    for (int64_t i = 0; i < count; i++)
        places[i] = &buffers[i];
    return count;
}

/* The version that the handler answers with: major * 1000 + minor, -1 where it does not. */
PUBLIC int standin_xla_version(XLA_FFI_Handler *handler)
{
    XLA_FFI_Metadata metadata = {.struct_size = XLA_FFI_Metadata_STRUCT_SIZE, .api_version = {.major_version = -1}};
    XLA_FFI_Metadata_Extension extension = {
        .extension_base = {.struct_size = XLA_FFI_Metadata_Extension_STRUCT_SIZE, .type = XLA_FFI_Extension_Metadata},
        .metadata = &metadata,
    };
    XLA_FFI_CallFrame frame = {.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE, .extension_start = &extension.extension_base,
                               .api = &api};
    if (handler(&frame) || metadata.api_version.major_version < 0)
        return -1;
    return metadata.api_version.major_version * 1000 + metadata.api_version.minor_version;
}

/* NULL, or the text of the error, which is the thread's. */
PUBLIC const char *standin_xla_call(XLA_FFI_Handler *handler, int64_t *fields, int64_t count, bool has_operand, void *operand,
                                    bool has_result, void *result, void *stream)
{
    XLA_FFI_Buffer in[2], out[2];
    void *ins[2], *outs[2];
    XLA_FFI_ArgType in_kinds[2] = {XLA_FFI_ArgType_BUFFER, XLA_FFI_ArgType_BUFFER};
    XLA_FFI_RetType out_kinds[2] = {XLA_FFI_RetType_BUFFER, XLA_FFI_RetType_BUFFER};
    XLA_FFI_Array array = {.dtype = XLA_FFI_DataType_S64, .size = (size_t)count, .data = fields};
    XLA_FFI_ByteSpan name = {.ptr = "call", .len = 4};
    XLA_FFI_ByteSpan *names[] = {&name};
    XLA_FFI_AttrType kinds[] = {XLA_FFI_AttrType_ARRAY};
    void *values[] = {&array};
    struct context context = {.stream = stream};
    XLA_FFI_CallFrame frame = {.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE, .api = &api, .ctx = (void *)&context,
                               .stage = XLA_FFI_ExecutionStage_EXECUTE};
    frame.args = (XLA_FFI_Args){.struct_size = XLA_FFI_Args_STRUCT_SIZE, .types = in_kinds, .args = ins,
                                .size = list(&(struct array){has_operand, operand}, in, ins)};
    frame.rets = (XLA_FFI_Rets){.struct_size = XLA_FFI_Rets_STRUCT_SIZE, .types = out_kinds, .rets = outs,
                                .size = list(&(struct array){has_result, result}, out, outs)};
    frame.attrs = (XLA_FFI_Attrs){.struct_size = XLA_FFI_Attrs_STRUCT_SIZE, .size = 1, .types = kinds, .names = names,
                                  .attrs = values};
    const XLA_FFI_Error *error = handler(&frame);
    return error ? error->text : NULL;
}
