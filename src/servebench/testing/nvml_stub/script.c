/* Reads the script of the stub and evaluates its series. */
#include "script.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void copy(char *to, const char *from) { snprintf(to, TEXT, "%s", from ? from : ""); }

struct series *series_of(struct gpu *gpu, const char *key) {
    for (int i = 0; i < gpu->series_count; i++)
        if (!strcmp(gpu->series[i].key, key)) return &gpu->series[i];
    return NULL;
}

static double between(const struct series *s, int i, double t) { /* points i and i + 1 surround t */
    if (s->step) return s->value[i];
    double share = (t - s->t[i]) / (s->t[i + 1] - s->t[i]);
    return s->value[i] + share * (s->value[i + 1] - s->value[i]);
}

double series_at(const struct series *s, double t) {
    if (s->hold > 0) t = floor(t / s->hold) * s->hold;
    int last = s->count - 1;
    if (t < s->t[0]) return s->value[0];
    for (int i = 0; i < last; i++)
        if (t < s->t[i + 1]) return between(s, i, t);
    return s->value[last];
}

double series_integral(const struct series *s, double t) {
    int last = s->count - 1;
    double sum = s->value[0] * fmin(t, s->t[0]);
    for (int i = 0; i < last && t > s->t[i]; i++) {
        double end = fmin(t, s->t[i + 1]), height = between(s, i, s->t[i]);
        sum += (s->step ? height : (height + between(s, i, end)) / 2) * (end - s->t[i]);
    }
    if (t > s->t[last]) sum += s->value[last] * (t - s->t[last]);
    return sum;
}

static char *word(char **rest) { return strtok_r(NULL, " \t", rest); }

static int number(char **rest, double *value) {
    char *text = word(rest), *end;
    if (!text) return 0;
    *value = strtod(text, &end); /* takes "inf", too */
    return !*end;
}

static int window(char **rest, double *from, double *to) {
    return number(rest, from) && number(rest, to) && *from <= *to;
}

static int read_points(struct series *s, char **rest) {
    char *text, *end;
    while ((text = word(rest))) {
        double t = strtod(text, &end);
        if (*end != ':') return 0;
        double value = strtod(end + 1, &end);
        if (*end || (s->count && t <= s->t[s->count - 1])) return 0;
        s->t = realloc(s->t, sizeof(double) * (size_t)(s->count + 1));
        s->value = realloc(s->value, sizeof(double) * (size_t)(s->count + 1));
        s->t[s->count] = t;
        s->value[s->count++] = value;
    }
    return s->count > 0;
}

static int read_series(struct gpu *gpu, const char *kind, char **rest) {
    char *key = word(rest);
    if (!key || strlen(key) >= sizeof gpu->series[0].key || gpu->series_count == MAX_SERIES) return 0;
    if (series_of(gpu, key)) return 0;
    struct series *s = &gpu->series[gpu->series_count++];
    strcpy(s->key, key);
    s->step = !strcmp(kind, "step");
    return read_points(s, rest);
}

static int read_hold(struct gpu *gpu, char **rest) {
    char *key = word(rest);
    struct series *s = key ? series_of(gpu, key) : NULL;
    return s && number(rest, &s->hold);
}

static int read_fault(struct gpu *gpu, char **rest) {
    char *key = word(rest);
    double code;
    if (!key || strlen(key) >= sizeof gpu->faults[0].key || gpu->faults_count == MAX_FAULTS) return 0;
    struct fault *fault = &gpu->faults[gpu->faults_count++];
    strcpy(fault->key, key);
    int good = number(rest, &code) && window(rest, &fault->from, &fault->to);
    fault->code = (int)code;
    return good;
}

static int read_stall(struct gpu *gpu, char **rest) {
    if (gpu->stalls_count == MAX_FAULTS) return 0;
    struct stall *stall = &gpu->stalls[gpu->stalls_count++];
    return window(rest, &stall->from, &stall->to);
}

static int read_process(struct gpu *gpu, char **rest) {
    double pid, bytes;
    if (gpu->processes_count == MAX_PROCESSES) return 0;
    struct process *process = &gpu->processes[gpu->processes_count++];
    if (!number(rest, &pid) || !number(rest, &bytes)) return 0;
    process->pid = (unsigned)pid;
    process->bytes = bytes < 0 ? ~0ULL : (unsigned long long)bytes; /* NVML's own "not available" */
    return window(rest, &process->from, &process->to);
}

static int read_event(struct gpu *gpu, char **rest) {
    double xid;
    if (gpu->events_count == MAX_EVENTS) return 0;
    struct event *event = &gpu->events[gpu->events_count++];
    if (!number(rest, &event->at) || !number(rest, &xid)) return 0;
    event->xid = (unsigned long long)xid;
    return 1;
}

static void constant(struct gpu *gpu, const char *key, double value) {
    struct series *series = &gpu->series[gpu->series_count++];
    strcpy(series->key, key);
    series->t = calloc(1, sizeof(double));
    series->value = malloc(sizeof(double));
    *series->value = value;
    series->count = 1;
}

static int read_mig(struct script *script, struct gpu *parent, char **rest) {
    char *uuid = word(rest);
    double bytes;
    if (!uuid || !number(rest, &bytes) || script->mig_count == MAX_GPUS) return 0;
    struct gpu *mig = &script->migs[script->mig_count++];
    mig->index = parent->index;
    mig->parent = parent;
    mig->lost = INFINITY;
    copy(mig->uuid, uuid);
    copy(mig->name, "Stub MIG slice");
    constant(mig, "mem_total", bytes);
    constant(mig, "mem_used", 0);
    return 1;
}

static int read_gpu_line(struct script *script, struct gpu *gpu, const char *verb, char **rest) {
    if (!strcmp(verb, "line") || !strcmp(verb, "step")) return read_series(gpu, verb, rest);
    if (!strcmp(verb, "hold")) return read_hold(gpu, rest);
    if (!strcmp(verb, "error")) return read_fault(gpu, rest);
    if (!strcmp(verb, "stall")) return read_stall(gpu, rest);
    if (!strcmp(verb, "process")) return read_process(gpu, rest);
    if (!strcmp(verb, "xid")) return read_event(gpu, rest);
    if (!strcmp(verb, "mig")) return read_mig(script, gpu, rest);
    if (!strcmp(verb, "lost")) return number(rest, &gpu->lost);
    if (!strcmp(verb, "name")) return copy(gpu->name, *rest), 1;
    if (!strcmp(verb, "uuid")) return copy(gpu->uuid, *rest), 1;
    if (!strcmp(verb, "vbios")) return copy(gpu->vbios, *rest), 1;
    if (!strcmp(verb, "pci")) return copy(gpu->pci, *rest), 1;
    return 0;
}

static struct gpu *gpu_at(struct script *script, const char *text) {
    char *end;
    long index = strtol(text, &end, 10);
    if (*end || index < 0 || index >= MAX_GPUS || index > script->gpu_count) return NULL;
    if (index == script->gpu_count) {
        struct gpu *gpu = &script->gpus[script->gpu_count++];
        gpu->index = (unsigned)index;
        gpu->lost = INFINITY;
    }
    return &script->gpus[index];
}

static int read_line(struct script *script, char *line) {
    char *rest, *first = strtok_r(line, " \t", &rest);
    double value;
    if (!first || *first == '#') return 1;
    if (!strcmp(first, "driver")) return copy(script->driver, rest), 1;
    if (!strcmp(first, "nvml")) return copy(script->nvml, rest), 1;
    if (!strcmp(first, "cuda")) return number(&rest, &value) && ((script->cuda = (int)value), 1);
    if (!strcmp(first, "init")) return number(&rest, &value) && ((script->init_code = (int)value), 1);
    struct gpu *gpu = gpu_at(script, first);
    char *verb = gpu ? word(&rest) : NULL;
    return verb && read_gpu_line(script, gpu, verb, &rest);
}

static void forget(struct gpu *gpu) {
    for (int i = 0; i < gpu->series_count; i++) {
        free(gpu->series[i].t);
        free(gpu->series[i].value);
    }
}

int script_read(struct script *script, const char *path) {
    char line[65536];
    for (int i = 0; i < MAX_GPUS; i++) forget(&script->gpus[i]), forget(&script->migs[i]);
    memset(script, 0, sizeof *script);
    FILE *file = fopen(path, "r");
    if (!file) return fprintf(stderr, "nvml stub: %s: %s\n", path, strerror(errno)), -1;
    for (int n = 1; fgets(line, sizeof line, file); n++) {
        line[strcspn(line, "\r\n")] = 0;
        if (read_line(script, line)) continue;
        fclose(file);
        return fprintf(stderr, "nvml stub: line %d of the script is wrong\n", n), n;
    }
    return fclose(file), 0;
}
