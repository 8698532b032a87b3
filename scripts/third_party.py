"""Writes what a wheel says of the crates that are linked into it: their licenses, and a bill of materials.

python scripts/third_party.py            # after a change of Cargo.lock, or of the version
python scripts/third_party.py --check    # exit code 1 if a file is not what would be written

LICENSE-THIRD-PARTY.txt has the notices that a binary must carry; maturin puts it beside LICENSE. The bill of materials
is CycloneDX 1.5, for PEP 770; it has neither a time nor a random number, so that wheels can be reproduced. Both are
checked in, because a wheel is also built where cargo has no network. Where a crate offers a choice of licenses, the
first of ELECTED is taken.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOTICES = ROOT / "LICENSE-THIRD-PARTY.txt"
BILL = ROOT / "crates/paceline-py/paceline.cdx.json"
MODULE = "paceline-py"
TARGETS = ("x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu")
STANDARD_LIBRARY = ROOT / "scripts/notices/rust-standard-library.txt"
STANDARD_LIBRARY_LICENSES = ("MIT", "Unicode-3.0", "Apache-2.0 WITH LLVM-exception")
"""Besides Apache-2.0, which is Paceline's own."""
ELECTED = ("Apache-2.0", "MIT", "BSD-3-Clause", "ISC")
FILES = re.compile(r"(LICEN[SC]E|COPYING|NOTICE|COPYRIGHT)", re.IGNORECASE)
ALWAYS = re.compile(r"(NOTICE|THIRD-PARTY)", re.IGNORECASE)
"""What is carried even under a license whose text is in LICENSE."""
SAME_REPOSITORY = {"tonic-prost": "tonic"}
"""Crates published without the license file of their repository, and one of it that has the file."""


@dataclass(frozen=True)
class Crate:
    """A crate that is linked."""

    name: str
    version: str
    offered: str
    """The SPDX expression of its Cargo.toml."""
    folder: Path
    checksum: str
    """Of its archive; empty for a crate of this repository."""
    needs: tuple[str, ...]
    """Crates that it links, as `name version`."""

    @property
    def key(self) -> str:
        return f"{self.name} {self.version}"

    @property
    def license(self) -> str:
        """The license that is taken."""
        choices = re.split(r"\s+OR\s+|\s*/\s*", self.offered)
        return next((name for name in ELECTED if name in choices), self.offered)


def linked(root: Path = ROOT) -> list[Crate]:
    """Every crate that is linked into the module on any of the targets, by name. Needs cargo."""
    names: set[tuple[str, str]] = set()
    packages, needs = {}, {}
    for target in TARGETS:
        tree = _cargo(
            *("tree", "--package", MODULE, "--edges", "normal,no-proc-macro", "--target", target),
            *("--prefix", "none", "--no-dedupe", "--format", "{p}"),
            root=root,
        )
        names |= {(line.split()[0], line.split()[1][1:]) for line in tree.splitlines()}
        result = json.loads(_cargo("metadata", "--format-version", "1", "--filter-platform", target, root=root))
        packages |= {package["id"]: package for package in result["packages"]}
        for node in result["resolve"]["nodes"]:
            kinds = {one["pkg"] for one in node["deps"] if any(kind["kind"] is None for kind in one["dep_kinds"])}
            needs[node["id"]] = needs.get(node["id"], set()) | kinds
    by_id = {key: package for key, package in packages.items() if (package["name"], package["version"]) in names}
    lock = tomllib.loads((root / "Cargo.lock").read_text(encoding="utf-8"))["package"]
    checksums = {(one["name"], one["version"]): one.get("checksum", "") for one in lock}
    crates = [
        Crate(
            package["name"],
            package["version"],
            package["license"],
            Path(package["manifest_path"]).parent,
            checksums[package["name"], package["version"]],
            tuple(sorted(f"{by_id[one]['name']} {by_id[one]['version']}" for one in needs[key] if one in by_id)),
        )
        for key, package in by_id.items()
    ]
    return sorted(crates, key=lambda crate: crate.key)


def _cargo(command: str, *words: str, root: Path) -> str:
    done = subprocess.run(
        ["cargo", command, "--locked", "--offline", *words], cwd=root, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"cargo {command}: {done.stderr.strip()}; if crates are missing: cargo fetch --locked")
    return done.stdout


def expression(crates: list[Crate]) -> str:
    """The licenses of a wheel, as an SPDX expression: Paceline's own first."""
    parts = {part for crate in crates if crate.checksum for part in crate.license.split(" AND ")} | {
        *STANDARD_LIBRARY_LICENSES
    }
    return " AND ".join(["Apache-2.0", *sorted(parts - {"Apache-2.0"})])


def notices(crates: list[Crate]) -> str:
    """Every linked crate with its license, then every text that must be carried, once."""
    others = [crate for crate in crates if crate.checksum]
    carried: dict[str, list[str]] = {}
    for crate in others:
        for text in _texts(crate, others):
            carried.setdefault(text, []).append(crate.key)
    rows = [f"{crate.key:<28} {crate.license}" for crate in others]
    line = "=" * 78
    return "\n".join(
        [
            "Paceline is licensed under the Apache License 2.0 (LICENSE). Its wheels contain compiled code of the Rust",
            "standard library and of the crates below, under these licenses. scripts/third_party.py writes this file.",
            "",
            *rows,
            "",
            line,
            STANDARD_LIBRARY.read_text(encoding="utf-8").strip(),
            *(part for text, names in carried.items() for part in (line, f"{', '.join(names)}", "", text)),
            "",
        ]
    )


def _texts(crate: Crate, crates: list[Crate]) -> Iterator[str]:
    """What its license wants to be carried along. Raises AssertionError if a crate needs a notice and has none."""
    folder = crate.folder
    if crate.name in SAME_REPOSITORY:
        folder = next(one.folder for one in crates if one.name == SAME_REPOSITORY[crate.name])
    files = sorted(path for path in folder.iterdir() if path.is_file() and FILES.match(path.name))
    if crate.license == "Apache-2.0":
        files = [path for path in files if ALWAYS.search(path.name)]
    elif crate.offered != crate.license:  # One of several: those whose names say another are left out.
        named = [path for path in files if crate.license.split("-")[0].lower() in path.name.lower()]
        files = named + [path for path in files if ALWAYS.search(path.name)] if named else files
    assert files or crate.license == "Apache-2.0", f"{crate.key} is under {crate.license} and has no license file"
    for path in files:
        text = path.read_text(encoding="utf-8")
        yield "\n".join(line.rstrip() for line in text.replace("\r\n", "\n").splitlines()).strip()


def bill(crates: list[Crate]) -> str:
    """A bill of materials of the module: CycloneDX 1.5."""
    (version,) = {crate.version for crate in crates if crate.name == MODULE}
    others, ours = [crate for crate in crates if crate.checksum], [crate for crate in crates if not crate.checksum]
    needs = {crate.key: crate.needs for crate in others} | {"paceline": {key for crate in ours for key in crate.needs}}
    # A type and a name without a registry: Paceline is on none.
    purls = {"paceline": f"pkg:generic/paceline@{version}"}
    purls |= {crate.key: f"pkg:cargo/{crate.name}@{crate.version}" for crate in others}
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": purls["paceline"],
                "name": "paceline",
                "version": version,
                "licenses": [{"expression": expression(crates)}],
                "purl": purls["paceline"],
            }
        },
        "components": [
            {
                "type": "library",
                "bom-ref": purls[crate.key],
                "name": crate.name,
                "version": crate.version,
                "hashes": [{"alg": "SHA-256", "content": crate.checksum}],
                "licenses": [{"expression": re.sub(r"\s*/\s*", " OR ", crate.offered)}],
                "purl": purls[crate.key],
            }
            for crate in others
        ],
        "dependencies": [
            {"ref": purl, "dependsOn": [purls[name] for name in sorted(needs[key]) if name in purls]}
            for key, purl in purls.items()
        ],
    }
    return json.dumps(document, indent=1) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    crates = linked()
    for path, text in ((NOTICES, notices(crates)), (BILL, bill(crates))):
        if not check:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            sys.exit(f"{path.relative_to(ROOT)} is out of date: run python scripts/third_party.py")
    print(f"{len([crate for crate in crates if crate.checksum])} crates; license = {expression(crates)!r}")


if __name__ == "__main__":
    main()
