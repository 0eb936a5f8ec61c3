/* The functions that rowlock gives to a WASM handler. docs/wasm.md explains them.
 *
 * Texts are UTF-8: a pointer and a length in bytes, without a NUL at the end. A pointer outside of the module's memory
 * fails the run. Declare only what you call: each function is an import of its own. */
#ifndef ROWLOCK_H
#define ROWLOCK_H

#include <stddef.h>
#include <stdint.h>

#define ROWLOCK_IMPORT(name) __attribute__((import_module("rowlock"), import_name(name)))

enum rowlock_level { ROWLOCK_DEBUG = 0, ROWLOCK_INFO = 1, ROWLOCK_WARNING = 2, ROWLOCK_ERROR = 3 };

/* Report the progress: 0 to 100, or NAN to leave it as it is. A message of length 0 leaves the message as it is. */
ROWLOCK_IMPORT("progress") void rowlock_progress(double percent, const char *message, size_t length);

/* Add a line to the job's log. */
ROWLOCK_IMPORT("log") void rowlock_log(int32_t level, const char *message, size_t length);

/* Enqueue another job: {"topic": "…", "payload": {…}, …}. Return the length of the answer {"id": "…", "existing": false}.
 * Below 0: nothing was enqueued, and the answer is {"code": "…", "message": "…"} of that length. The room for the answer
 * must be at least 128 bytes. */
ROWLOCK_IMPORT("enqueue") int32_t rowlock_enqueue(const char *job, size_t length, char *answer, size_t room);

/* Return 1 if the run must end. A module that imports this has one second to end by itself after a cancel. */
ROWLOCK_IMPORT("cancelled") int32_t rowlock_cancelled(void);

/* Fail for good: the job is not retried. Does not return. */
ROWLOCK_IMPORT("fail") _Noreturn void rowlock_fail(const char *message, size_t length);

/* End this run, and run the job again after so many seconds. It costs no retry. Does not return. */
ROWLOCK_IMPORT("snooze") _Noreturn void rowlock_snooze(double seconds);

#endif
