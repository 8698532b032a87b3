"""The stand-in for a CUDA driver: kernels, memory of other processes, and numbers that streams wait for."""

import ctypes
import mmap
import multiprocessing
import os
import sys
from functools import reduce

import cuda_stand_in
import numpy as np
import pytest

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the stand-in needs memfd"),
]

LIMIT_S = 60
OPS = {"sum": np.add, "min": np.minimum, "max": np.maximum, "product": np.multiply}
DTYPES = {"f32": "f4", "f64": "f8", "f16": "f2", "bf16": "u2", "i32": "i4", "i64": "i8", "u8": "u1"}
PTX = "//\n.version 7.7\n.target sm_70 // .entry comment\n" + "\n".join(
    f".visible .entry combine_{op}_{dtype}(\n)" for op in OPS for dtype in DTYPES
)
INVALID_VALUE, INVALID_CONTEXT, INVALID_HANDLE, NOT_FOUND = 1, 201, 400, 500
ILLEGAL_ADDRESS, ALREADY_REGISTERED, NOT_REGISTERED, MISALIGNED_ADDRESS = 700, 712, 713, 716

u64, u32 = ctypes.c_uint64, ctypes.c_uint32


class Handle(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_ubyte * 64),)


class Arguments(ctypes.Structure):
    _fields_ = (
        ("to", u64 * 8),
        ("from_", u64 * 8),
        ("elements", u64),
        ("factor", ctypes.c_double),
        ("targets", u32),
        ("sources", u32),
        ("scaled", u32),
        ("unused", u32),
    )


class Device(cuda_stand_in.Device):
    """With kernels, and memory of other processes."""

    def __init__(self, path):
        super().__init__(path)
        pointer, integer = ctypes.c_void_p, ctypes.c_int
        for name, kinds in {
            "cuLaunchKernel": [pointer, *[u32] * 7, pointer, pointer, pointer],
            "cuModuleGetFunction": [pointer, pointer, ctypes.c_char_p],
            "cuModuleUnload": [pointer],
            "cuIpcGetMemHandle": [pointer, u64],
            "cuIpcOpenMemHandle_v2": [pointer, Handle, u32],
            "cuIpcCloseMemHandle": [u64],
            "cuMemHostRegister_v2": [pointer, ctypes.c_size_t, u32],
            "cuMemHostUnregister": [pointer],
            "cuMemHostGetDevicePointer_v2": [pointer, pointer, u32],
            "cuMemGetAddressRange_v2": [pointer, pointer, u64],
            "cuPointerGetAttribute": [pointer, integer, u64],
            "cuStreamWaitValue32_v2": [pointer, u64, u32, u32],
            "cuStreamWriteValue32_v2": [pointer, u64, u32, u32],
            "cuMemcpyDtoDAsync_v2": [u64, u64, ctypes.c_size_t, pointer],
            "cuMemcpyDtoHAsync_v2": [pointer, u64, ctypes.c_size_t, pointer],
        }.items():
            getattr(self.driver, name).argtypes = kinds
        self.module = pointer()
        self.check(self.driver.cuModuleLoadData(ctypes.byref(self.module), PTX.encode()))

    def function(self, name):
        result = ctypes.c_void_p()
        self.check(self.driver.cuModuleGetFunction(ctypes.byref(result), self.module, name.encode()))
        return result

    def combine(self, name, to, sources, elements, stream=1, factor=None, *, threads=512):  # noqa: PLR0917
        arguments = Arguments((u64 * 8)(*to), (u64 * 8)(*sources), elements, factor or 0, len(to), len(sources))
        arguments.scaled = factor is not None
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(arguments))
        status = self.driver.cuLaunchKernel(self.function(name), 4, 1, 1, threads, 1, 1, 0, stream, parameters, None)
        # They were copied.
        ctypes.memset(ctypes.addressof(arguments), 0xFF, ctypes.sizeof(arguments))
        return status

    def handle(self, address):
        handle = Handle()
        self.check(self.driver.cuIpcGetMemHandle(ctypes.byref(handle), address))
        return bytes(handle)

    def open(self, handle):
        """The status, and the address."""
        address = u64()
        status = self.driver.cuIpcOpenMemHandle_v2(ctypes.byref(address), Handle.from_buffer_copy(handle), 1)
        return status, address.value

    def attribute(self, attribute, address):
        value = u64()
        self.check(self.driver.cuPointerGetAttribute(ctypes.byref(value), attribute, address))
        return value.value


def _begin(act, env, library, peer, arguments):
    os.environ.update(env)
    act(Device(library), peer, *arguments)


def run(act, *arguments, size=1, **env):
    """Run `act` in processes of their own, which must all succeed; of two, each has a pipe to the other."""
    spawn = multiprocessing.get_context("spawn")
    library = cuda_stand_in.library()
    ends = spawn.Pipe() if size == 2 else (None,)
    processes = [
        spawn.Process(target=_begin, args=(act, {**env, "PACELINE_RANK": str(rank)}, library, end, arguments))
        for rank, end in enumerate(ends)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(LIMIT_S)
        process.kill()
    assert [process.exitcode for process in processes] == [0] * size


def numbers(dtype, seed, count):
    values = np.random.default_rng(seed).integers(-100, 100, count)
    if dtype == "bf16":
        return (values / 7).astype("f4").view("u4").__rshift__(16).astype("u2")
    return (values / 7 if dtype.startswith("f") else values).astype(DTYPES[dtype])


def combined(op, dtype, arrays, factor):
    """By numpy: of float16 and bfloat16, the combination is rounded once."""
    if dtype == "f16":
        arrays = [array.astype("f4") for array in arrays]
    elif dtype == "bf16":
        arrays = [(array.astype("u4") << 16).view("f4") for array in arrays]
    result = reduce(OPS[op], arrays)
    if factor is not None:
        kind = result.dtype.type
        whole = np.trunc(result * np.float64(factor)) if result.dtype.kind in "iu" else result * kind(factor)
        result = whole.astype(kind)
    if dtype == "bf16":
        bits = result.view("u4")
        return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("u2")
    return result.astype(DTYPES[dtype])


def _every_kernel(on, _peer):
    count = 40_000  # several blocks of some types
    for op in OPS:
        for dtype in DTYPES:
            for sources, factor in ((1, None), (2, None), (3, 0.25), (1, 0.3)):
                arrays = [numbers(dtype, seed, count) for seed in range(sources)]
                there = [on.array(array) for array in arrays]
                more = on.array(np.zeros_like(arrays[0]))
                # In place, too.
                to = [there[0].address, more.address]
                name = f"combine_{op}_{dtype}"
                on.check(on.combine(name, to, [array.address for array in there], count, factor=factor))
                want = combined(op, dtype, arrays, factor)
                for array in (there[0], more):
                    np.testing.assert_array_equal(array.host(), want, f"{name}, {sources} sources, factor {factor}")
                for array in (*there, more):
                    array.free()


def test_every_kernel_computes_what_numpy_does():
    run(_every_kernel)


def _special_numbers(on, _peer):
    def both(op, dtype, one, other, factor=None):
        kind = DTYPES[dtype]
        one, other = (on.array(np.array(values, kind)) for values in (one, other))
        to = on.array(np.zeros(one.shape, kind))
        on.check(on.combine(f"combine_{op}_{dtype}", [to.address], [one.address, other.address], one.size, 1, factor))
        return to.host()

    for dtype, canonical in (("f32", 0x7FC00000), ("f64", 0x7FF8 << 48), ("f16", 0x7E00)):
        bits = f"u{np.dtype(DTYPES[dtype]).itemsize}"
        for op, zero in (("min", -0.0), ("max", 0.0)):
            got = both(op, dtype, [0.0, -0.0, np.nan, 1.0], [-0.0, 0.0, 1.0, -np.nan])
            assert np.copysign(1, got[:2]).tolist() == [np.copysign(1, zero)] * 2, (op, dtype, got)
            assert got[2:].view(bits).tolist() == [canonical] * 2, (op, dtype, got)
    assert both("sum", "i64", [2**63 - 1, 98], [1, 0]).tolist() == [-(2**63), 98]
    # A division, which is exact; and nothing at all.
    assert both("sum", "i64", [2**62 + 1, 97], [0, 1], 1 / 49).tolist() == [(2**62 + 1) // 49, 2]
    assert both("sum", "i64", [2**62 + 1], [0], 1.0).tolist() == [2**62 + 1]
    assert both("sum", "i32", [-7], [0], 0.5).tolist() == [-3]
    assert both("sum", "u8", [200], [0], 2.0).tolist() == [255]
    # 2048 + 1 + 1 is 2050 if it is rounded once.
    assert both("sum", "f16", [2049.0], [0.0], 1.0).tolist() == [2048.0]
    thrice = [on.array(np.array([value], "f2")) for value in (2048, 1, 1)]
    on.check(on.combine("combine_sum_f16", [thrice[0].address], [array.address for array in thrice], 1))
    assert thrice[0].host().tolist() == [2050.0]


def test_zeros_nans_and_integers_are_those_of_the_kernels_of_the_host():
    run(_special_numbers)


def _refused(on, _peer):
    driver, result = on.driver, ctypes.c_void_p()
    get = driver.cuModuleGetFunction
    assert get(ctypes.byref(result), on.module, b"combine_sum_f80") == NOT_FOUND
    assert get(ctypes.byref(result), on.module, b"comment") == NOT_FOUND
    assert get(ctypes.byref(result), 7, b"combine_sum_f32") == INVALID_HANDLE
    assert driver.cuModuleLoadData(ctypes.byref(result), b"no PTX") == 218
    array = on.array(np.zeros(4, "f4"))
    assert on.combine("combine_sum_f32", [array.address], [], 4) == INVALID_VALUE
    assert on.combine("combine_sum_f32", [array.address], [array.address], 4, threads=2048) == INVALID_VALUE
    function = on.function("combine_sum_f32")
    on.check(driver.cuModuleUnload(on.module))
    parameters = (ctypes.c_void_p * 1)()
    assert driver.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, 1, parameters, None) == INVALID_HANDLE
    # Numbers that a stream may not use, and memory that is not registered, or twice.
    host = np.zeros(1024, "u4")
    address = host.ctypes.data
    for call in (driver.cuStreamWaitValue32_v2, driver.cuStreamWriteValue32_v2):
        assert call(1, address, 0, 0) == INVALID_VALUE
        on.check(call(1, array.address, 0, 0))
        assert call(1, array.address + 2, 0, 0) == INVALID_VALUE
    device_address = u64()
    assert driver.cuMemHostGetDevicePointer_v2(ctypes.byref(device_address), address, 0) == INVALID_VALUE
    on.check(driver.cuMemHostRegister_v2(address, host.nbytes, 0))
    on.check(driver.cuMemHostGetDevicePointer_v2(ctypes.byref(device_address), address + 8, 0))
    assert device_address.value == address + 8
    assert driver.cuMemHostRegister_v2(address + 8, 8, 0) == ALREADY_REGISTERED
    on.check(driver.cuStreamWriteValue32_v2(1, address + 4092, 5, 0))
    assert driver.cuStreamWriteValue32_v2(1, address + 4096, 5, 0) == INVALID_VALUE
    on.check(driver.cuMemHostUnregister(address))
    assert host[-1] == 5, "unregistering waits for streams"
    assert driver.cuMemHostUnregister(address) == NOT_REGISTERED
    # Of the whole allocation, from inside of it.
    base, size = u64(), ctypes.c_size_t()
    on.check(driver.cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(size), array.address + 5))
    assert (base.value, size.value) == (array.address, 16)
    assert driver.cuMemGetAddressRange_v2(None, None, array.address + 16) == NOT_FOUND
    other = on.array(np.arange(4, dtype="f4"))
    on.check(driver.cuMemcpyDtoDAsync_v2(array.address + 4, other.address + 8, 8, 1))
    assert array.host().tolist() == [0, 2, 3, 0]


def test_mistakes_are_refused():
    run(_refused)


def _breaks(on, _peer, elements, shift, error):
    array = on.array(np.zeros(8, "f4"))
    on.check(on.combine("combine_sum_f32", [array.address], [array.address + shift], elements))
    on.driver.cuStreamSynchronize(1)
    assert on.driver.cuStreamSynchronize(1) == error
    assert on.driver.cuMemFree_v2(array.address) == error


@pytest.mark.parametrize(
    ("elements", "shift", "error"), [(9, 0, ILLEGAL_ADDRESS), (8, 4, ILLEGAL_ADDRESS), (4, 2, MISALIGNED_ADDRESS)]
)
def test_a_stray_address_breaks_the_context(elements, shift, error):
    run(_breaks, elements, shift, error)


def _faults(on, _peer):
    array = on.array(np.zeros(1, "f4"))
    assert on.driver.cuIpcGetMemHandle(ctypes.byref(Handle()), array.address) == 0
    assert on.driver.cuIpcGetMemHandle(ctypes.byref(Handle()), array.address) == 205
    name = ctypes.c_char_p()
    on.check(on.driver.cuGetErrorName(205, ctypes.byref(name)))
    assert name.value == b"CUDA_ERROR_MAP_FAILED"


def test_calls_fail_when_they_are_told_to():
    run(_faults, CUDA_STAND_IN_FAULT="cuIpcGetMemHandle:2:205")


def _unshared(on, _peer):
    array = on.array(np.zeros(1, "f4"))
    assert on.driver.cuIpcGetMemHandle(ctypes.byref(Handle()), array.address) == INVALID_VALUE


def test_memory_that_cannot_be_shared():
    run(_unshared, CUDA_STAND_IN_UNSHARED="1")


def _devices(on, peer):
    uuids, value = (ctypes.create_string_buffer(16), ctypes.create_string_buffer(16)), ctypes.c_int()
    for number, uuid in enumerate(uuids):
        on.check(on.driver.cuDeviceGetUuid_v2(uuid, number))
    assert uuids[0].raw != uuids[1].raw
    peer.send(uuids[0].raw)
    assert (peer.recv() == uuids[0].raw) == ("CUDA_STAND_IN_APART" not in os.environ)
    on.check(on.driver.cuDeviceGetAttribute(ctypes.byref(value), 16, 0))
    assert value.value == 4
    on.check(on.driver.cuDeviceCanAccessPeer(ctypes.byref(value), 0, 1))
    assert value.value == 1
    assert on.driver.cuDeviceGetAttribute(ctypes.byref(value), 16, 2) == 101


@pytest.mark.parametrize("env", [{}, {"CUDA_STAND_IN_APART": "1"}])
def test_processes_see_the_same_devices(env):
    run(_devices, size=2, **env)


def _opens(on, peer):
    array = on.array(np.arange(1000, dtype="f4"))
    array.host()
    # Of a part, as PyTorch's allocator gives out.
    own = on.handle(array.address + 400)
    assert own == on.handle(array.address)
    assert on.open(own)[0] == INVALID_CONTEXT
    peer.send(own)
    theirs = peer.recv()
    (status, address), again = on.open(theirs), on.open(theirs)
    assert (status, address) == again and status == 0
    # As device memory: its kind, its device, a number of its own, and its size.
    assert [on.attribute(number, address) for number in (2, 9)] == [2, 0]
    assert on.attribute(7, address) != on.attribute(7, array.address)
    size = ctypes.c_size_t()
    on.check(on.driver.cuMemGetAddressRange_v2(None, ctypes.byref(size), address + 100))
    assert size.value == 4000
    assert on.driver.cuMemFree_v2(address) == INVALID_VALUE
    assert on.driver.cuIpcGetMemHandle(ctypes.byref(Handle()), address) == INVALID_VALUE
    on.check(on.driver.cuIpcCloseMemHandle(address))
    assert on.driver.cuIpcCloseMemHandle(array.address) == INVALID_VALUE
    peer.send(None), peer.recv()
    # What is open outlives its owner's cuMemFree, also if other memory takes its place; a handle does not.
    array.free()
    on.array(np.zeros(1000, "f4")).host()
    peer.send(None), peer.recv()
    values = np.zeros(1000, "f4")
    on.check(on.driver.cuMemcpyDtoH_v2(values.ctypes.data, address, values.nbytes))
    assert values.tolist() == list(range(1000))
    on.check(on.driver.cuIpcCloseMemHandle(address))
    assert on.driver.cuIpcCloseMemHandle(address) == INVALID_VALUE
    assert on.open(theirs)[0] == INVALID_HANDLE
    assert on.driver.cuMemcpyDtoH_v2(values.ctypes.data, address, values.nbytes) == ILLEGAL_ADDRESS
    peer.send(None), peer.recv()


def test_memory_of_another_process():
    run(_opens, size=2)


def _all_reduce(on, peer, path, count, steps):
    """Each rank combines its half of both ranks' memory; the streams, not the hosts, wait for one another."""
    rank, first = int(os.environ["PACELINE_RANK"]), 2**32 - 2
    with open(path, "r+b") as file:  # noqa: PTH123 a descriptor's file
        shared = mmap.mmap(file.fileno(), 4096)
    counters = ctypes.addressof(ctypes.c_char.from_buffer(shared))
    on.check(on.driver.cuMemHostRegister_v2(counters, 4096, 0))
    # Counters that pass zero: whoever compares them without their cycle waits for ever, or not at all.
    written, done = ([counters + 64 * (2 * which + of) for of in range(2)] for which in range(2))
    stream = on.stream()
    array = on.array(np.zeros(count, "f4"), stream)
    peer.send(on.handle(array.address))
    status, theirs = on.open(peer.recv())
    on.check(status)
    both = [array.address, theirs] if rank == 0 else [theirs, array.address]
    half = count // 2
    part = [address + 4 * half * rank for address in both]
    elements = count - half if rank else half
    inputs = [[np.random.default_rng([step, of]).random(count, "f4") for of in range(2)] for step in range(steps)]
    outputs = np.zeros((steps, count), "f4")
    for step in range(steps):
        number = (first + step) % 2**32
        array.write(inputs[step][rank])
        on.check(on.driver.cuStreamWriteValue32_v2(stream, written[rank], number, 0))
        on.check(on.driver.cuStreamWaitValue32_v2(stream, written[1 - rank], number, 0))
        on.check(on.combine("combine_sum_f32", part, part, elements, stream, 0.5))
        on.check(on.driver.cuStreamWriteValue32_v2(stream, done[rank], number, 0))
        on.check(on.driver.cuStreamWaitValue32_v2(stream, done[1 - rank], number, 0))
        to = outputs[step].ctypes.data
        on.check(on.driver.cuMemcpyDtoHAsync_v2(to, array.address, array.nbytes, stream))
    on.synchronize(stream)
    for step in range(steps):
        want = (inputs[step][0] + inputs[step][1]) * np.float32(0.5)
        np.testing.assert_array_equal(outputs[step], want, f"step {step}")
    on.check(on.driver.cuIpcCloseMemHandle(theirs))
    on.check(on.driver.cuMemHostUnregister(counters))
    peer.send(None), peer.recv()


@pytest.mark.parametrize("seed", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_streams_of_two_processes_combine_their_memory(seed):
    file = os.memfd_create("counters")
    try:
        os.ftruncate(file, 4096)
        for of in range(4):
            os.pwrite(file, (2**32 - 3).to_bytes(4, "little"), 64 * of)
        path = f"/proc/{os.getpid()}/fd/{file}"
        run(_all_reduce, path, 100_001, 6, size=2, CUDA_STAND_IN_SEED=str(seed))
    finally:
        os.close(file)
