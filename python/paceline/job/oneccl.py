"""The variables of oneCCL, the library of `native` between CPUs, which reads them as it is loaded."""

from __future__ import annotations

import os

from paceline._internal.netif import addresses, is_loopback

_VARIABLES = {
    "CCL_PLUGIN": "ONECCL_LEGACY_CPU",
    "CCL_ATL_TRANSPORT": "ofi",
    "CCL_PROCESS_LAUNCHER": "none",
    "CCL_LOG_LEVEL": "error",
}
"""Its engine for CPUs, over libfabric, among ranks that no launcher of Intel's has started."""


def prepare(address: str, *, verbose: bool = False) -> None:
    """Set its variables in this process's environment, unless the user has: before it is loaded.

    It listens on this machine's interface of the job's address, as Paceline does. It does not know the job's secret.
    """
    name = "lo" if is_loopback(address) else next((name for name, own in addresses().items() if address in own), None)
    values = {**_VARIABLES, **({} if name is None else {"CCL_KVS_IFACE": name, "FI_TCP_IFACE": name})}
    if verbose:
        values["CCL_LOG_LEVEL"] = "warn"
    place = {"CCL_LOCAL_RANK": "LOCAL_RANK", "CCL_LOCAL_SIZE": "LOCAL_WORLD_SIZE"}
    if all(variable in os.environ for variable in place.values()):
        values |= {its: os.environ[variable] for its, variable in place.items()}
    for variable, value in values.items():
        os.environ.setdefault(variable, value)
