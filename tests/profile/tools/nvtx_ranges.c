#include <nvtx3/nvToolsExt.h>

static nvtxRangeId_t capture;

void push(const char *name) { nvtxRangePushA(name); }
void pop(void) { nvtxRangePop(); }
void begin_capture(void) { capture = nvtxRangeStartA("capture"); }
void end_capture(void) { nvtxRangeEnd(capture); }
