"""Trainers' files below the limit of bytes take little time and memory, whatever they multiply."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.errors import InvalidArgumentError
from paceline.interop.trainers.document import document
from paceline.interop.trainers.shell import arguments
from paceline.interop.trainers.variables import Variables

LONG = "x" * 20_000
SELF = "torchrun --nproc_per_node 8 train.py --model_name_or_path "
MULTIPLIED = {
    "append.sh": "A+=x\n" * 100_000,
    "append-long.sh": f"A={LONG}\n" + "A+=x\n" * 100_000,
    "append-itself.sh": "A=x\n" + 'A+="$A"\n' * 50_000 + SELF + "$A",
    "before.sh": f"A={LONG}\n" + 'A="x$A"\n' * 50_000 + SELF + "$A",
    "itself.sh": "A=x\n" + 'A="$A x"\n' * 50_000,
    "names.sh": "".join(f"a{n}=$a{n}\n" for n in range(50_000)),
    "references.sh": f"A={LONG}\n{SELF}" + "$A" * 200_000,
    "sums.sh": f"A='{'$[A]' * 200}'\n{SELF} --x $((A))",
    "long-sums.sh": f"A={'1+' * 50_000}1\n{SELF}" + "".join(f" --x{n} $((A))" for n in range(50_000)),
    "each.sh": f"A={LONG}\n" + "".join(f"b{n}=$A\n" for n in range(50_000)),
    "references.yml": f"a: {LONG}\nb: '{'${a}' * 100_000}'\n",
    "base-60.yml": f"base_model: NousResearch/Meta-Llama-3-8B\nmicro_batch_size: {'9:' * 200_000}9\n",
    "references-to-lists.yml": f"a: [{'x, ' * 10_000}]\nb: '{'${a}' * 100_000}'\n",
    "lists.yml": f"a: &a [{'x, ' * 10_000}]\n" + "".join(f"k{n}: *a\n" for n in range(50_000)),
    "merges.yml": f"a: &a {{{', '.join(f'k{n}: 1' for n in range(5000))}}}\n"
    + "".join(f"m{n}: {{<<: *a}}\n" for n in range(20_000)),
    "merged-list.yml": f"a: &a {{{', '.join(f'k{n}: 1' for n in range(5000))}}}\nb: {{<<: [{'*a, ' * 100_000}]}}\n",
    "key.toml": ".".join(["a"] * 200_000) + " = 1\n",
    "quoted-key.toml": " . ".join(["'a'", '"b"'] * 50_000) + " = 1\n",
    "table.toml": f"[{'.'.join('a' * 50_000)}]\n",
    "inline.toml": f"a = {{{'.'.join('a' * 50_000)} = 1}}\n",
}
"""Files of less than 1 MiB that a reader without limits makes gigabytes of, or takes minutes for."""


_READ = """
import resource, sys
from pathlib import Path
from paceline.errors import InvalidArgumentError
from paceline.interop.trainers.document import document
for name in sys.argv[1:]:
    used = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    resource.setrlimit(resource.RLIMIT_CPU, (int(used) + 6, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    try:
        document(Path(name))
    except InvalidArgumentError:
        pass
    print(name, resource.getrusage(resource.RUSAGE_SELF).ru_utime - used)
"""


def test_small_files_stay_small(tmp_path):
    for name, text in MULTIPLIED.items():
        assert len(text) < 1 << 20
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-c", _READ, *MULTIPLIED]
    ended = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.sh", f"# -\nA={LONG}\n{SELF}{'$A' * 100}", "line 2: variables grow the script"),
        ("b.sh", f"A=$[B]\nB='{'$[A]' * 200}'\n{SELF}{'$((A))' * 1000}", "more than 100,000 references"),
        ("a.yml", f"base_model: x\na: {LONG}\nb: '{'${a}' * 100}'\n", "b: its references"),
        ("a.toml", f'x = """\n\n"""\n# {"a." * 99}\n[{".".join("a" * 40)}]\n', "line 5: a key has more than 32 parts"),
    ],
    ids=["variables", "sums", "references", "keys"],
)
def test_what_multiplies_is_named(tmp_path, name, text, words):
    (tmp_path / name).write_text(text)
    with pytest.raises(InvalidArgumentError, match=words):
        document(tmp_path / name)


@given(st.lists(st.tuples(st.booleans(), st.sampled_from(["x", "$A", "$A x", "x$A", "${A}", "${A:-y}"])), max_size=6))
def test_variables_have_the_values_of_a_shell(assignments):
    variables, value = Variables("", iter([("A", "")])), ""
    for append, text in assignments:
        variables.assign("A", text, append=append)
        expanded = text.replace("${A:-y}", value).replace("${A}", value).replace("$A", value)
        value = f"{value} {expanded}" if append else expanded
    assert variables.expanded("$A") == value


def test_sums_in_scripts():
    text = "A=4\nB=$((A*2))\ntorchrun --x $(($A*8)) --y $((${A} * B)) --z $(( $((A*3)) + 1 )) --u $[A*2] --v $((C))\n"
    assert dict(arguments(text)) == {"--x": 32, "--y": 32, "--z": 13, "--u": 8, "--v": "$((C))"}
