"""`paceline bench --install horovod`: sources are changed and compiled with progress, and faults are named."""

import tarfile
from pathlib import Path

import pytest
from paceline.cli.usage import CommandError
from paceline_lab.bench import environments, horovod_build

CMAKE = "project(horovod CXX)\nset(CMAKE_CXX_STANDARD 14)\n"


def sources(folder, *, standard="14"):
    """Write a source distribution with the files that select the standard."""
    base = folder / f"horovod-{horovod_build.VERSION}"
    (base / "horovod" / "torch").mkdir(parents=True)
    for path in (base / "CMakeLists.txt", base / "horovod" / "torch" / "CMakeLists.txt"):
        path.write_text(CMAKE.replace("14", standard))
    archive = folder / "sdist.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(base, base.name)
    return archive


def environment(folder, archive, install):
    """Make an environment whose Python is a script: `pip download` copies the archive, `pip install` runs `install`."""
    python = folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(
        "#!/bin/sh\n"
        'for word in "$@"; do case $word in download) job=download;; esac; last=$previous; previous=$word; done\n'
        f'if [ "$job" = download ]; then cp {archive} "$last/horovod-{horovod_build.VERSION}.tar.gz"; exit; fi\n'
        f"{install}\n"
    )
    python.chmod(0o755)


def build(folder, install, *, standard="14"):
    said = []
    folder.mkdir()
    environment(folder / "env", sources(folder, standard=standard), install)
    horovod_build.build("horovod", folder / "env", said.append)
    return said


def test_the_change_and_the_progress(tmp_path):
    compiled = "\n".join(f"echo '[ {percent}%] Building CXX object a.o'" for percent in (3, 10, 14, 55, 100))
    said = build(
        tmp_path / "a",
        f'cat "$previous/CMakeLists.txt" "$previous/horovod/torch/CMakeLists.txt"\nenv | grep HOROVOD_\n{compiled}',
    )
    assert "over Gloo and MPI, without NCCL" in said[0]
    assert [line.partition(" after")[0] for line in said[1:]] == [f"{each} % compiled" for each in (10, 50, 100)]
    log = (tmp_path / "a" / "env" / "build.log").read_text()
    assert log.count("set(CMAKE_CXX_STANDARD 17)") == 2 and "STANDARD 14" not in log
    for variable in ("HOROVOD_WITH_GLOO", "HOROVOD_WITH_MPI", "HOROVOD_WITH_PYTORCH", "HOROVOD_WITHOUT_TENSORFLOW"):
        assert f"{variable}=1" in log


def test_a_compilation_that_fails_names_the_first_error(tmp_path):
    with pytest.raises(CommandError, match=r"cannot be compiled: x\.cc:3: error: no such type; log: .*build\.log"):
        build(tmp_path / "a", "echo 'x.cc:3: error: no such type'\necho 'x.cc:9: error: and more'\nexit 1")


def test_other_sources_are_refused(tmp_path):
    with pytest.raises(CommandError, match="selects no C\\+\\+14"):
        build(tmp_path / "a", "exit 0", standard="20")


def test_sources_that_cannot_be_had(tmp_path):
    environment(tmp_path / "env", Path("/nowhere"), "exit 0")
    with pytest.raises(CommandError, match="sources cannot be downloaded"):
        horovod_build.build("horovod", tmp_path / "env", lambda _: None)


def test_a_machine_without_a_compiler_is_told_before_anything_is_installed(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(horovod_build.shutil, "which", lambda *_, **__: None)
    with pytest.raises(CommandError, match=r"there is no g\+\+ and no make") as caught:
        environments.install("horovod", lambda _: None)
    assert caught.value.remedy == "apt-get install g++ make"
    assert not (tmp_path / "paceline").exists()
