/* What a GPU of the stub does: values, processes, events and performance monitoring. */
#include "stub.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MEMORY_V2 0x02000028u
#define XID_EVENT 8ULL
#define GPM_SHORTEST_S 0.1

struct utilization {
    unsigned gpu, memory;
};

int nvmlDeviceGetUtilizationRates(device gpu, struct utilization *to) {
    return answer_pair(gpu, "util_gpu", "util_mem", &to->gpu, &to->memory);
}

struct memory {
    unsigned long long total, free, used;
};

static int fill_memory(device gpu, struct memory *to) {
    int code = answer_long(gpu, "mem_total", &to->total);
    if (!code) code = answer_long(gpu, "mem_used", &to->used);
    to->free = to->total - to->used;
    return code;
}

/* The first version counts what the driver keeps for itself as used. */
int nvmlDeviceGetMemoryInfo(device gpu, struct memory *to) {
    double reserved = 0;
    int code = fill_memory(gpu, to);
    if (!code && series_of(gpu, "mem_reserved") && !answer(gpu, "mem_reserved", &reserved)) {
        to->used += (unsigned long long)reserved;
        to->free -= (unsigned long long)reserved;
    }
    return code;
}

struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

int nvmlDeviceGetMemoryInfo_v2(device gpu, struct memory_v2 *to) {
    struct memory plain;
    if (to->version != MEMORY_V2) return ARGUMENT_VERSION_MISMATCH;
    int code = answer_long(gpu, "mem_reserved", &to->reserved);
    if (!code) code = fill_memory(gpu, &plain);
    if (code) return code;
    to->total = plain.total;
    to->used = plain.used;
    to->free = plain.free - to->reserved;
    return SUCCESS;
}

int nvmlDeviceGetTotalEnergyConsumption(device gpu, unsigned long long *to) { return answer_long(gpu, "energy", to); }

static const char *clock_key(unsigned type, const char *sm, const char *memory) {
    return type == 1 ? sm : type == 2 ? memory : "no such clock";
}

int nvmlDeviceGetClockInfo(device gpu, unsigned type, unsigned *to) {
    return answer_unsigned(gpu, clock_key(type, "clock_sm", "clock_mem"), to);
}

int nvmlDeviceGetApplicationsClock(device gpu, unsigned type, unsigned *to) {
    return answer_unsigned(gpu, clock_key(type, "clock_sm_app", "clock_mem_app"), to);
}

int nvmlDeviceGetMaxClockInfo(device gpu, unsigned type, unsigned *to) {
    return answer_unsigned(gpu, clock_key(type, "clock_sm_max", "clock_mem_max"), to);
}

int nvmlDeviceGetTemperature(device gpu, unsigned sensor, unsigned *to) {
    return sensor ? INVALID_ARGUMENT : answer_unsigned(gpu, "temp_gpu", to);
}

int nvmlDeviceGetCurrentClocksEventReasons(device gpu, unsigned long long *to) {
    return answer_long(gpu, "clock_reasons", to);
}

int nvmlDeviceGetCurrentClocksThrottleReasons(device gpu, unsigned long long *to) {
    return answer_long(gpu, "throttle_reasons", to);
}

int nvmlDeviceGetPcieThroughput(device gpu, unsigned counter, unsigned *to) {
    return counter > 1 ? INVALID_ARGUMENT : answer_unsigned(gpu, counter ? "pcie_rx" : "pcie_tx", to);
}

int nvmlDeviceGetTotalEccErrors(device gpu, unsigned type, unsigned counter, unsigned long long *to) {
    if (type > 1 || counter > 1) return INVALID_ARGUMENT;
    if (counter) return NOT_SUPPORTED; /* aggregate counts: nobody asks */
    return answer_long(gpu, type ? "ecc_uncorrected" : "ecc_corrected", to);
}

int nvmlDeviceGetRemappedRows(device gpu, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    int code = answer_pair(gpu, "remapped_corrected", "remapped_uncorrected", corrected, uncorrected);
    return code ? code : answer_pair(gpu, "remapped_pending", "remapped_failed", pending, failed);
}

struct field_value {
    uint32_t field, scope;
    int64_t timestamp, latency_us;
    uint32_t type, code;
    union {
        double real;
        uint32_t small;
        unsigned long long large;
    } value;
};

enum { TYPE_UNSIGNED = 1, TYPE_LARGE = 3 };

static const struct {
    uint32_t id;
    const char *key;
    int type;
} FIELDS[] = {
    {82, "temp_mem", TYPE_UNSIGNED},     {83, "energy", TYPE_LARGE},           {138, "nvlink_tx", TYPE_LARGE},
    {139, "nvlink_rx", TYPE_LARGE},      {185, "power_average", TYPE_UNSIGNED}, {186, "power_instant", TYPE_UNSIGNED},
};

static uint32_t fill_field(device gpu, struct field_value *field, const char *key, uint32_t type) {
    double value = 0;
    uint32_t code = (uint32_t)answer(gpu, key, &value);
    field->type = type;
    field->timestamp = (int64_t)(nvmlStubTime() * 1e6);
    if (type == TYPE_LARGE) field->value.large = (unsigned long long)value;
    else field->value.small = (uint32_t)llround(value);
    return code;
}

int nvmlDeviceGetFieldValues(device gpu, int count, struct field_value *fields) {
    int code = ready(gpu, "fields");
    for (int i = 0; !code && i < count; i++) {
        fields[i].code = INVALID_ARGUMENT; /* an identifier that nobody knows */
        for (size_t k = 0; k < sizeof FIELDS / sizeof *FIELDS; k++)
            if (fields[i].field == FIELDS[k].id)
                fields[i].code = fill_field(gpu, &fields[i], FIELDS[k].key, (uint32_t)FIELDS[k].type);
    }
    return code;
}

struct process_info {
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance, compute_instance;
};

int nvmlDeviceGetComputeRunningProcesses_v3(device gpu, unsigned *count, struct process_info *to) {
    int code = ready(gpu, "processes");
    unsigned found = 0, room = *count;
    double now = nvmlStubTime();
    if (code) return code;
    for (int i = 0; i < gpu->processes_count; i++) {
        struct process *process = &gpu->processes[i];
        if (now < process->from || now >= process->to) continue;
        if (to && found < room) to[found] = (struct process_info){process->pid, process->bytes, ~0u, ~0u};
        found++;
    }
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}

/* Nothing of what the script knows draws pictures. */
int nvmlDeviceGetGraphicsRunningProcesses_v3(device gpu, unsigned *count, struct process_info *to) {
    (void)to;
    int code = ready(gpu, "graphics_processes");
    if (!code) *count = 0;
    return code;
}

/* -- events -- */

struct event_data {
    device gpu;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
};

static int the_event_set;

int nvmlEventSetCreate(void **to) { return *to = &the_event_set, SUCCESS; }
int nvmlEventSetFree(void *set) { return set == &the_event_set ? SUCCESS : INVALID_ARGUMENT; }

int nvmlDeviceGetSupportedEventTypes(device gpu, unsigned long long *to) {
    int code = ready(gpu, "events");
    if (!code) *to = XID_EVENT;
    return code;
}

int nvmlDeviceRegisterEvents(device gpu, unsigned long long types, void *set) {
    int code = ready(gpu, "events");
    if (set != &the_event_set || types != XID_EVENT) return INVALID_ARGUMENT;
    if (!code) gpu->listens = 1;
    return code;
}

static struct event *next_event(device gpu, double now) {
    for (int i = 0; i < gpu->events_count; i++)
        if (!gpu->events[i].told && now >= gpu->events[i].at) return &gpu->events[i];
    return NULL;
}

int nvmlEventSetWait_v2(void *set, struct event_data *to, unsigned timeout_ms) {
    double now = nvmlStubTime();
    int lost = 0;
    if (!initialised) return UNINITIALIZED;
    if (set != &the_event_set || timeout_ms) return INVALID_ARGUMENT; /* a sampler must not wait here */
    for (int i = 0; i < the_script.gpu_count; i++) {
        device gpu = &the_script.gpus[i];
        struct event *event = gpu->listens ? next_event(gpu, now) : NULL;
        lost |= gpu->listens && now >= gpu->lost;
        if (!event) continue;
        event->told = 1;
        *to = (struct event_data){gpu, XID_EVENT, event->xid, ~0u, ~0u};
        return SUCCESS;
    }
    return lost ? GPU_IS_LOST : TIMEOUT;
}

/* -- GPU performance monitoring: means of the scripted series between two samples -- */

struct gpm_sample {
    device gpu;
    double t;
};

struct gpm_support {
    unsigned version, supported;
};

struct gpm_metric {
    unsigned id, code;
    double value;
    const char *short_name, *long_name, *unit;
};

struct gpm_metrics {
    unsigned version, count;
    struct gpm_sample *first, *second;
    struct gpm_metric metrics[];
};

static const struct {
    unsigned id;
    const char *key;
} METRICS[] = {{2, "gpm_sm"}, {5, "gpm_tensor"}, {10, "gpm_dram"}, {20, "gpm_pcie_tx"}, {21, "gpm_pcie_rx"}};

int nvmlGpmQueryDeviceSupport(device gpu, struct gpm_support *to) {
    int code = ready(gpu, "gpm");
    if (!code) to->supported = series_of(gpu, "gpm_sm") != NULL;
    return code;
}

int nvmlGpmSampleAlloc(struct gpm_sample **to) {
    *to = calloc(1, sizeof **to);
    return *to ? SUCCESS : UNKNOWN;
}

int nvmlGpmSampleFree(struct gpm_sample *sample) { return free(sample), SUCCESS; }

int nvmlGpmSampleGet(device gpu, struct gpm_sample *sample) {
    int code = ready(gpu, "gpm");
    if (!code) *sample = (struct gpm_sample){gpu, nvmlStubTime()};
    return code;
}

static unsigned fill_metric(struct gpm_metric *metric, const struct gpm_sample *from, const struct gpm_sample *to) {
    for (size_t k = 0; k < sizeof METRICS / sizeof *METRICS; k++) {
        if (metric->id != METRICS[k].id) continue;
        struct series *series = series_of(to->gpu, METRICS[k].key);
        if (!series) return NOT_SUPPORTED;
        int code = fault_of(to->gpu, METRICS[k].key);
        series->asked++;
        metric->value = (series_integral(series, to->t) - series_integral(series, from->t)) / (to->t - from->t);
        return (unsigned)code;
    }
    return INVALID_ARGUMENT;
}

int nvmlGpmMetricsGet(struct gpm_metrics *wanted) {
    if (wanted->version != 1) return ARGUMENT_VERSION_MISMATCH;
    /* A real device answers a pair that is too close with noise; the stub refuses, so that a test sees it. */
    if (wanted->second->t - wanted->first->t < GPM_SHORTEST_S - 1e-9) return UNKNOWN;
    for (unsigned i = 0; i < wanted->count; i++)
        wanted->metrics[i].code = fill_metric(&wanted->metrics[i], wanted->first, wanted->second);
    return SUCCESS;
}
