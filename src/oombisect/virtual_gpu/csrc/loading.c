/* Libraries loaded by path: torch, Transformer Engine and others open the real CUDA libraries beside torch by their
 * full path. Hundreds of megabytes that nobody may call: the request is answered with the stand-in of that name,
 * which is loaded already. Everything else goes to the real dlopen by a jump, so that the loader still sees who asked. */
#include "vgpu.h"

#include <dlfcn.h>

extern const char *const vgpu_sonames[] LOCAL; /* generated, ends with NULL */

static const char *standin_for(const char *path)
{
    const char *slash = path ? strrchr(path, '/') : NULL;
    for (const char *const *soname = vgpu_sonames; slash && *soname; soname++)
        if (!strcmp(slash + 1, *soname)) return *soname;
    return NULL;
}

void *dlopen(const char *path, int flags)
{
    static void *(*real)(const char *, int);
    if (!real) real = (void *(*)(const char *, int))dlsym(RTLD_NEXT, "dlopen");
    const char *standin = standin_for(path);
    return real(standin ? standin : path, flags);
}
