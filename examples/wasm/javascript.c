/* Run a JavaScript handler in QuickJS. The Makefile puts handler.js into handler.h, as the text `handler_js`. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "handler.h"
#include "quickjs.h"
#include "rowlock.h"

#define MOST (1 << 21)

static char input[MOST];

static JSValue say(JSContext *js, int level, JSValueConst value) {
    size_t length;
    const char *text = JS_ToCStringLen(js, &length, value);
    if (text == NULL) return JS_EXCEPTION;
    rowlock_log(level, text, length);
    JS_FreeCString(js, text);
    return JS_UNDEFINED;
}

static JSValue js_log(JSContext *js, JSValueConst this, int count, JSValueConst *given) {
    return say(js, ROWLOCK_INFO, given[0]);
}

static JSValue js_progress(JSContext *js, JSValueConst this, int count, JSValueConst *given) {
    double percent = NAN;
    size_t length;
    if (JS_ToFloat64(js, &percent, given[0])) return JS_EXCEPTION;
    const char *message = count > 1 ? JS_ToCStringLen(js, &length, given[1]) : NULL;
    rowlock_progress(percent, message, message == NULL ? 0 : length);
    if (message != NULL) JS_FreeCString(js, message);
    return JS_UNDEFINED;
}

static JSValue js_fail(JSContext *js, JSValueConst this, int count, JSValueConst *given) {
    size_t length;
    const char *text = JS_ToCStringLen(js, &length, given[0]);
    if (text == NULL) return JS_EXCEPTION;
    rowlock_fail(text, length);
}

/* Print the exception to stderr, from where it gets into the job's log and error. */
static int thrown(JSContext *js) {
    JSValue error = JS_GetException(js);
    const char *text = JS_ToCString(js, error);
    fprintf(stderr, "%s\n", text == NULL ? "an exception that is no text" : text);
    JSValue stack = JS_GetPropertyStr(js, error, "stack");
    if (JS_IsString(stack)) fputs(JS_ToCString(js, stack), stderr);
    return 1;
}

int main(void) {
    input[fread(input, 1, MOST - 1, stdin)] = 0;
    JSRuntime *runtime = JS_NewRuntime();
    JSContext *js = runtime == NULL ? NULL : JS_NewContext(runtime);
    if (js == NULL) return 1;
    JS_SetMaxStackSize(runtime, 256 << 10);
    JSValue global = JS_GetGlobalObject(js);
    JSValue host = JS_NewObject(js);
    JS_SetPropertyStr(js, host, "log", JS_NewCFunction(js, js_log, "log", 1));
    JS_SetPropertyStr(js, host, "progress", JS_NewCFunction(js, js_progress, "progress", 2));
    JS_SetPropertyStr(js, host, "fail", JS_NewCFunction(js, js_fail, "fail", 1));
    JS_SetPropertyStr(js, global, "rowlock", host);
    if (JS_IsException(JS_Eval(js, handler_js, strlen(handler_js), "handler.js", JS_EVAL_TYPE_GLOBAL))) return thrown(js);
    JSValue payload = JS_ParseJSON(js, input, strlen(input), "payload");
    if (JS_IsException(payload)) return thrown(js);
    JSValue result = JS_Call(js, JS_GetPropertyStr(js, global, "handler"), JS_UNDEFINED, 1, &payload);
    if (JS_IsException(result)) return thrown(js);
    JSValue text = JS_JSONStringify(js, result, JS_UNDEFINED, JS_UNDEFINED);
    if (JS_IsException(text)) return thrown(js);
    if (!JS_IsUndefined(text)) fputs(JS_ToCString(js, text), stdout); /* undefined: no output, which is null */
    return 0;
}
