"""`paceline doctor --env`: facts about this machine that other sources confirm, and no secrets."""

import json
import os
import platform
import resource
import socket
import sys

import cli
import paceline
import pytest
from paceline.doctor import cuda_aware_mpi, environment
from paceline.doctor.environment import HIDDEN, collect, variables
from paceline.doctor.environment_table import table


def test_what_it_says_is_so():
    answer = json.loads(json.dumps(collect({}), allow_nan=False))
    assert (answer["format"], answer["version"]) == ("paceline-environment", 1)
    versions = answer["versions"]
    assert (versions["paceline"], versions["python"]) == (paceline.__version__, platform.python_version())
    assert answer["system"]["kernel"] == os.uname().release
    assert answer["cpu"]["affinity"] == len(os.sched_getaffinity(0)) <= answer["cpu"]["logical"] == os.cpu_count()
    memory = answer["memory"]
    assert memory["total_bytes"] == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < memory["available_bytes"] <= memory["total_bytes"]
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert answer["limits"]["open files"] == {"soft": limit[0], "hard": limit[1]}
    assert {card["name"] for card in answer["interfaces"]} == {name for _, name in socket.if_nameindex()}
    loopback = next(card for card in answer["interfaces"] if card["name"] == "lo")
    assert loopback["ipv4"] == "127.0.0.1" and loopback["up"] and not loopback["multicast"]
    assert answer["settings"] is None and answer["variables"] == {}


def test_transports_are_tried_out():
    values = {it["name"]: it for it in collect({})["transports"]}
    assert list(values) == ["shm", "tcp", "grpc", "mpi", "multicast"]
    assert all(values[name]["available"] for name in ("shm", "tcp", "grpc"))
    assert "127.0.0.1" in values["tcp"]["detail"]


def test_why_a_transport_is_not_there():
    result = collect({"PACELINE_INTERFACE": "eth77", "PACELINE_MPI_LIBRARY": "/nowhere/libmpi.so.40"})
    transports = {it["name"]: it for it in result["transports"]}
    for name, reason in (("tcp", "no interface 'eth77'"), ("grpc", "eth77"), ("mpi", "/nowhere/libmpi.so.40")):
        assert not transports[name]["available"]
        assert reason in transports[name]["detail"]
    assert result["versions"]["mpi"] is None and result["cuda_aware_mpi"] is None
    text = "\n".join(table(result, 100))
    assert "no: PACELINE_INTERFACE: this machine has no interface 'eth77'" in text


def test_settings_that_would_stop_a_job_are_named():
    result = collect({"PACELINE_STRATEGI": "ring"})
    assert "PACELINE_STRATEGI" in result["settings"]
    assert "These settings would stop a job" in "\n".join(table(result, 100))


SECRETS = {
    "PACELINE_SECRET": "correct-horse-battery",
    "_HOROVOD_SECRET_KEY": "staple0123",
    "NCCL_AUTH_TOKEN": "hunter2hunter2",
    "AWS_SECRET_ACCESS_KEY": "never-relevant",
    "HOROVOD_PASSWORD": "swordfish",
}


@pytest.mark.parametrize(
    ("ask", "why"),
    [
        ("raise ValueError('MPI (libmpi.so.40): no memory')", "initialized: MPI (libmpi.so.40): no memory"),
        ("import sys; sys.exit('abort: PMIX')", "initialized: abort: PMIX"),
        ("import os; os._exit(3)", "initialized: exit code 3"),
        ("import time; time.sleep(60)", "not initialized within 1 s"),
    ],
)
def test_an_mpi_library_that_cannot_be_asked(monkeypatch, ask, why):
    monkeypatch.setattr(cuda_aware_mpi, "_ASK", ask)
    monkeypatch.setattr(cuda_aware_mpi, "LIMIT_S", 0.5)
    result = cuda_aware_mpi.ask({})
    assert result["takes"] is None and why in result["said"]
    text = " ".join("\n".join(table(collect({}) | {"cuda_aware_mpi": result}, 80)).split())
    assert f"CUDA-aware MPI unknown: it {result['said'][3:]}" in text


@pytest.mark.parametrize("as_json", [True, False])
def test_secrets_are_not_printed(as_json, monkeypatch):
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    # In other variables, too, and in the message about a setting.
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", f"eth-{SECRETS['PACELINE_SECRET']}")
    monkeypatch.setenv("PACELINE_STRATEGY", SECRETS["HOROVOD_PASSWORD"])
    monkeypatch.setenv("NCCL_PROXY", "http://somebody:opensesame@proxy:3128")
    done = cli.output("doctor", "--env", *(["--json"] if as_json else []))
    for value in (*SECRETS.values(), "opensesame", "somebody"):
        assert value not in done
    assert "PACELINE_SECRET" in done and HIDDEN in done
    assert "AWS_SECRET_ACCESS_KEY" not in done


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("PACELINE_SECRT", "hunter2hunter2", HIDDEN),  # misspelled
        ("_PACELINE_SECRT", "hunter2hunter2", HIDDEN),
        ("HOROVOD_PWD", "hunter2hunter2", HIDDEN),
        ("NCCL_PROXY", "http://u:p@sswd1@h/x", "http://…@h/x"),
        ("NCCL_PROXY", "http://u:pw/seg@h", "http://…@h"),
        ("PACELINE_STRATEGY", "ring", "ring"),
        ("PACELINE_RUN_ID", "7", "7"),
    ],
)
def test_values_that_may_be_secret_are_hidden(name, value, shown):
    assert variables({name: value}) == {name: shown}


def test_messages_hide_passwords_of_addresses_and_show_the_working_directory():
    address = "http://u:pw/seg@h"
    result = collect({"PACELINE_RENDEZVOUS": address, "PWD": "/home/u", "OLDPWD": "/home/u", "LD_PRELOAD": "/home/u/l"})
    assert "PACELINE_RENDEZVOUS" in result["settings"] and "seg" not in result["settings"]
    assert result["variables"]["LD_PRELOAD"] == "/home/u/l"


def test_relevant_variables_alone_are_shown():
    shown = variables(
        {
            "OMP_NUM_THREADS": "4",
            "PACELINE_TIMEOUT": "30",
            "HOME": "/home/somebody",
            "WORLD_SIZE": "2",
            "COMPANY_X": "1",
        }
    )
    assert shown == {"OMP_NUM_THREADS": "4", "PACELINE_TIMEOUT": "30", "WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("files", "group", "limits"),
    [
        # The second version: a limit of a parent holds for its children.
        ({"job/cpu.max": "max 100000", "cpu.max": "150000 100000", "job/memory.max": "max"}, "0::/job", (1.5, None)),
        ({"job/cpu.max": "50000 100000", "cpu.max": "150000 100000", "job/memory.max": "1000"}, "0::/job", (0.5, 1000)),
        # The first.
        (
            {
                "cpu,cpuacct/job/cpu.cfs_quota_us": "200000",
                "cpu,cpuacct/job/cpu.cfs_period_us": "100000",
                "memory/job/memory.limit_in_bytes": str((1 << 63) - 4096),
            },
            "4:cpu,cpuacct:/job\n5:memory:/job",
            (2.0, None),
        ),
        ({}, "0::/", (None, None)),
    ],
)
def test_limits_of_control_groups(tmp_path, monkeypatch, files, group, limits):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "cgroup").write_text(group)
    monkeypatch.setattr(environment, "_CGROUPS", tmp_path)
    monkeypatch.setattr(environment, "_OWN_CGROUP", tmp_path / "cgroup")
    result = collect({})
    assert (result["cpu"]["cgroup_limit"], result["memory"]["cgroup_limit_bytes"]) == limits
    assert ("control group may use the time of" in "\n".join(table(result, 200))) == (limits[0] is not None)


def test_every_line_of_the_table_fits(monkeypatch):
    monkeypatch.setenv("OMP_PLACES", "cores")
    text = "\n".join(table(collect(), 80))
    assert "OMP_PLACES" in text and f"paceline            {paceline.__version__}" in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_it_imports_nothing_heavy_and_takes_under_a_second():
    code = (
        "import sys; from paceline.doctor.environment import collect; collect(); "
        "print([name for name in ('torch', 'numpy', 'matplotlib', 'pandas', 'ray') if name in sys.modules])"
    )
    taken = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = cli.ended(sys.executable, "-c", code, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        taken.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert done.stdout.strip() == "[]"
    assert min(taken) < 1  # of CPU time, which other programs on the machine hardly affect


@pytest.mark.parametrize(
    ("words", "said"), [([], "the timeline of a run is missing"), (["--env", "run.json"], "takes no RUN.json")]
)
def test_a_file_or_env(words, said):
    done = cli.call("doctor", *words)
    assert done.exit_code == 2 and said in done.output


@pytest.mark.parametrize(
    ("environ", "advice"),
    [
        ({}, "HCOLL_GPU_ENABLE=1 and HCOLL_ENABLE_NBC=1; without HCOLL, --cuda mpi"),
        ({"HCOLL_GPU_ENABLE": "1", "HCOLL_ENABLE_NBC": "0"}, "HCOLL_ENABLE_NBC=1; without HCOLL, --cuda mpi"),
        (
            {"HCOLL_GPU_ENABLE": "1", "HCOLL_ENABLE_NBC": "1"},
            "--cuda mpi for broadcast and all-gather; HCOLL is enabled",
        ),
    ],
)
def test_variables_that_are_set_are_not_advised(environ, advice):
    assert cuda_aware_mpi.remedy("Open MPI", "moves", "", environ).startswith(advice)


def test_an_interface_that_is_set_is_not_advised_as_if_it_was_not():
    def tcp(**environ):
        return next(it for it in collect(environ)["transports"] if it["name"] == "tcp")["detail"]

    assert tcp().endswith("this machine alone; set PACELINE_INTERFACE for several")
    assert tcp(PACELINE_INTERFACE="lo").endswith("set PACELINE_INTERFACE to another than lo for several")
