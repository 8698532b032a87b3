"""The golden files: JSON with a short value a line, and texts with a headline for each of their parts."""

import json
from typing import Any

from golden.compare import Output
from golden.entries import Entry

_WIDTH = 118
_STDERR = "=== stderr"
_FILES = "=== files"
_EXIT = "=== exit code"


def write(entry: Entry, output: Output) -> None:
    """Write an entry's golden file."""
    entry.path.parent.mkdir(exist_ok=True)
    entry.path.write_text(_text(entry, output) if entry.form == "text" else _json(entry, output), encoding="utf-8")


def read(entry: Entry) -> Output:
    """Return what an entry's golden file says."""
    text = entry.path.read_text(encoding="utf-8")
    if entry.form != "text":
        fields = json.loads(text)
        return Output(
            fields.get("exit_code", 0),
            fields.get("stdout", ""),
            "\n".join(fields.get("stderr", ())),
            fields.get("files", {}),
            fields.get("output"),
        )
    output = Output()
    output.exit_code = int(_cut(text, _EXIT)[1] or 0)
    text = _cut(text, _EXIT)[0]
    output.files = json.loads(_cut(text, _FILES)[1] or "{}")
    text = _cut(text, _FILES)[0]
    stdout, output.stderr = _cut(text, _STDERR)
    output.stdout = stdout.partition("\n")[2]
    return output


def _cut(text: str, headline: str) -> tuple[str, str]:
    before, _, after = text.partition(f"\n{headline}\n") if f"\n{headline}\n" in text else (text.rstrip("\n"), "", "")
    return before, after.rstrip("\n")


def _json(entry: Entry, output: Output) -> str:
    fields: dict[str, Any] = {} if entry.form == "python" else {"command": entry.command}
    fields |= {"exit_code": output.exit_code} if output.exit_code else {}
    fields |= {"stderr": output.stderr.split("\n")} if output.stderr else {}
    fields |= {"stdout": output.stdout} if output.stdout else {}
    fields |= {"files": output.files} if output.files else {}
    fields |= {"output": output.document} if output.document is not None else {}
    return _pretty(fields) + "\n"


def _text(entry: Entry, output: Output) -> str:
    parts = [f"$ {entry.command}", output.stdout]
    parts += [_STDERR, output.stderr] if output.stderr else []
    parts += [_FILES, _pretty(output.files)] if output.files else []
    parts += [_EXIT, str(output.exit_code)] if output.exit_code else []
    return "\n".join(parts) + "\n"


def _pretty(value: Any, indent: int = 0) -> str:
    """Return JSON in which what is short stands on one line, and the parts of what is long on one each."""
    line = json.dumps(value, ensure_ascii=False)
    if len(line) + indent <= _WIDTH or not value or not isinstance(value, (dict, list)):
        return line
    inside = " " * (indent + 1)
    if isinstance(value, dict):
        parts = [f"{inside}{json.dumps(key)}: {_pretty(one, indent + 1)}" for key, one in value.items()]
        return "{\n" + ",\n".join(parts) + f"\n{' ' * indent}}}"
    return "[\n" + ",\n".join(inside + _pretty(one, indent + 1) for one in value) + f"\n{' ' * indent}]"
