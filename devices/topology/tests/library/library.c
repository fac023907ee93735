// A library with the functions of NVIDIA's management library that Ringway calls, for a machine that there is not.
//
// GPUS is a list of struct gpu, FAILING one of struct failing. Written from the API's reference manual.
#include <string.h>
#include <unistd.h>

#define HANG (-1)

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7 };

typedef struct { unsigned domain, bus, device; } place;
typedef struct { char old[16]; unsigned domain, bus, device, id, subsystem; char text[32]; } pci_info;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_info;

// Links go to ends[0], ends[1], ..., and all others to the last of these.
struct gpu {
    place at;
    const char *name, *uuid;
    unsigned long long memory;
    // How many there are, and a bit for each that is in use; all bits are nonsense.
    unsigned links, active;
    unsigned ends_count;
    place ends[18];
    // Bits by the other's index, for each capability that is asked about: reading, writing, NVLink.
    unsigned peers[3];
};
// A function that answers with a code, for all GPUs or for one only.
struct failing { const char *function; int gpu, code; };

static const struct gpu gpus[] = { GPUS };
static const struct failing failing[] = { FAILING { 0, 0, 0 } };
#define COUNT_OF_GPUS (sizeof gpus / sizeof gpus[0])
#ifndef COUNT
#define COUNT COUNT_OF_GPUS
#endif

static int answer(const char *function, const struct gpu *gpu) {
    for (const struct failing *one = failing; one->function; one++) {
        if (strcmp(one->function, function) || (one->gpu >= 0 && gpu != gpus + one->gpu)) continue;
        if (one->code == HANG) for (;;) pause();
        return one->code;
    }
    return SUCCESS;
}
#define ANSWER(gpu) do { int code = answer(__func__, gpu); if (code) return code; } while (0)

static int text(const char *from, char *to, unsigned room) {
    if (strlen(from) >= room) return INSUFFICIENT_SIZE;
    strcpy(to, from);
    return SUCCESS;
}

static void fill(const place *place, pci_info *info) {
    memset(info, 0xff, sizeof *info);
    info->domain = place->domain, info->bus = place->bus, info->device = place->device;
    memset(info->text, 0, sizeof info->text);
}

int nvmlInit_v2(void) { ANSWER(0); return SUCCESS; }
int nvmlShutdown(void) { ANSWER(0); return SUCCESS; }
int nvmlSystemGetDriverVersion(char *to, unsigned room) { ANSWER(0); return text("550.54.15", to, room); }
int nvmlDeviceGetCount_v2(unsigned *count) { ANSWER(0); *count = COUNT; return SUCCESS; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, const struct gpu **gpu) {
    if (index >= COUNT_OF_GPUS) return INVALID_ARGUMENT;
    ANSWER(gpus + index);
    *gpu = gpus + index;
    return SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(const struct gpu *gpu, pci_info *info) {
    ANSWER(gpu);
    fill(&gpu->at, info);
    return SUCCESS;
}

int nvmlDeviceGetName(const struct gpu *gpu, char *to, unsigned room) { ANSWER(gpu); return text(gpu->name, to, room); }
int nvmlDeviceGetUUID(const struct gpu *gpu, char *to, unsigned room) { ANSWER(gpu); return text(gpu->uuid, to, room); }

int nvmlDeviceGetMemoryInfo_v2(const struct gpu *gpu, memory_info *info) {
    ANSWER(gpu);
    if (info->version != (sizeof *info | 2u << 24)) return INVALID_ARGUMENT;
    info->total = gpu->memory;
    return SUCCESS;
}

int nvmlDeviceGetNvLinkState(const struct gpu *gpu, unsigned link, unsigned *state) {
    ANSWER(gpu);
    if (link >= 18) return INVALID_ARGUMENT;
    if (link >= gpu->links) return NOT_SUPPORTED;
    *state = gpu->active == ~0u ? 77 : gpu->active >> link & 1;
    return SUCCESS;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(const struct gpu *gpu, unsigned link, pci_info *info) {
    ANSWER(gpu);
    if (link >= gpu->links) return INVALID_ARGUMENT;
    if (!gpu->ends_count) return NOT_SUPPORTED;
    fill(gpu->ends + (link < gpu->ends_count ? link : gpu->ends_count - 1), info);
    return SUCCESS;
}

int nvmlDeviceGetP2PStatus(const struct gpu *gpu, const struct gpu *other, unsigned what, unsigned *status) {
    ANSWER(gpu);
    if (gpu == other || what > 2) return INVALID_ARGUMENT;
    *status = gpu->peers[what] >> (other - gpus) & 1 ? 0 : 1;
    return SUCCESS;
}
