/*
 * An MPI library that takes the memory of the stand-in for a CUDA driver: it is linked against a real one, which takes only
 * the host's, and copies around its calls. Device memory is copied to the host when a call begins, and results back when
 * MPI_Test says that it is done. It has no other functions: the rest is the real library's.
 *
 * MPI_ON_DEVICES_SAYS=0    MPIX_Query_cuda_support answers no
 * MPI_ON_DEVICES_RECORD=F  names of calls that were given device memory are appended to this file, one per line
 * MPI_ON_DEVICES_DIES=1:3  rank 1 ends in its third such call, when the others may be in theirs
 * MPI_ON_DEVICES_FAILS=1:3 rank 1's third such call fails
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef void *handle; /* in the standard ABI and in Open MPI's */

#define IN_PLACE ((void *)1)
#define MOST 4096
#define FAILED 1 /* MPI_ERR_BUFFER in both */

int PMPI_Iallreduce(const void *, void *, int, handle, handle, handle, handle *);
int PMPI_Ireduce(const void *, void *, int, handle, handle, int, handle, handle *);
int PMPI_Ireduce_scatter_block(const void *, void *, int, handle, handle, handle, handle *);
int PMPI_Ibcast(void *, int, handle, int, handle, handle *);
int PMPI_Iallgather(const void *, int, handle, void *, int, handle, handle, handle *);
int PMPI_Test(handle *, int *, void *);
int PMPI_Type_size(handle, int *);
int PMPI_Comm_size(handle, int *);
int PMPI_Comm_rank(handle, int *);

/* What is copied back once a request is done. */
struct staged {
    handle request;
    char *input, *output;
    uint64_t device;
    size_t bytes;
};

static struct staged under_way[MOST];

static void *driver(const char *name) {
    static void *library;
    if (!library)
        library = dlopen(getenv("PACELINE_CUDA_LIBRARY"), RTLD_NOW);
    void *function = library ? dlsym(library, name) : NULL;
    if (!function)
        abort();
    return function;
}

static void checked(int status, const char *call) {
    if (status != 0) {
        fprintf(stderr, "mpi_on_devices: %s failed with %d\n", call, status);
        abort();
    }
}

static int on_device(const void *address) {
    int (*attribute)(void *, int, uint64_t) = driver("cuPointerGetAttribute");
    unsigned kind = 0;
    return address && address != IN_PLACE && attribute(&kind, 2, (uint64_t)(uintptr_t)address) == 0 && kind == 2;
}

/* The host's copy of device memory. */
static char *fetched(const void *address, size_t bytes) {
    int (*copy)(void *, uint64_t, size_t) = driver("cuMemcpyDtoH_v2");
    char *host = malloc(bytes + 1);
    if (bytes)
        checked(copy(host, (uint64_t)(uintptr_t)address, bytes), "cuMemcpyDtoH_v2");
    return host;
}

/* Whether a variable names this rank and call. */
static int is_due(const char *variable, int call, handle comm) {
    int rank = -1, which = -1, at = 0;
    const char *text = getenv(variable);
    return text && sscanf(text, "%d:%d", &which, &at) == 2 && at == call && !PMPI_Comm_rank(comm, &rank) && rank == which;
}

/* Notes a call that was given device memory; returns whether it is to fail. */
static int record(const char *call, handle comm) {
    static int calls;
    char line[64];
    const char *file = getenv("MPI_ON_DEVICES_RECORD");
    calls++;
    if (is_due("MPI_ON_DEVICES_DIES", calls, comm))
        _exit(7);
    if (file) {
        int to = open(file, O_WRONLY | O_CREAT | O_APPEND, 0600);
        snprintf(line, sizeof line, "%s\n", call);
        if (write(to, line, strlen(line)) < 0)
            abort();
        close(to);
    }
    return is_due("MPI_ON_DEVICES_FAILS", calls, comm);
}

/* Remembers what belongs to a request that has begun. */
static int begun(int code, handle request, char *input, char *output, const void *device, size_t bytes) {
    for (int i = 0; i < MOST; i++)
        if (!under_way[i].request) {
            under_way[i] = (struct staged){request, input, output, (uint64_t)(uintptr_t)device, bytes};
            return code;
        }
    abort();
}

static size_t size_of(int count, handle type) {
    int size = 0;
    PMPI_Type_size(type, &size);
    return (size_t)count * size;
}

int MPIX_Query_cuda_support(void) {
    const char *says = getenv("MPI_ON_DEVICES_SAYS");
    return !says || atoi(says);
}

int MPI_Iallreduce(const void *from, void *to, int count, handle type, handle op, handle comm, handle *request) {
    if (!on_device(to))
        return PMPI_Iallreduce(from, to, count, type, op, comm, request);
    if (record("MPI_Iallreduce", comm))
        return FAILED;
    size_t bytes = size_of(count, type);
    char *host = fetched(to, bytes);
    int code = PMPI_Iallreduce(from, host, count, type, op, comm, request);
    return begun(code, *request, NULL, host, to, bytes);
}

int MPI_Ireduce(const void *from, void *to, int count, handle type, handle op, int root, handle comm, handle *request) {
    int receives = on_device(to);
    if (!receives && !on_device(from))
        return PMPI_Ireduce(from, to, count, type, op, root, comm, request);
    if (record("MPI_Ireduce", comm))
        return FAILED;
    size_t bytes = size_of(count, type);
    char *host = fetched(receives ? to : from, bytes);
    int code = PMPI_Ireduce(receives ? from : host, receives ? host : NULL, count, type, op, root, comm, request);
    return begun(code, *request, NULL, host, receives ? to : NULL, receives ? bytes : 0);
}

int MPI_Ireduce_scatter_block(const void *from, void *to, int count, handle type, handle op, handle comm,
                              handle *request) {
    if (!on_device(to))
        return PMPI_Ireduce_scatter_block(from, to, count, type, op, comm, request);
    if (record("MPI_Ireduce_scatter_block", comm))
        return FAILED;
    int ranks = 0;
    PMPI_Comm_size(comm, &ranks);
    size_t bytes = size_of(count, type);
    char *input = fetched(from, bytes * ranks), *host = malloc(bytes + 1);
    int code = PMPI_Ireduce_scatter_block(input, host, count, type, op, comm, request);
    return begun(code, *request, input, host, to, bytes);
}

int MPI_Ibcast(void *buffer, int count, handle type, int root, handle comm, handle *request) {
    if (!on_device(buffer))
        return PMPI_Ibcast(buffer, count, type, root, comm, request);
    if (record("MPI_Ibcast", comm))
        return FAILED;
    size_t bytes = size_of(count, type);
    char *host = fetched(buffer, bytes);
    int code = PMPI_Ibcast(host, count, type, root, comm, request);
    return begun(code, *request, NULL, host, buffer, bytes);
}

int MPI_Iallgather(const void *from, int sent, handle type, void *to, int received, handle into, handle comm,
                   handle *request) {
    if (!on_device(to))
        return PMPI_Iallgather(from, sent, type, to, received, into, comm, request);
    if (record("MPI_Iallgather", comm))
        return FAILED;
    int ranks = 0;
    PMPI_Comm_size(comm, &ranks);
    size_t bytes = size_of(received, into) * ranks;
    char *input = fetched(from, size_of(sent, type)), *host = malloc(bytes + 1);
    int code = PMPI_Iallgather(input, sent, type, host, received, into, comm, request);
    return begun(code, *request, input, host, to, bytes);
}

int MPI_Test(handle *request, int *done, void *status) {
    int (*copy)(uint64_t, const void *, size_t) = NULL;
    handle asked = *request;
    int code = PMPI_Test(request, done, status);
    for (int i = 0; code == 0 && *done && asked && i < MOST; i++)
        if (under_way[i].request == asked) {
            copy = driver("cuMemcpyHtoD_v2");
            if (under_way[i].bytes)
                checked(copy(under_way[i].device, under_way[i].output, under_way[i].bytes), "cuMemcpyHtoD_v2");
            free(under_way[i].input);
            free(under_way[i].output);
            under_way[i].request = NULL;
            break;
        }
    return code;
}
