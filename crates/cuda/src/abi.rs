//! The driver's functions that are called, and the values of `cuda.h` constants.
//!
//! Names that `cuda.h` defines with a suffix (`cuMemAlloc_v2`) have it here, too: the library keeps older functions under
//! the plain names.
#![allow(unsafe_code, reason = "symbols of a library that is loaded at run time become functions here")]
use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::library::functions;

/// `CUresult`.
pub(crate) type Status = c_int;
/// `CUdevice`.
pub(crate) type DeviceNumber = c_int;
/// `CUdeviceptr`.
pub(crate) type Address = u64;
/// `CUcontext`, `CUstream` and `CUevent`: addresses in the library.
pub(crate) type Opaque = *mut c_void;

pub(crate) const SUCCESS: Status = 0;
pub(crate) const NOT_READY: Status = 600;

/// `CU_STREAM_NON_BLOCKING`: no implicit order with the default stream.
pub(crate) const STREAM_NON_BLOCKING: c_uint = 1;
/// `CU_EVENT_DISABLE_TIMING`.
pub(crate) const EVENT_DISABLE_TIMING: c_uint = 2;
/// `CU_MEMHOSTALLOC_PORTABLE`: page-locked for all contexts.
pub(crate) const HOST_PORTABLE: c_uint = 1;
/// `CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL`, `CU_POINTER_ATTRIBUTE_MEMORY_TYPE` and its value for device memory.
pub(crate) const POINTER_DEVICE: c_int = 9;
pub(crate) const POINTER_MEMORY_TYPE: c_int = 2;
pub(crate) const MEMORY_OF_DEVICE: c_uint = 2;
/// `CU_POINTER_ATTRIBUTE_BUFFER_ID`: another number for each allocation of a process, also at the same address.
pub(crate) const POINTER_BUFFER: c_int = 7;
/// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT`.
pub(crate) const MULTIPROCESSORS: c_int = 16;
/// `CUDA_ERROR_ALREADY_MAPPED`.
pub(crate) const ALREADY_MAPPED: Status = 208;
/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`.
pub(crate) const IPC_PEER_ACCESS: c_uint = 1;
/// `CU_MEMHOSTREGISTER_PORTABLE` and `CU_MEMHOSTREGISTER_DEVICEMAP`: for all contexts, and at a device address.
pub(crate) const REGISTER_PORTABLE: c_uint = 1;
pub(crate) const REGISTER_MAPPED: c_uint = 2;
/// `CU_STREAM_WAIT_VALUE_GEQ`: until `(int32_t)(*address - value) >= 0`.
pub(crate) const WAIT_AT_LEAST: c_uint = 0;
/// `CU_STREAM_WRITE_VALUE_DEFAULT`: what the stream wrote before is visible to all that see the value.
pub(crate) const WRITE_AFTER_ALL: c_uint = 0;

/// `CUipcMemHandle`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct IpcHandle(pub [u8; 64]);

functions! {
    "a driver of CUDA 11.7 or later";
    init = "cuInit" (c_uint);
    driver_get_version = "cuDriverGetVersion" (*mut c_int);
    get_error_name = "cuGetErrorName" (Status, *mut *const c_char);
    get_error_string = "cuGetErrorString" (Status, *mut *const c_char);
    device_get_count = "cuDeviceGetCount" (*mut c_int);
    device_get = "cuDeviceGet" (*mut DeviceNumber, c_int);
    device_get_name = "cuDeviceGetName" (*mut c_char, c_int, DeviceNumber);
    device_get_uuid = "cuDeviceGetUuid_v2" (*mut [u8; 16], DeviceNumber);
    primary_context_retain = "cuDevicePrimaryCtxRetain" (*mut Opaque, DeviceNumber);
    primary_context_release = "cuDevicePrimaryCtxRelease_v2" (DeviceNumber);
    context_push = "cuCtxPushCurrent_v2" (Opaque);
    context_set = "cuCtxSetCurrent" (Opaque);
    context_pop = "cuCtxPopCurrent_v2" (*mut Opaque);
    pointer_get_attribute = "cuPointerGetAttribute" (*mut c_void, c_int, Address);
    host_alloc = "cuMemHostAlloc" (*mut *mut c_void, usize, c_uint);
    host_free = "cuMemFreeHost" (*mut c_void);
    copy_to_host = "cuMemcpyDtoHAsync_v2" (*mut c_void, Address, usize, Opaque);
    copy_to_device = "cuMemcpyHtoDAsync_v2" (Address, *const c_void, usize, Opaque);
    stream_create = "cuStreamCreate" (*mut Opaque, c_uint);
    stream_destroy = "cuStreamDestroy_v2" (Opaque);
    stream_query = "cuStreamQuery" (Opaque);
    stream_wait_event = "cuStreamWaitEvent" (Opaque, Opaque, c_uint);
    launch_host_function = "cuLaunchHostFunc" (Opaque, unsafe extern "C" fn(*mut c_void), *mut c_void);
    event_create = "cuEventCreate" (*mut Opaque, c_uint);
    event_destroy = "cuEventDestroy_v2" (Opaque);
    event_record = "cuEventRecord" (Opaque, Opaque);
    event_query = "cuEventQuery" (Opaque);
    device_get_attribute = "cuDeviceGetAttribute" (*mut c_int, c_int, DeviceNumber);
    module_load_data = "cuModuleLoadData" (*mut Opaque, *const c_void);
    module_unload = "cuModuleUnload" (Opaque);
    module_get_function = "cuModuleGetFunction" (*mut Opaque, Opaque, *const c_char);
    launch_kernel = "cuLaunchKernel"
        (Opaque, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Opaque, *mut *mut c_void, *mut *mut c_void);
    copy_on_device = "cuMemcpyDtoDAsync_v2" (Address, Address, usize, Opaque);
    mem_alloc = "cuMemAlloc_v2" (*mut Address, usize);
    mem_free = "cuMemFree_v2" (Address);
    address_range = "cuMemGetAddressRange_v2" (*mut Address, *mut usize, Address);
    ipc_get_handle = "cuIpcGetMemHandle" (*mut IpcHandle, Address);
    ipc_open_handle = "cuIpcOpenMemHandle_v2" (*mut Address, IpcHandle, c_uint);
    ipc_close_handle = "cuIpcCloseMemHandle" (Address);
    host_register = "cuMemHostRegister_v2" (*mut c_void, usize, c_uint);
    host_unregister = "cuMemHostUnregister" (*mut c_void);
    host_device_address = "cuMemHostGetDevicePointer_v2" (*mut Address, *mut c_void, c_uint);
    stream_wait_value = "cuStreamWaitValue32_v2" (Opaque, Address, u32, c_uint);
    stream_write_value = "cuStreamWriteValue32_v2" (Opaque, Address, u32, c_uint);
}
