"""The facade and dist2 beside the names, parameters and defaults of torch's: `python -m tests.distributed.api` writes the tables
docs/reference/distributed-api.md and docs/reference/dist2-api.md.

torch_distributed_2.13.json and torch_dist2.json hold what is compared. Parameters and names that begin with an underscore are
nobody's to rely on and are left out, as are the methods that Backend has from str. differences.py gives the reason for each
difference. "forms" are the parameters of a method that can be called in several ways (arraycomm/distributed/operations/forms.py).
"""

from __future__ import annotations

import enum
import importlib
import inspect
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from .differences import ENVIRONMENT, REASONS

DOCS = Path(__file__).resolve().parents[2] / "docs" / "reference"


class Side(NamedTuple):
    """What is compared: the data beside this file, and the package of ours. table: in docs/reference."""

    file: str
    package: str
    table: str
    theirs: str

    @property
    def data(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads(Path(__file__).with_name(self.file).read_text())
        return data

    @property
    def path(self) -> Path:
        return DOCS / self.table


FACADE = Side("torch_distributed_2.13.json", "arraycomm.distributed", "distributed-api.md", "torch.distributed")
DIST2 = Side("torch_dist2.json", "arraycomm.dist2", "dist2-api.md", "torch.distributed._dist2")
SIDES = (FACADE, DIST2)


class Finding(NamedTuple):
    """One difference. `name` is what REASONS knows it by: a name, `Class.member` or `module.name`."""

    name: str
    text: str

    @property
    def reason(self) -> str | None:
        return REASONS.get(self.name)


class Row(NamedTuple):
    """One name of a module, and how ours differs."""

    module: str
    name: str
    documented: bool
    call: str
    findings: list[Finding]


# ---- texts ----

def _default(value: Any) -> str:
    """A default as the data writes it."""
    if type(value).__name__ in ("ReduceOp", "RedOpType"):
        return f"ReduceOp.{value.name}"
    return getattr(value, "__name__", "<lambda>") if inspect.isfunction(value) else repr(value)


def call_text(ours: Any) -> str:
    """The parameters of a function or class, without self and private ones."""
    parts: list[str] = []
    star = False
    for parameter in inspect.signature(ours).parameters.values():
        if parameter.name.startswith("_") or parameter.name == "self":
            continue
        if parameter.kind is parameter.VAR_POSITIONAL:
            star = True
        elif parameter.kind is parameter.KEYWORD_ONLY and not star:
            parts, star = [*parts, "*"], True
        name = str(parameter.replace(annotation=parameter.empty, default=parameter.empty))
        parts.append(name if parameter.default is parameter.empty else f"{name}={_default(parameter.default)}")
    return f"({', '.join(parts)})"


def _same_call(theirs: str, ours: str) -> bool:
    """`=...` in theirs is a default that torch does not tell."""
    if "=..." not in theirs:
        return theirs == ours
    left, right = theirs.strip("()").split(", "), ours.strip("()").split(", ")
    return len(left) == len(right) and all(
        a == b or (a.endswith("=...") and b.startswith(a.removesuffix("..."))) for a, b in zip(left, right, strict=True))


# ---- comparison ----

def _call(name: str, theirs: str, ours: Any) -> Iterator[Finding]:
    try:
        mine = call_text(ours)
    except (ValueError, TypeError) as error:
        yield Finding(name, f"parameters {theirs} cannot be read: {error}")
        return
    if not _same_call(theirs, mine):
        yield Finding(name, f"`{mine}` instead of `{theirs}`")


def _has(ours: Any, member: str) -> bool:
    """As an attribute of the class or, set by __init__, of its instances; an enum's name and value are theirs only."""
    if hasattr(ours, member) or (issubclass(ours, enum.Enum) and member in ("name", "value")):
        return True
    return any(member in getattr(vars(cls).get("__init__"), "__code__", _has.__code__).co_names for cls in inspect.getmro(ours))


def _text(value: Any) -> str:
    """As repr(), with enum members as torch writes them."""
    return re.sub(r"<(\w+\.\w+): [^>]*>", r"\1", repr(value))


def _forms(name: str, theirs: list[str], ours: Any) -> Iterator[Finding]:
    mine = list(getattr(ours, "forms", ())) or [call_text(ours)]
    if mine != theirs:
        yield Finding(name, f"`{' or '.join(mine)}` instead of `{' or '.join(theirs)}`")


def _member(owner: str, ours: Any, member: str, theirs: str) -> Iterator[Finding]:
    name = f"{owner}.{member}"
    if not _has(ours, member):
        yield Finding(name, f"no member `{member}`")
        return
    kind, _, rest = theirs.partition(" ")
    mine = getattr(ours, member, None)
    if kind.endswith("method") and not callable(mine):
        yield Finding(name, f"`{member}` is no method")
    elif rest.startswith("("):
        yield from _call(name, rest, mine)
    elif rest and _text(mine) != rest:
        yield Finding(name, f"`{member}` is `{mine!r}` instead of `{rest}`")


def _compare(name: str, theirs: dict[str, Any], ours: Any) -> Iterator[Finding]:
    if theirs["kind"] in ("class", "exception") and not inspect.isclass(ours):
        yield Finding(name, "is no class")
        return
    if theirs["kind"] in ("function", "method") and not callable(ours):
        yield Finding(name, "cannot be called")
        return
    if "forms" in theirs:
        yield from _forms(name, theirs["forms"], ours)
    if "call" in theirs:
        yield from _call(name, theirs["call"], ours)
    if "value" in theirs and repr(ours) != theirs["value"]:
        yield Finding(name, f"is `{ours!r}` instead of `{theirs['value']}`")
    for base in theirs.get("bases", ()):
        if base not in [cls.__name__ for cls in inspect.getmro(ours)]:
            yield Finding(name, f"does not derive from {base}")
    for label, value in theirs.get("enum", {}).items():
        mine = getattr(ours, label, None)
        if getattr(mine, "value", None) != value:
            yield Finding(name, f"`{label}` is `{mine!r}` instead of {value}")
    for member, text in theirs.get("members", {}).items():
        yield from _member(name, ours, member, text)


def _find(place: Any, name: str) -> tuple[bool, Any]:
    """Whether a module has a name, or a member of a class of it ("ProcessGroup.send"), and what it is."""
    *owners, last = name.split(".")
    for owner in owners:
        if not hasattr(place, owner):
            return False, None
        place = getattr(place, owner)
    found = _has(place, last) if inspect.isclass(place) else hasattr(place, last)
    return found, getattr(place, last, None)


def _row(side: Side, module: str, name: str, theirs: dict[str, Any] | str, data: dict[str, Any]) -> Row:
    full = f"{module}.{name}" if module else name
    same = theirs == "same"
    entry = data["modules"][""][name] if isinstance(theirs, str) else theirs
    path = f"{side.package}.{module}" if module else side.package
    row = Row(module, name, entry["documented"], " or ".join(entry.get("forms", ())) or entry.get("call", ""), [])
    try:
        place = importlib.import_module(path)
    except ModuleNotFoundError:
        row.findings.append(Finding(full, f"no module {path}"))
        return row
    there, ours = _find(place, name)
    if not there:
        row.findings.append(Finding(full, "missing"))
    elif not same:
        row.findings.extend(_compare(full, entry, ours))
    elif ours is not getattr(importlib.import_module(side.package), name, None):
        row.findings.append(Finding(full, f"is not what {side.package} has under this name"))
    return row


def rows(side: Side = FACADE) -> list[Row]:
    """Everything that torch has, documented or not."""
    data = side.data
    found = [_row(side, module, name, theirs, data) for module, names in data["modules"].items()
             for name, theirs in names.items()]
    return [row for row in found if not _missing_above(row)]


def _missing_above(row: Row) -> bool:
    """What the package itself has not, and says why, is not told again for the modules that repeat its names."""
    return bool(row.module) and row.name in REASONS and all(f.text == "missing" for f in row.findings) and bool(row.findings)


def unexplained(found: list[Row]) -> list[Finding]:
    """The differences that nobody gives a reason for."""
    return [finding for row in found for finding in row.findings if finding.reason is None]


def stale(found: list[Row]) -> list[str]:
    """Reasons for differences that there are not. found: of all sides."""
    unused = set(REASONS) - {finding.name for row in found for finding in row.findings}
    variables = {name for side in SIDES for name in side.data["environment"]}
    return sorted(unused | set(ENVIRONMENT) - variables)


# ---- the table ----

HEAD = """# {package} beside {theirs}

`python -m tests.distributed.api` writes this page. It compares the package with the names, parameters, defaults, members and
bases of {of}. A test keeps the table up to date and checks that every difference has a reason.

| names | the same | different on purpose, with the reason |
|---|---|---|
| {count} | {same} | {different} |

"same" means: present, with the same parameters in the same order, the same defaults, the same members. If torch does not document
the parameters (most methods of its C++ classes), "same" means present. *Documented* names have an entry in torch's public
documentation; programs use the others too.
"""


def _lines(found: list[Row]) -> Iterator[str]:
    yield "| name | documented | here |"
    yield "|---|---|---|"
    for row in found:
        texts = [f"{f.text}: {f.reason or 'NOT YET'}" for f in row.findings]
        name = f"`{row.name}{row.call}`".replace("|", "\\|")
        yield f"| {name} | {'yes' if row.documented else ''} | {'<br>'.join(texts).replace('|', chr(92) + '|') or 'same'} |"


def table(side: Side = FACADE) -> str:
    found, data = rows(side), side.data
    same = sum(not row.findings for row in found)
    parts = [HEAD.format(of=data["of"], package=side.package, theirs=side.theirs, count=len(found), same=same,
                         different=len(found) - same)]
    for module in dict.fromkeys(row.module for row in found):
        parts.append(f"## {side.package}{'.' + module if module else ''}\n")
        parts.append("\n".join(_lines([row for row in found if row.module == module])) + "\n")
    lines = [f"| `{name}` | {meaning} | {ENVIRONMENT.get(name, 'same')} |" for name, meaning in data["environment"].items()]
    if lines:
        parts.append("\n".join(["## Environment variables\n", "| variable | in torch | here |", "|---|---|---|", *lines]) + "\n")
    return "\n".join(parts)


def main() -> int:
    for side in SIDES:
        side.path.write_text(table(side))
    found = [row for side in SIDES for row in rows(side)]
    for finding in unexplained(found):
        print(f"{finding.name}: {finding.text}")
    for name in stale(found):
        print(f"{name}: differences.py gives a reason for a difference that is none")
    return 1 if unexplained(found) or stale(found) else 0


if __name__ == "__main__":
    sys.exit(main())
