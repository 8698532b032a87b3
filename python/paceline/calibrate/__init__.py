"""Measuring a device's operators within training steps of random programs, for device files (`paceline calibrate`).

| module | holds |
| --- | --- |
| `programs` | random training programs: layers, sizes, optimizers |
| `timing` | the times of the operators of a step, on a CPU or a GPU |
| `measure` | a calibration within a budget of seconds |
| `device` | the name, size and state of the device: load, clocks, power |
| `document` | the device file |
"""
