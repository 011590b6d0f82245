/* NVRTC: programs "compile" to a few bytes that no device ever runs. */
#include "vgpu.h"

#include <nvrtc.h>
#include <stdio.h>

static const char image[8] = "virtual";

nvrtcResult nvrtcVersion(int *major, int *minor)
{
    *major = CUDA_VERSION / 1000;
    *minor = CUDA_VERSION % 1000 / 10;
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetNumSupportedArchs(int *count)
{
    *count = 1;
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetSupportedArchs(int *archs)
{
    archs[0] = vgpu_profile()->major * 10 + vgpu_profile()->minor;
    return NVRTC_SUCCESS;
}

const char *nvrtcGetErrorString(nvrtcResult result)
{
    return result == NVRTC_SUCCESS ? "NVRTC_SUCCESS" : "an error of the virtual GPU";
}

nvrtcResult nvrtcCreateProgram(nvrtcProgram *program, const char *source, const char *name, int count,
                               const char *const *headers, const char *const *names)
{
    (void)source, (void)name, (void)count, (void)headers, (void)names;
    *program = (nvrtcProgram)(uintptr_t)vgpu_next_handle();
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcDestroyProgram(nvrtcProgram *program)
{
    *program = NULL;
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcAddNameExpression(nvrtcProgram program, const char *const expression)
{
    (void)program, (void)expression;
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int count, const char *const *options)
{
    (void)program, (void)count, (void)options;
    return NVRTC_SUCCESS;
}

#define IMAGE(Kind)                                                                                                    \
    nvrtcResult nvrtcGet##Kind##Size(nvrtcProgram program, size_t *bytes)                                              \
    {                                                                                                                  \
        (void)program;                                                                                                 \
        *bytes = sizeof image;                                                                                         \
        return NVRTC_SUCCESS;                                                                                          \
    }                                                                                                                  \
    nvrtcResult nvrtcGet##Kind(nvrtcProgram program, char *to)                                                         \
    {                                                                                                                  \
        (void)program;                                                                                                 \
        memcpy(to, image, sizeof image);                                                                               \
        return NVRTC_SUCCESS;                                                                                          \
    }

IMAGE(PTX)
IMAGE(CUBIN)

nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, size_t *bytes)
{
    (void)program;
    *bytes = 1;
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char *log)
{
    (void)program;
    *log = 0;
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetLoweredName(nvrtcProgram program, const char *const expression, const char **lowered)
{
    (void)program, (void)expression;
    *lowered = "kernel";
    return NVRTC_SUCCESS;
}
