"""The stand-in for a CUDA driver (crates/cuda-stand-in), and arrays in its memory."""

import ctypes
import json
import subprocess
from functools import cache
from pathlib import Path

import numpy as np
from paceline.job import dlpack

ROOT = Path(__file__).parents[1]


@cache
def library():
    """The path of the stand-in, which is compiled if need be."""
    command = ["cargo", "build", "--locked", "--release", "--message-format=json", "-p", "paceline-cuda-stand-in"]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    documents = [json.loads(line) for line in built.stdout.splitlines() if line.startswith("{")]
    names = [name for document in documents for name in document.get("filenames", ())]
    return next(name for name in names if name.endswith(".so") and "cuda_stand_in" in name)


class Device:
    """A device of the stand-in, as another library of this process would use it."""

    def __init__(self, path, ordinal=0):
        self.driver = ctypes.CDLL(path)
        self.driver.cuMemFree_v2.argtypes = [ctypes.c_uint64]
        self.driver.cuMemcpyHtoD_v2.argtypes = [ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t]
        self.driver.cuMemcpyDtoH_v2.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t]
        self.driver.cuMemcpyHtoDAsync_v2.argtypes = [ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
        self.driver.cuStreamSynchronize.argtypes = [ctypes.c_void_p]
        self.driver.cuStreamDestroy_v2.argtypes = [ctypes.c_void_p]
        self._context = ctypes.c_void_p()
        self.check(self.driver.cuDevicePrimaryCtxRetain(ctypes.byref(self._context), ordinal))
        self.enter()

    def enter(self):
        """Make its context current in this thread."""
        self.check(self.driver.cuCtxPushCurrent_v2(self._context))

    @staticmethod
    def check(status):
        assert status == 0, f"error {status} of the stand-in"

    def stream(self):
        made = ctypes.c_void_p()
        self.check(self.driver.cuStreamCreate(ctypes.byref(made), 1))
        return made.value

    def event(self, stream):
        """An event that happens once the stream has come here."""
        made = ctypes.c_void_p()
        self.check(self.driver.cuEventCreate(ctypes.byref(made), 0))
        self.check(self.driver.cuEventRecord(made, ctypes.c_void_p(stream)))
        return made

    def wait_event(self, stream, event):
        """What the stream is told from now on begins once the event has happened."""
        self.check(self.driver.cuStreamWaitEvent(ctypes.c_void_p(stream), event, 0))

    def wait_number(self, stream, number):
        """The stream goes on once this array of uint32, which must be kept, is at least 1."""
        address = number.ctypes.data
        self.check(self.driver.cuMemHostRegister_v2(ctypes.c_void_p(address), ctypes.c_size_t(number.nbytes), 0))
        self.check(self.driver.cuStreamWaitValue32_v2(ctypes.c_void_p(stream), ctypes.c_uint64(address), 1, 0))

    def synchronize(self, stream):
        self.check(self.driver.cuStreamSynchronize(stream))

    def settle(self):
        """Wait until all streams have done what they were told, as freeing page-locked memory does."""
        memory = ctypes.c_void_p()
        self.check(self.driver.cuMemHostAlloc(ctypes.byref(memory), ctypes.c_size_t(64), 0))
        self.check(self.driver.cuMemFreeHost(memory))

    def array(self, values, stream=1):
        """Device memory with these values, once its stream has come there."""
        return DeviceArray(self, values, stream)


class DeviceArray:
    """An array on a device: the CUDA array interface, and numpy's attributes that tests use."""

    def __init__(self, device, values, stream):
        self.device, self.stream = device, stream
        self.shape, self.dtype, self.size, self.nbytes = values.shape, values.dtype, values.size, values.nbytes
        address = ctypes.c_uint64()
        device.check(device.driver.cuMemAlloc_v2(ctypes.byref(address), max(values.nbytes, 1)))
        self.address = address.value
        # In the order of the stream: the memory holds nothing sensible before.
        self._source = np.ascontiguousarray(values).copy()
        self.write(self._source)

    @property
    def __cuda_array_interface__(self):
        return {
            "data": (self.address, False),
            "shape": self.shape,
            "typestr": self.dtype.str,
            "strides": None,
            "stream": self.stream,
            "version": 3,
        }

    def write(self, values):
        """Tell its stream to write these values, which must be kept."""
        copy = self.device.driver.cuMemcpyHtoDAsync_v2
        self.device.check(copy(self.address, values.ctypes.data, values.nbytes, self.stream))

    def host(self):
        """Its values once its stream has come here."""
        self.device.synchronize(self.stream)
        values = np.empty(self.shape, self.dtype)
        self.device.check(self.device.driver.cuMemcpyDtoH_v2(values.ctypes.data, self.address, self.nbytes))
        return values

    def free(self):
        self.device.check(self.device.driver.cuMemFree_v2(self.address))


class ByDLPack:
    """The same array for whom only DLPack is known."""

    def __init__(self, array):
        self.array = array
        interface = array.__cuda_array_interface__
        self.shape = (ctypes.c_int64 * 1)(*interface["shape"])
        kind = {"f": 2, "i": 0, "u": 1}[interface["typestr"][1]], 8 * int(interface["typestr"][2:]), 1
        self.tensor = dlpack._Tensor(interface["data"][0], (dlpack.CUDA, 0), 1, kind, self.shape, None, 0)

    def __dlpack_device__(self):
        return dlpack.CUDA, 0

    def __dlpack__(self, *, stream):
        assert stream == 1
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return new(ctypes.addressof(self.tensor), b"dltensor", None)
