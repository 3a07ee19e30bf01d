/* What the files of the C API (arraycomm.h) share. All of it runs without the GIL, unless a comment states otherwise. */
#ifndef NATIVE_C_API_H
#define NATIVE_C_API_H
#include "call/call.h"

enum { C_API_TEXT = 1024 };

/* ---- c_api/error.c: this thread's last error ---- */
struct error {
    int64_t number;
    int code;
    bool told;               /* the text is there; it is made on request, because that needs the GIL */
    acomm_failure failure;   /* its code 0: none */
    char text[C_API_TEXT];
};
extern _Thread_local struct error c_api_last;
/* Returns the code, as c_api_fail() of call/call.h. */
int c_api_say(int64_t number, int code, const char *text);
/* With the GIL: the text is an exception's. */
void c_api_say_exception(PyObject *error);
size_t c_api_error(char *text, size_t bytes, int32_t *rank);

/* ---- c_api/call.c: one call ---- */
struct visit {
    int64_t number;
    struct handle *handle;
    acomm_group *group;
    acomm_call call;    /* the caller's, completed */
};
/* 0, then c_api_leave() follows; or a code. The call is checked before anything is sent. */
int c_api_enter(struct visit *v, int64_t number, const acomm_call *call);
/* failure: of the call itself, its code 0: none. Returns the code. */
int c_api_leave(const struct visit *v, int code, acomm_failure *failure);
int c_api_run(int64_t number, acomm_call *call);

/* ---- c_api/work.c: operations under way ---- */
int c_api_start(int64_t number, const acomm_call *call, acomm_work **out);
int c_api_wait(acomm_work *work, int64_t timeout);
int c_api_received(acomm_work *work, int32_t *source, int64_t *tag, uint64_t *bytes);
int c_api_finish(acomm_work *work);
void c_api_free(acomm_work *work);
int c_api_exchange(int64_t number, const acomm_call *send, acomm_call *receive);
#endif
