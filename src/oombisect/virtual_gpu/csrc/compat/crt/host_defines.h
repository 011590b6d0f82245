/* CUDA 13's runtime wheel leaves out the compiler's own folder crt/. The API headers need only these words of it. */
#ifndef OOMBISECT_VGPU_HOST_DEFINES_H
#define OOMBISECT_VGPU_HOST_DEFINES_H
#define __no_return__ __attribute__((noreturn))
#define __noinline__ __attribute__((noinline))
#define __forceinline__ __inline__ __attribute__((always_inline))
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __align__(n)
#define __location__(a)
#define __host__
#define __device__
#define __global__
#define __shared__
#define __constant__
#define __managed__
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __cudart_builtin__
#define CUDARTAPI
#define CUDARTAPI_CDECL
#endif
