/* A driver function that programs ask for by name; the table is generated. Included without the CUDA headers. */
#ifndef OOMBISECT_VGPU_DRIVER_NAMES_H
#define OOMBISECT_VGPU_DRIVER_NAMES_H

typedef struct {
    const char *name;
    int since; /* the CUDA version of the ABI; rows of one name are sorted, newest first */
    void (*function)(void);
} DriverName;

extern const DriverName vgpu_driver_names[] __attribute__((visibility("hidden"))); /* ends with a NULL name */

#endif
