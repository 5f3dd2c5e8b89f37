#include "failure.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

void fail(const char *sentence, ...)
{
    va_list values;
    va_start(values, sentence);
    fputs("load: ", stderr);
    vfprintf(stderr, sentence, values);
    fputc('\n', stderr);
    va_end(values);
    exit(2);
}
