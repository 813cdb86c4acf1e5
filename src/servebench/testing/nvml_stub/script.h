/* The script of the stub: GPUs, and what each of them answers over time. See script.py for the words. */
#ifndef SERVEBENCH_NVML_SCRIPT_H
#define SERVEBENCH_NVML_SCRIPT_H

#define MAX_GPUS 16
#define MAX_SERIES 64
#define MAX_FAULTS 64
#define MAX_PROCESSES 64
#define MAX_EVENTS 64
#define TEXT 96

struct series {
    char key[32];
    int step;             /* the value holds until the next point; otherwise points are joined by lines */
    double hold;          /* seconds for which a reading is kept, as a real sensor does; 0: none */
    int count;
    double *t, *value;
    unsigned long asked;
};

struct fault {
    char key[32];         /* "*": every question */
    int code;
    double from, to;
};

struct stall {
    double from, to;
};

struct process {
    unsigned pid;
    unsigned long long bytes;
    double from, to;
};

struct event {
    double at;
    unsigned long long xid;
    int told;
};

struct gpu {
    unsigned index;
    struct gpu *parent;   /* of a MIG device */
    char name[TEXT], uuid[TEXT], vbios[TEXT], pci[TEXT];
    struct series series[MAX_SERIES];
    struct fault faults[MAX_FAULTS];
    struct stall stalls[MAX_FAULTS];
    struct process processes[MAX_PROCESSES];
    struct event events[MAX_EVENTS];
    int series_count, faults_count, stalls_count, processes_count, events_count;
    double lost;          /* seconds; no GPU is lost at infinity */
    int listens;          /* registered in the event set */
};

struct script {
    char driver[TEXT], nvml[TEXT];
    int cuda, init_code, gpu_count, mig_count;
    struct gpu gpus[MAX_GPUS], migs[MAX_GPUS];
};

/* Reads the file; 0, or the number of the line that is wrong, which is then also said on stderr. */
int script_read(struct script *script, const char *path);

struct series *series_of(struct gpu *gpu, const char *key);
double series_at(const struct series *series, double t);
/* Exact integral of the lines or steps from 0 to t; series hold their first value before the first point. */
double series_integral(const struct series *series, double t);

#endif
