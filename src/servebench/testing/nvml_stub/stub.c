/* A libnvidia-ml.so.1 whose GPUs exist only in a script, so that the real ctypes path can be tested without a GPU.
 *
 * The script lies beside the library, with ".script" added to its name, and is read by nvmlInit, which also starts the
 * clock. What the script does not mention is answered with NVML_ERROR_NOT_SUPPORTED. Three functions are the stub's own:
 * nvmlStubSetTime (virtual seconds; a stall then passes at once), nvmlStubTime and nvmlStubAsked.
 */
#define _GNU_SOURCE
#include "stub.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

struct script the_script;
int initialised;

static double virtual_time = -1;
static double started;

static double monotonic(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

void nvmlStubSetTime(double seconds) { virtual_time = seconds; }
double nvmlStubTime(void) { return virtual_time >= 0 ? virtual_time : monotonic() - started; }

unsigned long nvmlStubAsked(unsigned gpu, const char *key) {
    struct series *series = gpu < (unsigned)the_script.gpu_count ? series_of(&the_script.gpus[gpu], key) : NULL;
    return series ? series->asked : 0;
}

/* A driver that hangs: the call returns when the stall is over. */
static void sit_out_stalls(device gpu) {
    for (int i = 0; i < gpu->stalls_count; i++) {
        double wait = gpu->stalls[i].to - nvmlStubTime();
        if (wait <= 0 || nvmlStubTime() < gpu->stalls[i].from) continue;
        if (virtual_time >= 0) {
            virtual_time = gpu->stalls[i].to;
        } else {
            struct timespec rest = {(time_t)wait, (long)((wait - floor(wait)) * 1e9)};
            nanosleep(&rest, NULL);
        }
    }
}

int fault_of(device gpu, const char *key) {
    double now = nvmlStubTime();
    if (now >= gpu->lost) return GPU_IS_LOST;
    for (int i = 0; i < gpu->faults_count; i++) {
        struct fault *fault = &gpu->faults[i];
        if ((!strcmp(fault->key, key) || !strcmp(fault->key, "*")) && now >= fault->from && now < fault->to)
            return fault->code;
    }
    return SUCCESS;
}

int ready(device gpu, const char *key) {
    if (!initialised) return UNINITIALIZED;
    if (!gpu) return INVALID_ARGUMENT;
    struct series *series = series_of(gpu, key);
    if (series) series->asked++;
    sit_out_stalls(gpu);
    return fault_of(gpu, key);
}

/* Energy is the integral of the power, unless it is scripted itself. Rounded down to whole millijoules, as counters are. */
static int energy(device gpu, double *value) {
    struct series *power = series_of(gpu, "power_instant"), *base = series_of(gpu, "energy_base");
    if (!power) return NOT_SUPPORTED;
    double t = nvmlStubTime();
    if (base && base->hold > 0) t = floor(t / base->hold) * base->hold;
    *value = floor((base ? base->value[0] : 0) + series_integral(power, t));
    return SUCCESS;
}

/* The mean of the last second, which is what the average field of a real device holds. */
static int average_power(device gpu, double *value) {
    struct series *power = series_of(gpu, "power_instant");
    if (!power) return NOT_SUPPORTED;
    double t = nvmlStubTime();
    *value = series_integral(power, t) - series_integral(power, t - 1);
    return SUCCESS;
}

int answer(device gpu, const char *key, double *value) {
    int code = ready(gpu, key);
    if (code) return code;
    struct series *series = series_of(gpu, key);
    if (series) return *value = series_at(series, nvmlStubTime()), SUCCESS;
    if (!strcmp(key, "energy")) return energy(gpu, value);
    if (!strcmp(key, "power_average")) return average_power(gpu, value);
    return NOT_SUPPORTED;
}

int answer_unsigned(device gpu, const char *key, unsigned *to) {
    double value = 0;
    int code = answer(gpu, key, &value);
    if (!code) *to = (unsigned)llround(value);
    return code;
}

int answer_long(device gpu, const char *key, unsigned long long *to) {
    double value = 0;
    int code = answer(gpu, key, &value);
    if (!code) *to = (unsigned long long)llround(value);
    return code;
}

int answer_pair(device gpu, const char *first, const char *second, unsigned *a, unsigned *b) {
    int code = answer_unsigned(gpu, first, a);
    return code ? code : answer_unsigned(gpu, second, b);
}

static int give_text(const char *text, char *to, unsigned size) {
    if (!*text) return NOT_SUPPORTED;
    if (strlen(text) >= size) return INSUFFICIENT_SIZE;
    return strcpy(to, text), SUCCESS;
}

static int answer_text(device gpu, const char *key, const char *text, char *to, unsigned size) {
    int code = ready(gpu, key);
    return code ? code : give_text(text, to, size);
}

/* -- the library and the machine -- */

int nvmlInitWithFlags(unsigned flags) {
    Dl_info self;
    char path[4096];
    (void)flags;
    if (!dladdr((void *)nvmlInitWithFlags, &self)) return UNKNOWN;
    snprintf(path, sizeof path, "%s.script", self.dli_fname);
    if (script_read(&the_script, path)) return UNKNOWN;
    if (the_script.init_code) return the_script.init_code;
    started = monotonic();
    virtual_time = -1;
    initialised = 1;
    return SUCCESS;
}

int nvmlShutdown(void) {
    if (!initialised) return UNINITIALIZED;
    return initialised = 0, SUCCESS;
}

const char *nvmlErrorString(int code) {
    static char text[64];
    snprintf(text, sizeof text, "stub error %d", code);
    return text;
}

int nvmlSystemGetDriverVersion(char *to, unsigned size) { return give_text(the_script.driver, to, size); }
int nvmlSystemGetNVMLVersion(char *to, unsigned size) { return give_text(the_script.nvml, to, size); }
int nvmlSystemGetCudaDriverVersion_v2(int *to) {
    if (!the_script.cuda) return NOT_SUPPORTED;
    return *to = the_script.cuda, SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *to) {
    if (!initialised) return UNINITIALIZED;
    return *to = (unsigned)the_script.gpu_count, SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device *to) {
    if (!initialised) return UNINITIALIZED;
    if (index >= (unsigned)the_script.gpu_count) return INVALID_ARGUMENT;
    device gpu = &the_script.gpus[index];
    int code = fault_of(gpu, "handle");
    if (!code) *to = gpu;
    return code;
}

/* -- what a device is -- */

int nvmlDeviceGetIndex(device gpu, unsigned *to) {
    if (!gpu) return INVALID_ARGUMENT;
    return *to = gpu->index, SUCCESS;
}

int nvmlDeviceGetName(device gpu, char *to, unsigned n) { return answer_text(gpu, "name", gpu->name, to, n); }
int nvmlDeviceGetUUID(device gpu, char *to, unsigned n) { return answer_text(gpu, "uuid", gpu->uuid, to, n); }
int nvmlDeviceGetVbiosVersion(device gpu, char *to, unsigned n) { return answer_text(gpu, "vbios", gpu->vbios, to, n); }

struct pci_info {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
};

int nvmlDeviceGetPciInfo_v3(device gpu, struct pci_info *to) {
    int code = ready(gpu, "pci");
    if (code) return code;
    memset(to, 0, sizeof *to);
    return give_text(gpu->pci, to->bus_id, sizeof to->bus_id);
}

#define UNSIGNED(function, key) \
    int function(device gpu, unsigned *to) { return answer_unsigned(gpu, key, to); }

UNSIGNED(nvmlDeviceGetPersistenceMode, "persistence_mode")
UNSIGNED(nvmlDeviceGetComputeMode, "compute_mode")
UNSIGNED(nvmlDeviceGetArchitecture, "architecture")
UNSIGNED(nvmlDeviceGetNumGpuCores, "cores")
UNSIGNED(nvmlDeviceGetMemoryBusWidth, "memory_bus_bits")
UNSIGNED(nvmlDeviceGetEnforcedPowerLimit, "power_limit")
UNSIGNED(nvmlDeviceGetPowerManagementDefaultLimit, "power_limit_default")
UNSIGNED(nvmlDeviceGetPowerUsage, "power_usage")
UNSIGNED(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_gen_max")
UNSIGNED(nvmlDeviceGetMaxPcieLinkWidth, "pcie_width_max")
UNSIGNED(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_gen")
UNSIGNED(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width")
UNSIGNED(nvmlDeviceGetMaxMigDeviceCount, "mig_devices_max")

#define PAIR(function, first, second) \
    int function(device gpu, unsigned *a, unsigned *b) { return answer_pair(gpu, first, second, a, b); }

PAIR(nvmlDeviceGetMigMode, "mig_mode", "mig_mode_pending")
PAIR(nvmlDeviceGetEccMode, "ecc_mode", "ecc_mode_pending")
PAIR(nvmlDeviceGetCudaComputeCapability, "compute_major", "compute_minor")
PAIR(nvmlDeviceGetPowerManagementLimitConstraints, "power_limit_min", "power_limit_max")

int nvmlDeviceGetMigDeviceHandleByIndex(device gpu, unsigned index, device *to) {
    int code = ready(gpu, "mig");
    if (code) return code;
    for (int i = 0; i < the_script.mig_count; i++)
        if (the_script.migs[i].parent == gpu && index-- == 0) return *to = &the_script.migs[i], SUCCESS;
    return NOT_FOUND;
}
