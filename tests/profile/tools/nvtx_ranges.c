#include <nvtx3/nvToolsExt.h>

void push(const char *name) { nvtxRangePushA(name); }
void pop(void) { nvtxRangePop(); }
