"""What a rank reads from its environment: its place in the job, and the settings."""

import json
import os
import re
import time

import cli
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline import InvalidArgumentError
from paceline._internal.documents import read_small
from paceline._internal.netif import address_of, addresses, endpoint
from paceline.job.rank_environment import rank_environment
from paceline.job.settings import VARIABLES, Settings
from paceline.job.slurm import nodes, tasks_per_node

TORCH = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
MASTER = {"MASTER_ADDR": "n1", "MASTER_PORT": "29500"}
OPEN_MPI = {f"OMPI_COMM_WORLD_{name}": str(value) for name, value in (("RANK", 1), ("SIZE", 2))}
OPEN_MPI_LOCAL = {f"OMPI_COMM_WORLD_{name}": str(value) for name, value in (("LOCAL_RANK", 1), ("LOCAL_SIZE", 2))}
HYDRA = {"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"}
BATCH = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "4711", "SLURM_NODEID": "0"}
STEP = {
    "SLURM_PROCID": "6",
    "SLURM_NTASKS": "7",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "3",
    "SLURM_STEP_TASKS_PER_NODE": "2(x3),1",
    "SLURM_STEP_NODELIST": "node[08-10],gpu5",
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "2",
}


def place(environ):
    result = rank_environment(environ)
    return result.launcher, result.rank, result.size, result.local_rank, result.local_size


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, ("none", 0, 1, 0, 1)),
        ({"RANK": "", "WORLD_SIZE": ""}, ("none", 0, 1, 0, 1)),
        (TORCH | MASTER | {"TORCHELASTIC_RUN_ID": "none"}, ("torchrun", 3, 4, 1, 2)),
        (TORCH | MASTER | {"PACELINE_RUN_ID": "ab"}, ("paceline", 3, 4, 1, 2)),
        (TORCH | MASTER, ("environment", 3, 4, 1, 2)),
        ({"RANK": "1", "WORLD_SIZE": "2"}, ("environment", 1, 2, None, None)),
        (OPEN_MPI | OPEN_MPI_LOCAL, ("openmpi", 1, 2, 1, 2)),
        (OPEN_MPI, ("openmpi", 1, 2, None, None)),
        (HYDRA, ("pmi", 5, 8, 1, 4)),
        (STEP, ("slurm", 6, 7, 0, 1)),
        # A batch script, without srun, is alone.
        (BATCH, ("none", 0, 1, 0, 1)),
        # Only some variables are handed on, to a container.
        ({name: BATCH[name] for name in BATCH if name != "SLURM_JOB_ID"}, ("slurm", 0, 8, 0, None)),
        # mpirun inside an salloc or a batch script: Slurm's variables describe the allocation.
        (BATCH | OPEN_MPI | OPEN_MPI_LOCAL, ("openmpi", 1, 2, 1, 2)),
        (STEP | HYDRA, ("pmi", 5, 8, 1, 4)),
        # torchrun in a step with one task for each node.
        (STEP | TORCH | MASTER, ("environment", 3, 4, 1, 2)),
        # RANK of a pod, in which mpirun runs.
        ({"RANK": "0", "WORLD_SIZE": "9"} | OPEN_MPI, ("openmpi", 1, 2, None, None)),
        # Slurm's own PMI leaves the local rank to Slurm.
        (STEP | {"PMI_RANK": "6", "PMI_SIZE": "7"}, ("pmi", 6, 7, 0, 1)),
        # An interactive step is one task of an allocation for more.
        (BATCH | {"SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1"}, ("slurm", 0, 1, 0, None)),
    ],
)
def test_the_innermost_launcher_counts(environ, expected):
    assert place(environ) == expected


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"RANK": "7", "WORLD_SIZE": "4"}, ["RANK=7 of WORLD_SIZE=4", "0-3"]),
        ({"RANK": "1"}, ["RANK=1", "unset RANK, or WORLD_SIZE="]),
        ({"WORLD_SIZE": "1"}, ["WORLD_SIZE=1", "RANK is not"]),
        ({"LOCAL_RANK": "0"}, ["LOCAL_RANK=0", "RANK is not"]),
        ({"RANK": "abc", "WORLD_SIZE": "4"}, ["RANK=abc", "must be 0-"]),
        ({"RANK": "-1", "WORLD_SIZE": "4"}, ["RANK=-1", "must be 0-"]),
        ({"RANK": "0", "WORLD_SIZE": "0"}, ["WORLD_SIZE=0"]),
        ({"RANK": "٣", "WORLD_SIZE": "4"}, ["RANK="]),
        ({"RANK": "0", "WORLD_SIZE": "9" * 5000}, ["WORLD_SIZE=999"]),
        (TORCH | {"LOCAL_RANK": "2"}, ["LOCAL_RANK=2 of LOCAL_WORLD_SIZE=2"]),
        (TORCH | {"LOCAL_WORLD_SIZE": "5"}, ["LOCAL_WORLD_SIZE=5", "WORLD_SIZE=4"]),
        (TORCH | {"MASTER_ADDR": "n1"}, ["MASTER_ADDR=n1", "MASTER_PORT is not"]),
        (TORCH | {"MASTER_PORT": "29500"}, ["MASTER_PORT=29500", "MASTER_ADDR is not"]),
        (TORCH | MASTER | {"MASTER_PORT": "70000"}, ["MASTER_PORT=70000", "65535"]),
        (TORCH | MASTER | {"PACELINE_RENDEZVOUS": "n1"}, ["PACELINE_RENDEZVOUS", "host:port"]),
        ({"OMPI_COMM_WORLD_RANK": "0"}, ["OMPI_COMM_WORLD_SIZE"]),
        ({"PMI_RANK": "2", "PMI_SIZE": "2"}, ["PMI_RANK=2 of PMI_SIZE=2"]),
        (STEP | {"SLURM_NODEID": "4"}, ["SLURM_NODEID=4", "2(x3),1"]),
        (STEP | {"SLURM_LOCALID": "1"}, ["SLURM_LOCALID=1"]),
        (STEP | {"SLURM_STEP_TASKS_PER_NODE": "2x3"}, ["SLURM_STEP_TASKS_PER_NODE", "2(x3),1"]),
        (STEP | {"SLURM_STEP_NODELIST": "node[01"}, ["SLURM_STEP_NODELIST", "node[01"]),
    ],
)
def test_contradictions_name_variable_value_and_remedy(environ, words):
    with pytest.raises(InvalidArgumentError) as caught:
        rank_environment(environ)
    assert all(word in cli.shown(caught.value) for word in words), caught.value
    assert len(cli.shown(caught.value)) < 400


def test_where_rank_0_is():
    result = rank_environment(TORCH | MASTER)
    assert (result.master_address, result.master_port, result.rendezvous) == ("n1", 29500, None)
    assert rank_environment(TORCH | {"PACELINE_RENDEZVOUS": "n1:5"}).rendezvous == "n1:5"
    assert rank_environment({}).master_address is None


def test_slurm_steps_agree_on_ports_without_talking():
    result = rank_environment(STEP)
    assert result.master_address == "node08"
    assert result.rendezvous == f"node08:{result.master_port + 1}"
    assert 15_000 <= result.master_port < 31_000
    assert rank_environment(STEP | {"SLURM_PROCID": "0", "SLURM_NODEID": "0"}).rendezvous == result.rendezvous
    assert rank_environment(STEP | {"SLURM_STEP_ID": "3"}).rendezvous != result.rendezvous
    named = rank_environment(STEP | MASTER | {"PACELINE_RENDEZVOUS": "n1:7"})
    assert (named.master_address, named.master_port, named.rendezvous) == ("n1", 29500, "n1:7")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", ["a"]),
        ("node[01-03,07],gpu5", ["node01", "node02", "node03", "node07", "gpu5"]),
        ("n[9-11]", ["n9", "n10", "n11"]),
        ("n[098-101]x", ["n098x", "n099x", "n100x", "n101x"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("a-b.c,d", ["a-b.c", "d"]),
    ],
)
def test_node_lists(text, expected):
    assert nodes(text, "X") == expected


@pytest.mark.parametrize(
    "text", ["", ",", "a,", "a[", "a]", "a[]", "a[2-1]", "a[x]", "a[1-]", "a b", "a[1[2]]", "a,,b"]
)
def test_garbled_node_lists(text):
    with pytest.raises(InvalidArgumentError, match="X: "):
        nodes(text, "X")


def test_node_lists_that_fill_memory_are_refused():
    for text in ("a[0-999999999]", "a[0-9999][0-9999][0-9999]", "a[0-999999]b[0-9]"):
        with pytest.raises(InvalidArgumentError):
            nodes(text, "X")


@given(st.text(alphabet="an019[]-,", max_size=20))
def test_node_lists_never_break_the_parser(text):
    try:
        names = nodes(text, "X")
    except InvalidArgumentError:
        return
    assert names
    assert not any(letter in name for name in names for letter in "[],")


def test_tasks_per_node():
    assert tasks_per_node("2(x3),1", "X") == [2, 2, 2, 1]
    for text in ("", "2(x3", "a", "2(3)", "1(x999999999)"):
        with pytest.raises(InvalidArgumentError, match="X: "):
            tasks_per_node(text, "X")


def test_settings_by_default():
    assert json.loads(Settings.from_environment({}).to_json()) == {
        "transport": "auto",
        "mpi_library": None,
        "ucx_library": None,
        "native": None,
        "oneccl_library": None,
        "cuda_library": None,
        "cuda": "auto",
        "cuda_pointer_cache": True,
        "nccl_library": None,
        "interface": "127.0.0.1",
        "secret": None,
        "rendezvous": None,
        "timeout_s": 1800.0,
        "start_timeout_s": None,
        "strategy": None,
        "chunk": None,
        "inside": "ring",
        "barrier": True,
        "servers": 1,
        "placement": "round-robin",
        "distribution": "round-robin",
        "streams": 1,
        "single_copy": True,
        "multicast": None,
        "nodes_per_rack": None,
        "tls": None,
        "verbose": False,
    }


def test_settings_of_the_environment_and_of_the_script():
    environ = {
        "PACELINE_STRATEGY": "butterfly",
        "PACELINE_TRANSPORT": "tcp",
        "PACELINE_CHUNK": "512KiB",
        "PACELINE_STREAMS": "4",
        "PACELINE_TIMEOUT": "2.5",
        "PACELINE_INTERFACE": "lo",
        "PACELINE_RENDEZVOUS": "[::1]:29400",
        "PACELINE_SERVERS": "",
    }
    settings = Settings.from_environment(environ)
    assert settings.strategy == "recursive-doubling"
    assert (settings.transport, settings.chunk, settings.streams, settings.timeout_s) == ("tcp", 524_288, 4, 2.5)
    assert json.loads(settings.to_json())["interface"] == "127.0.0.1"
    said = Settings.from_environment(environ, strategy="ring", chunk=4096, timeout_s=7, transport=None)
    assert (said.strategy, said.chunk, said.timeout_s, said.transport) == ("ring", 4096, 7.0, "tcp")
    assert Settings.from_environment({}, chunk="per-worker").chunk == "per-worker"


@pytest.mark.parametrize(
    ("variable", "value", "transport"),
    [
        ("STREAMS", "2", "shm"),
        ("STREAMS", "2", "grpc"),
        ("MULTICAST", "239.77.0.0:47700", "shm"),
        ("MULTICAST", "239.77.0.0:47700", "grpc"),
        ("SINGLE_COPY", "0", "tcp"),
        ("SINGLE_COPY", "0", "grpc+tcp"),
        ("TLS", "1", "tcp"),
        ("TLS", "0", "auto"),
    ],
)
def test_a_knob_of_another_transport_is_refused(variable, value, transport):
    variable = f"PACELINE_{variable}"
    with pytest.raises(InvalidArgumentError, match=re.escape(f"{variable}: has no effect with transport {transport}")):
        Settings.from_environment({variable: value, "PACELINE_TRANSPORT": transport})


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("PACELINE_STRATEGY", "rnig", ["try: ring"]),
        ("PACELINE_TRANSPORT", "tpc", ["try: PACELINE_TRANSPORT=tcp"]),
        ("PACELINE_TRANSPORT", "infiniband", ["auto, shm, tcp, mpi, grpc, grpc+tcp, grpc+mpi"]),
        ("PACELINE_TRANSPORT", "grcp", ["try: PACELINE_TRANSPORT=grpc"]),
        (
            "PACELINE_TRANSPORT",
            "grpc+rdma",
            ["tensors over tcp, mpi, ucx, verbs or gdr, not 'rdma'", "PACELINE_TRANSPORT=grpc+tcp"],
        ),
        ("PACELINE_TLS", "maybe", ["must be 1 or 0"]),
        ("PACELINE_CHUNK", "512", ["unit"]),
        ("PACELINE_CHUNK", "0B", ["0B"]),
        ("PACELINE_CHUNK", "4Mb", ["4Mb", "ambiguous", "4MB", "0.5MB"]),
        ("PACELINE_SERVERS", "0", ["must be 1-"]),
        ("PACELINE_SERVERS", "two", ["whole number"]),
        ("PACELINE_INSIDE", "rign", ["try: PACELINE_INSIDE=ring"]),
        ("PACELINE_STREAMS", "1e3", ["must be 1-64, not 1e3"]),
        ("PACELINE_STREAMS", "1e-3", ["whole number"]),
        ("PACELINE_MULTICAST", "10.0.0.1:47700", ["239.77.0.0:47700"]),
        ("PACELINE_MULTICAST", "239.77.0.0", ["a port", "239.77.0.0:47700"]),
        ("PACELINE_MULTICAST", "239.77.0.0:0", ["a port"]),
        ("PACELINE_MULTICAST", "[ff15::77]:47700", ["239.77.0.0:47700"]),
        ("PACELINE_SINGLE_COPY", "maybe", ["must be 1 or 0"]),
        ("PACELINE_TIMEOUT", "0", ["seconds"]),
        ("PACELINE_TIMEOUT", "nan", ["seconds"]),
        ("PACELINE_TIMEOUT", "inf", ["seconds"]),
        ("PACELINE_INTERFACE", "0.0.0.0", ["10.0.0.0/24"]),
        ("PACELINE_INTERFACE", "10.0.0.0/99", ["10.0.0.0/24"]),
        ("PACELINE_SECRET", "short", ["at least 16", "openssl rand"]),
        ("PACELINE_SECRET_FILE", "/nowhere/at/all", ["No such file", "openssl rand"]),
        ("PACELINE_RENDEZVOUS", "::1:29400", ["[fd00::1]"]),
        ("PACELINE_RENDEZVOUS", "n1:0", ["host:port"]),
        ("PACELINE_STRATGEY", "ring", ["try: PACELINE_STRATEGY"]),
        ("PACELINE_WHATEVER_ELSE", "1", ["unknown environment variable"]),
    ],
)
def test_bad_variables_are_named(variable, value, words):
    with pytest.raises(InvalidArgumentError) as caught:
        Settings.from_environment({variable: value})
    assert variable in str(caught.value)
    assert all(word in cli.shown(caught.value) for word in words), caught.value


@pytest.mark.parametrize(
    "said",
    [{"servers": True}, {"servers": 1.5}, {"chunk": -1}, {"timeout_s": "soon"}, {"strategy": 3}, {"stratgey": "ring"}],
)
def test_bad_words_of_a_script_are_named(said):
    with pytest.raises(InvalidArgumentError, match=next(iter(said))):
        Settings.from_environment({}, **said)


def test_a_knob_that_the_strategy_does_not_use_is_an_error():
    with pytest.raises(InvalidArgumentError, match="PACELINE_SERVERS: has no effect on ring"):
        Settings.from_environment({"PACELINE_STRATEGY": "ring", "PACELINE_SERVERS": "2"})
    assert Settings.from_environment({"PACELINE_STRATEGY": "ps", "PACELINE_SERVERS": "2"}).servers == 2
    group = {"PACELINE_MULTICAST": "239.77.0.0:47700"}
    with pytest.raises(InvalidArgumentError, match="PACELINE_MULTICAST: has no effect on ring"):
        Settings.from_environment(group | {"PACELINE_STRATEGY": "ring"})
    assert Settings.from_environment(group | {"PACELINE_STRATEGY": "ring-multicast"}).multicast == "239.77.0.0:47700"
    assert Settings.from_environment(group).multicast == "239.77.0.0:47700"  # operations may name a strategy


def test_variables_of_other_parts_are_left_alone():
    Settings.from_environment({"PACELINE_RUN_ID": "x", "PACELINE_RECORD_SETTINGS": "{}", "PATH": "/bin"})
    assert all(name.startswith("PACELINE_") for name in VARIABLES)


def test_secret_files(tmp_path):
    file = tmp_path / "secret"
    file.write_text("0123456789abcdef\n")
    file.chmod(0o644)
    with pytest.raises(InvalidArgumentError, match="chmod 600") as caught:
        Settings.from_environment({"PACELINE_SECRET_FILE": str(file)})
    assert "0123456789" not in str(caught.value)
    file.chmod(0o600)
    settings = Settings.from_environment({"PACELINE_SECRET_FILE": str(file)})
    assert settings.secret == "0123456789abcdef"
    assert "0123456789" not in repr(settings)
    both = {"PACELINE_SECRET_FILE": str(file), "PACELINE_SECRET": "x" * 16}
    with pytest.raises(InvalidArgumentError, match="try: unset PACELINE_SECRET"):
        Settings.from_environment(both)
    assert Settings.from_environment(both, secret="y" * 16).secret == "y" * 16
    file.write_text("short")
    with pytest.raises(InvalidArgumentError, match="at least 16"):
        Settings.from_environment({"PACELINE_SECRET_FILE": str(file)})
    with pytest.raises(InvalidArgumentError):
        Settings.from_environment({"PACELINE_SECRET_FILE": str(tmp_path)})


def test_interfaces_become_addresses():
    assert address_of("127.0.0.1", "X") == "127.0.0.1"
    assert address_of("127.0.0.0/8", "X") == "127.0.0.1"
    assert "127.0.0.1" in addresses()["lo"]
    for text in ("eth99", "203.0.113.7", "203.0.113.0/24"):
        with pytest.raises(InvalidArgumentError, match=r"X: .*\n  try: one of .*127\.0\.0\.1"):
            address_of(text, "X")
    assert endpoint("::1", 5) == "[::1]:5"


def test_the_environment_of_this_process_is_the_default(monkeypatch):
    for name in list(os.environ):
        if name in TORCH or name.startswith(("OMPI_", "PMI_", "SLURM_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert rank_environment().rank == 1


def test_a_pipe_that_nobody_writes_to_is_not_waited_for(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    holder = os.open(pipe, os.O_RDWR)
    try:
        begin = time.monotonic()
        with pytest.raises(TimeoutError, match="no data from this pipe"):
            read_small(pipe, patience_s=0.2)
        assert time.monotonic() - begin < 5
        os.write(holder, b"node1 slots=2")
        with pytest.raises(TimeoutError):
            read_small(pipe, patience_s=0.2)
        with pytest.raises(OSError, match="has more than"):
            os.write(holder, b"x" * 3000)
            read_small(pipe, most=2048, patience_s=0.2)
    finally:
        os.close(holder)
    text = tmp_path / "text"
    text.write_text("a few words")
    assert read_small(text) == "a few words"


def test_variables_in_part_do_not_matter_to_who_says_its_rank(monkeypatch):
    """As with `init_process_group(init_method="file://…", rank=0, world_size=2)` where only WORLD_SIZE is exported."""
    for name in list(os.environ):
        if name in TORCH or name.startswith(("OMPI_", "PMI_", "SLURM_", "PACELINE_INTERFACE")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert Settings.from_environment().address() in {"127.0.0.1", "::1"}
