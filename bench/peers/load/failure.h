#pragma once

/* Says in one sentence on stderr what went wrong, and ends the process with status 2. */
_Noreturn void fail(const char *sentence, ...) __attribute__((format(printf, 1, 2)));
