/* Streams, events, stream capture and graphs. Work completes when it is issued, so nothing ever waits; only events can
 * be kept from completing, for a test of what then happens to memory that another stream uses. */
#include "vgpu.h"

#define MAX_STREAMS_IN_CAPTURE 64
#define ELAPSED_MS 1.0f /* simulated: every pair of events is one millisecond apart, so that autotuning is repeatable */

/* ---- captures ---- */

typedef struct Capture {
    u64 id;
    u64 graph; /* the handle that EndCapture gives */
    u64 streams[MAX_STREAMS_IN_CAPTURE];
    size_t stream_count;
    size_t nodes;
    cudaGraphNode_t last_node;
    struct Capture *next;
} Capture;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static Capture *captures; /* the running ones */
static u64 capture_ids;
static VgpuTable graphs;         /* graph or executable graph -> number of nodes */
static VgpuTable captured_events; /* event -> id of the capture it was recorded in */
static int running;              /* number of captures; read without the lock as a fast path */

static u64 key_of(const void *handle) { return (u64)(uintptr_t)handle; }

static Capture *capture_of(const void *stream) /* caller holds the mutex */
{
    for (Capture *capture = captures; capture; capture = capture->next)
        for (size_t i = 0; i < capture->stream_count; i++)
            if (capture->streams[i] == key_of(stream)) return capture;
    return NULL;
}

static bool is_capturing(const void *stream)
{
    if (!__atomic_load_n(&running, __ATOMIC_RELAXED)) return false;
    pthread_mutex_lock(&mutex);
    bool capturing = capture_of(stream) != NULL;
    pthread_mutex_unlock(&mutex);
    return capturing;
}

static void join_capture(Capture *capture, const void *stream)
{
    if (capture->stream_count == MAX_STREAMS_IN_CAPTURE) oombisect_vgpu_unstubbed("a stream capture over more than 64 streams");
    capture->streams[capture->stream_count++] = key_of(stream);
}

bool vgpu_stream_node(const void *stream)
{
    if (!__atomic_load_n(&running, __ATOMIC_RELAXED)) return false;
    pthread_mutex_lock(&mutex);
    Capture *capture = capture_of(stream);
    if (capture) {
        capture->nodes++;
        capture->last_node = (cudaGraphNode_t)(uintptr_t)vgpu_next_handle();
    }
    pthread_mutex_unlock(&mutex);
    return capture != NULL;
}

void vgpu_device_work(const void *stream)
{
    vgpu_note_launch();
    vgpu_known_forget_all();
    vgpu_stream_node(stream);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    (void)mode;
    vgpu_use_context();
    pthread_mutex_lock(&mutex);
    bool fresh = stream && !capture_of(stream);
    if (fresh) {
        Capture *capture = calloc(1, sizeof *capture);
        if (!capture) abort();
        capture->id = ++capture_ids;
        capture->graph = vgpu_next_handle();
        capture->next = captures;
        join_capture(capture, stream);
        captures = capture;
        __atomic_add_fetch(&running, 1, __ATOMIC_RELAXED);
    }
    pthread_mutex_unlock(&mutex);
    return fresh ? cudaSuccess : vgpu_fail(stream ? cudaErrorIllegalState : cudaErrorStreamCaptureUnsupported);
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    pthread_mutex_lock(&mutex);
    Capture *capture = capture_of(stream);
    bool origin = capture && capture->streams[0] == key_of(stream);
    if (origin) {
        for (Capture **link = &captures; *link; link = &(*link)->next) {
            if (*link != capture) continue;
            *link = capture->next;
            break;
        }
        vgpu_table_put(&graphs, capture->graph, capture->nodes, 0);
        *graph = (cudaGraph_t)(uintptr_t)capture->graph;
        free(capture);
        __atomic_sub_fetch(&running, 1, __ATOMIC_RELAXED);
    }
    pthread_mutex_unlock(&mutex);
    return origin ? cudaSuccess : vgpu_fail(capture ? cudaErrorStreamCaptureUnmatched : cudaErrorIllegalState);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
    *status = is_capturing(stream) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}

static void capture_info(const void *stream, enum cudaStreamCaptureStatus *status, unsigned long long *id, cudaGraph_t *graph,
                         const cudaGraphNode_t **dependencies, size_t *count)
{
    static __thread cudaGraphNode_t last_node;
    pthread_mutex_lock(&mutex);
    Capture *capture = capture_of(stream);
    *status = capture ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    if (capture && id) *id = capture->id;
    if (capture && graph) *graph = (cudaGraph_t)(uintptr_t)capture->graph;
    if (capture) last_node = capture->last_node;
    if (dependencies) *dependencies = capture && capture->nodes ? &last_node : NULL;
    if (count) *count = capture && capture->nodes ? 1 : 0;
    pthread_mutex_unlock(&mutex);
}

#if CUDART_VERSION >= 13000
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                                     cudaGraph_t *graph, const cudaGraphNode_t **dependencies,
                                     const cudaGraphEdgeData **edges, size_t *count)
{
    if (edges) *edges = NULL;
    capture_info(stream, status, id, graph, dependencies, count);
    return cudaSuccess;
}
#else
#undef cudaStreamGetCaptureInfo
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id)
{
    capture_info(stream, status, id, NULL, NULL, NULL);
    return cudaSuccess;
}

cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                                        cudaGraph_t *graph, const cudaGraphNode_t **dependencies, size_t *count)
{
    capture_info(stream, status, id, graph, dependencies, count);
    return cudaSuccess;
}

cudaError_t cudaStreamGetCaptureInfo_v3(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                                        cudaGraph_t *graph, const cudaGraphNode_t **dependencies,
                                        const cudaGraphEdgeData **edges, size_t *count)
{
    if (edges) *edges = NULL;
    capture_info(stream, status, id, graph, dependencies, count);
    return cudaSuccess;
}
#endif

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
    static __thread enum cudaStreamCaptureMode current = cudaStreamCaptureModeGlobal;
    enum cudaStreamCaptureMode previous = current;
    current = *mode;
    *mode = previous;
    return cudaSuccess;
}

/* ---- graphs ---- */

static u64 copy_graph(u64 from)
{
    u64 made = vgpu_next_handle();
    VgpuEntry *entry = vgpu_table_find(&graphs, from);
    vgpu_table_put(&graphs, made, entry ? entry->value : 0, 0);
    return made;
}

static bool remove_graph(const void *graph)
{
    pthread_mutex_lock(&mutex);
    bool found = vgpu_table_remove(&graphs, key_of(graph), NULL);
    pthread_mutex_unlock(&mutex);
    return found;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *executable, cudaGraph_t graph, unsigned long long flags)
{
    (void)flags;
    pthread_mutex_lock(&mutex);
    *executable = (cudaGraphExec_t)(uintptr_t)copy_graph(key_of(graph));
    pthread_mutex_unlock(&mutex);
    return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count)
{
    if (nodes) oombisect_vgpu_unstubbed("cudaGraphGetNodes(asking for the nodes themselves)");
    pthread_mutex_lock(&mutex);
    VgpuEntry *entry = vgpu_table_find(&graphs, key_of(graph));
    *count = entry ? entry->value : 0;
    pthread_mutex_unlock(&mutex);
    return entry ? cudaSuccess : vgpu_fail(cudaErrorInvalidValue);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream)
{
    (void)executable;
    vgpu_use_context();
    vgpu_device_work(stream);
    return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t executable, cudaStream_t stream)
{
    (void)executable, (void)stream;
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable)
{
    return remove_graph(executable) ? cudaSuccess : vgpu_fail(cudaErrorInvalidValue);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    return remove_graph(graph) ? cudaSuccess : vgpu_fail(cudaErrorInvalidValue);
}

/* A user object's destructor would run when the last graph that holds it is destroyed; keeping it alive is safe. */
cudaError_t cudaUserObjectCreate(cudaUserObject_t *object, void *pointer, cudaHostFn_t destroy, unsigned int references,
                                 unsigned int flags)
{
    (void)pointer, (void)destroy, (void)references, (void)flags;
    *object = (cudaUserObject_t)(uintptr_t)vgpu_next_handle();
    return cudaSuccess;
}

cudaError_t cudaUserObjectRelease(cudaUserObject_t object, unsigned int count)
{
    (void)object, (void)count;
    return cudaSuccess;
}

cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object, unsigned int count, unsigned int flags)
{
    (void)graph, (void)object, (void)count, (void)flags;
    return cudaSuccess;
}

/* ---- streams ---- */

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned int flags, int priority)
{
    (void)flags, (void)priority;
    vgpu_use_context();
    *stream = (cudaStream_t)(uintptr_t)vgpu_next_handle();
    return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t *stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags)
{
    return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    (void)stream;
    return cudaSuccess;
}
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority)
{
    (void)stream;
    *priority = 0;
    return cudaSuccess;
}

/* To wait for a stream while it is captured is an error on a real device too. */
static cudaError_t wait_for(cudaStream_t stream)
{
    vgpu_use_context();
    return is_capturing(stream) ? vgpu_fail(cudaErrorStreamCaptureUnsupported) : cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return wait_for(stream); }
cudaError_t cudaStreamQuery(cudaStream_t stream) { return wait_for(stream); }

CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags)
{
    (void)flags;
    bool captured = vgpu_stream_node(stream);
    vgpu_known_write(address, captured ? NULL : &value, sizeof value);
    return CUDA_SUCCESS;
}

cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void *data, unsigned int flags)
{
    (void)flags;
    callback(stream, cudaSuccess, data);
    return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data)
{
    if (!vgpu_stream_node(stream)) function(data);
    return cudaSuccess;
}

/* ---- events ---- */

static VgpuTable unfinished; /* event -> its number, in order of recording; only while events are held */
static u64 recorded, finished; /* events numbered up to `finished` have completed */
static int holding; /* read without the lock as a fast path */

void oombisect_vgpu_finish_events(void)
{
    pthread_mutex_lock(&mutex);
    finished = recorded;
    pthread_mutex_unlock(&mutex);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags)
{
    (void)flags;
    vgpu_use_context();
    *event = (cudaEvent_t)(uintptr_t)vgpu_next_handle();
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, 0); }

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    pthread_mutex_lock(&mutex);
    vgpu_table_remove(&captured_events, key_of(event), NULL);
    vgpu_table_remove(&unfinished, key_of(event), NULL);
    pthread_mutex_unlock(&mutex);
    return cudaSuccess;
}

/* For tests, through ctypes: events recorded from now on do not complete until oombisect_vgpu_finish_events, or until one
 * of them is waited for. */
void oombisect_vgpu_hold_events(int hold)
{
    if (!hold) oombisect_vgpu_finish_events();
    __atomic_store_n(&holding, hold, __ATOMIC_RELAXED);
}

static void hold_event(const void *event) /* caller holds the mutex */
{
    vgpu_table_remove(&unfinished, key_of(event), NULL);
    if (__atomic_load_n(&holding, __ATOMIC_RELAXED)) vgpu_table_put(&unfinished, key_of(event), ++recorded, 0);
}

/* An event recorded in a capture draws the streams that wait for it into the same capture. */
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    vgpu_use_context();
    bool held = __atomic_load_n(&holding, __ATOMIC_RELAXED) || __atomic_load_n(&recorded, __ATOMIC_RELAXED);
    if (!held && !__atomic_load_n(&running, __ATOMIC_RELAXED)) return cudaSuccess;
    pthread_mutex_lock(&mutex);
    vgpu_table_remove(&captured_events, key_of(event), NULL);
    Capture *capture = capture_of(stream);
    if (!capture) hold_event(event);
    if (capture) vgpu_table_put(&captured_events, key_of(event), capture->id, 0);
    pthread_mutex_unlock(&mutex);
    return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned int flags)
{
    (void)flags;
    return cudaEventRecord(event, stream);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags)
{
    (void)flags;
    if (!__atomic_load_n(&running, __ATOMIC_RELAXED)) return cudaSuccess;
    pthread_mutex_lock(&mutex);
    VgpuEntry *entry = vgpu_table_find(&captured_events, key_of(event));
    for (Capture *capture = captures; entry && capture; capture = capture->next)
        if (capture->id == entry->value && capture_of(stream) != capture) join_capture(capture, stream);
    pthread_mutex_unlock(&mutex);
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    if (!__atomic_load_n(&recorded, __ATOMIC_RELAXED)) return cudaSuccess;
    pthread_mutex_lock(&mutex);
    VgpuEntry *entry = vgpu_table_find(&unfinished, key_of(event));
    bool done = !entry || entry->value <= finished;
    pthread_mutex_unlock(&mutex);
    return done ? cudaSuccess : vgpu_fail(cudaErrorNotReady);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    pthread_mutex_lock(&mutex);
    vgpu_table_remove(&unfinished, key_of(event), NULL);
    pthread_mutex_unlock(&mutex);
    return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end)
{
    (void)start, (void)end;
    *milliseconds = ELAPSED_MS;
    return cudaSuccess;
}
