/* The behaviours that answers.txt may give to a library function. Generated code uses these macros. An argument of the
 * uniform functions below is read only where the real function has one of that number.
 * No CUDA header here: its prototypes would clash with the uniform ones below.
 * Arguments are counted from 0 among the integer and pointer arguments (x86-64 passes floating point apart). */
#ifndef OOMBISECT_VGPU_ANSWERS_H
#define OOMBISECT_VGPU_ANSWERS_H
#include <stdint.h>

#define LOCAL __attribute__((visibility("hidden")))
typedef uint64_t u64;
LOCAL u64 vgpu_next_handle(void);
LOCAL void vgpu_use_context(void);
LOCAL void vgpu_device_work(const void *stream);
_Noreturn void oombisect_vgpu_unstubbed(const char *what);

#define ARGUMENTS                                                                                                      \
    u64 a0, u64 a1, u64 a2, u64 a3, u64 a4, u64 a5, u64 a6, u64 a7, u64 a8, u64 a9, u64 a10, u64 a11, u64 a12,         \
        u64 a13, u64 a14, u64 a15, u64 a16, u64 a17, u64 a18, u64 a19, u64 a20, u64 a21, u64 a22, u64 a23, u64 a24
#define PUT(argument, type, value) do { if (argument) *(type *)(uintptr_t)(argument) = (type)(value); } while (0)

#define FUNCTION(name, body)                                                                                           \
    u64 name(ARGUMENTS);                                                                                               \
    u64 name(ARGUMENTS)                                                                                                \
    {                                                                                                                  \
        body                                                                                                           \
    }

#define ANSWER_SUCCESS /* a setter, a destroyer, a grouping call: nothing to do */
#define ANSWER_LAUNCH vgpu_use_context(); vgpu_device_work((void *)0);
#define ANSWER_CREATE(argument) PUT(argument, void *, (uintptr_t)vgpu_next_handle());
#define ANSWER_PUT32(argument, value) PUT(argument, int32_t, value);
#define ANSWER_PUT64(argument, value) PUT(argument, int64_t, value);
#define ANSWER_RETURN(value) return (u64)(value);

#define UNSTUBBED(name)                                                                                                \
    void name(void);                                                                                                   \
    void name(void) { oombisect_vgpu_unstubbed(#name); }
#endif
