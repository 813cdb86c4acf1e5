/* How the functions of the stub get their answers. All return NVML's codes. */
#ifndef SERVEBENCH_NVML_STUB_H
#define SERVEBENCH_NVML_STUB_H

#include "script.h"

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    TIMEOUT = 10,
    GPU_IS_LOST = 15,
    ARGUMENT_VERSION_MISMATCH = 25,
    UNKNOWN = 999
};

typedef struct gpu *device;

extern struct script the_script;
extern int initialised;

double nvmlStubTime(void);

/* Sits out stalls and says whether the question can be answered now. */
int ready(device gpu, const char *key);
/* The code alone, without stall or count. */
int fault_of(device gpu, const char *key);
int answer(device gpu, const char *key, double *value);
int answer_unsigned(device gpu, const char *key, unsigned *to);
int answer_long(device gpu, const char *key, unsigned long long *to);
int answer_pair(device gpu, const char *first, const char *second, unsigned *a, unsigned *b);

#endif
