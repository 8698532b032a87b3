"""The device that is calibrated: its name and sizes, and whether it is free, at which clocks, and with what power."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from paceline.calibrate.measure import Rates
from paceline.calibrate.timing import Clock, CpuClock, CudaClock
from paceline.catalog.gpus import find_hardware
from paceline.errors import InvalidArgumentError

_WATCHED_S = 0.5
"""For so long the load of the CPU is watched."""
_SPARE = 0.1
"""Of the processors, what other programs may use without being noticed."""
_FIELDS, _IDLE = 8, 3
"""Of a processor's line in /proc/stat: up to the time that others stole; idle, which waiting for disks follows."""
_SHARE_OF_PROGRAMS = 0.95
"""Of a GPU's memory, what is left to programs where no data sheet says so."""
_ARCHITECTURES = {5: "maxwell", 6: "pascal", 7: "volta", 8: "ampere", 9: "hopper", 10: "blackwell", 12: "blackwell-rtx"}
"""By the major number of a compute capability."""
_MINOR = {(7, 5): "turing", (8, 9): "ada"}
_OF_THE_FILE = ("format", "version", "name", "aliases", "like")
"""Fields of a data sheet that a file of one's own has otherwise, or not."""
_QUERY = "clocks.sm,clocks.max.sm,power.draw,power.limit,temperature.gpu,clocks_throttle_reasons.active"
_THROTTLED = {
    0x4: "power limit",
    0x8: "hardware slowdown",
    0x20: "temperature",
    0x40: "hardware temperature",
    0x80: "power brake",
}
"""Reasons for lower clocks, as bits of NVML (nvmlClocksEventReasons); a power limit is how servers' GPUs work."""
_HARMLESS = ("power limit",)


class Device(ABC):
    """A device to measure."""

    device: torch.device
    clock: Clock
    title: str
    dtypes: dict[str, torch.dtype]
    """Of products, by precision."""

    @abstractmethod
    def fields(self, rates: Rates) -> dict[str, Any]:
        """Return the fields of the device file besides its name and the calibration."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return load, clocks and power as they are now, for the file."""

    @abstractmethod
    def busy(self) -> str:
        """Return why what is measured would be wrong: what else runs on the device. Empty if nothing does."""

    def versions(self) -> dict[str, str]:
        """Return the versions of what runs operators."""
        return {"torch": torch.__version__, "python": platform.python_version()}


class Cpu(Device):
    """This machine's CPU."""

    def __init__(self, threads: int | None) -> None:
        """Let torch use so many threads; None for its own choice."""
        if threads is not None:
            torch.set_num_threads(threads)
        self.threads = torch.get_num_threads()
        self.device = torch.device("cpu")
        self.clock = CpuClock(self.threads)
        self.dtypes = {"fp32": torch.float32}
        self.title = _cpu_model()

    def fields(self, rates: Rates) -> dict[str, Any]:
        """Return peaks and sizes: of the threads that were used, the last cache and the whole memory."""
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return {
            "title": self.title,
            "architecture": "cpu",
            "peak_flops": rates.peak_flops,
            "memory_bandwidth": rates.memory_bandwidth,
            "memory_bytes": pages,
            "launch_s": rates.start_s,
            "multiprocessors": self.threads,
            **({"clock_hz": clock} if (clock := _cpu_clock_hz()) else {}),
            **({"l2_bytes": size} if (size := _last_cache_bytes()) else {}),
            "sources": [
                "peak_flops, memory_bandwidth, launch_s: measured by paceline calibrate",
                "memory_bytes, clock_hz, l2_bytes (the last cache): as the operating system has them",
            ],
        }

    def state(self) -> dict[str, Any]:
        """Return threads, and how many of the processors other programs use."""
        return {"threads": self.threads, "processors": _processors(), "others": round(_others(), 2)}

    def busy(self) -> str:
        """Return how many processors are left, if they are fewer than threads; one thread knows its own time."""
        others, processors = _others(), _processors()
        if self.threads == 1 or others <= processors - self.threads + _SPARE * processors:
            return ""
        return f"other programs use {others:.1f} of {processors} processors, and operators {self.threads} threads"

    def versions(self) -> dict[str, str]:
        """Return torch's version and what it computes with."""
        return {**super().versions(), "cpu": torch.backends.cpu.get_cpu_capability()}


class Gpu(Device):
    """A GPU that torch calls `cuda`: NVIDIA's, or AMD's with ROCm."""

    def __init__(self, index: int) -> None:
        """Take a GPU that torch has, by its number."""
        torch.cuda.set_device(index)
        self.index = index
        self.device = torch.device("cuda", index)
        self.clock = CudaClock()
        self.title = torch.cuda.get_device_name(index)
        self.capability = torch.cuda.get_device_capability(index)
        half = {"bf16": torch.bfloat16} if torch.cuda.is_bf16_supported() else {"fp16": torch.float16}
        self.dtypes = {**half, "fp32": torch.float32}

    def fields(self, rates: Rates) -> dict[str, Any]:
        """Return those of the data sheet, if there is one; or what was measured and what the driver says."""
        with suppress(InvalidArgumentError):
            sheet = find_hardware(self.title).document()
            return {**{name: sheet[name] for name in sheet if name not in _OF_THE_FILE}, "title": self.title}
        properties: Any = torch.cuda.get_device_properties(self.index)
        return {
            "title": self.title,
            "architecture": _MINOR.get(self.capability) or _ARCHITECTURES.get(self.capability[0], "ampere"),
            "peak_flops": rates.peak_flops,
            "memory_bandwidth": rates.memory_bandwidth,
            "memory_bytes": int(properties.total_memory * _SHARE_OF_PROGRAMS),
            "launch_s": rates.start_s,
            "multiprocessors": properties.multi_processor_count,
            "sources": ["peak_flops, memory_bandwidth, launch_s: measured by paceline calibrate"],
        }

    def state(self) -> dict[str, Any]:
        """Return clocks, power, temperature and reasons for lower clocks; nothing if nvidia-smi is not there."""
        row = _nvidia_smi(["--query-gpu=" + _QUERY], self.index)
        if row is None:
            return {}
        clock, most, power, limit, temperature, reasons = (row + [""] * 6)[:6]
        state: dict[str, Any] = {}
        for name, text in (
            ("clock_mhz", clock),
            ("clock_most_mhz", most),
            ("power_w", power),
            ("power_limit_w", limit),
            ("temperature_c", temperature),
        ):
            with suppress(ValueError):
                state[name] = float(text)
        with suppress(ValueError):
            bits = int(reasons, 16)
            state["throttled"] = [reason for bit, reason in _THROTTLED.items() if bits & bit]
        return state

    def busy(self) -> str:
        """Return which other processes use the GPU, or why its clocks are low."""
        rows = _nvidia_smi(["--query-compute-apps=pid"], self.index)
        others = [pid for pid in rows or [] if pid.isdigit() and int(pid) != os.getpid()]
        if others:
            return f"process {others[0]} uses {self.title}"
        throttled = [reason for reason in self.state().get("throttled", []) if reason not in _HARMLESS]
        return f"{self.title} runs at lower clocks: {', '.join(throttled)}" if throttled else ""

    def versions(self) -> dict[str, str]:
        """Return torch's version and that of CUDA or ROCm."""
        rocm, cuda = torch.version.hip, torch.version.cuda
        return {**super().versions(), **({"rocm": rocm} if rocm else {"cuda": cuda or ""})}


def _nvidia_smi(options: list[str], index: int) -> list[str] | None:
    """Return the fields of nvidia-smi's answer; None if there is none."""
    command = ["nvidia-smi", f"--id={index}", *options, "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return [text.strip() for text in re.split(r"[,\n]", answer.stdout.strip())]


def _processors() -> int:
    return len(os.sched_getaffinity(0))


def _others() -> float:
    """Return how many processors other programs use."""
    before, own = _busy_s(), time.process_time()
    time.sleep(_WATCHED_S)
    return max(0.0, (_busy_s() - before - (time.process_time() - own)) / _WATCHED_S)


def _busy_s() -> float:
    """Return the time for which this process's processors ran anything since the machine started (proc(5))."""
    mine = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    ticks = 0
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/stat").read_text(encoding="ascii").splitlines():
            name, *words = line.split()
            if name in mine:
                fields = [int(word) for word in words[:_FIELDS]]
                ticks += sum(fields) - fields[_IDLE] - fields[_IDLE + 1]
    return ticks / os.sysconf("SC_CLK_TCK")


def _cpu_model() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _cpu_clock_hz() -> float:
    with suppress(OSError, ValueError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("cpu MHz"):
                return float(line.partition(":")[2]) * 1e6
    return 0.0


def _last_cache_bytes() -> int:
    """Return the bytes of the largest cache of the first processor; 0 if the system does not say."""
    sizes = [0]
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        with suppress(OSError, ValueError):
            sizes.append(int(path.read_text(encoding="ascii").strip().removesuffix("K")) * 1024)
    return max(sizes)
