"""Policies as a YAML file, for people who keep configuration in git; see docs/limits.md.

A file is checked wholly before anything is done with it, and an error names its place in the file:
``policies[2].rules[0].limit``.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
)

from extproc.core.ids import ACROSS_PREFIX, is_root_id
from extproc.core.limits import MAX_LIMIT
from extproc.core.policies import (
    MAX_VALUE_LENGTH,
    Algorithm,
    Dimension,
    LimitPolicy,
    Mode,
    OnExceed,
    Rule,
    Scope,
    check_name,
    check_value,
)
from extproc.core.policy_plan import EPOCH, PolicyDraft, PolicyFile
from extproc.stores.policy_yaml import PolicyFileError, read_yaml, shown

MAX_FILE_BYTES = 4 * 1024 * 1024
_MAX_PROBLEMS = 50


def parse_moment(value: object) -> datetime:
    """A date or time (ISO 8601) in UTC, of whole seconds; without a zone it is UTC already.

    Raises ValueError.
    """
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if not isinstance(value, datetime):
        # YAML makes a date of "2026-12-01".
        text = getattr(value, "isoformat", lambda: None)()
        if not isinstance(text, str):
            raise ValueError("must be a date or a time, as 2026-12-01T00:00:00Z")
        value = datetime.fromisoformat(text)
    zoned = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    try:
        return zoned.astimezone(UTC).replace(microsecond=0)
    except OverflowError as error:
        raise ValueError("must be between the years 1 and 9999 in UTC") from error


def _checked_name(name: str) -> str:
    check_name(name)
    return name


def _checked_value(value: str) -> str:
    check_value(value, may_be_wild=True)
    return value


def _checked_root(root: str) -> str:
    if not is_root_id(root):
        text = "must be 1 to 128 letters, digits, '.', '_', ':' or '-'"
        raise ValueError(f"{text}, and not begin with {ACROSS_PREFIX}")
    return root


def _text(value: object) -> object:
    """YAML reads 7, no and 1.5 as anything but text."""
    if value is not None and not isinstance(value, str):
        raise ValueError("must be text: put it in quotes")
    return value


def _whole(value: object) -> object:
    if type(value) is not int:
        raise ValueError("must be a whole number in digits, as 1000 or 1_000")
    return value


_Text = BeforeValidator(_text)
_Whole = BeforeValidator(_whole)
_Moment = Annotated[datetime, BeforeValidator(parse_moment)]
_Count = Annotated[int, _Whole, Field(ge=0, le=MAX_LIMIT)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Rule(_Strict):
    dimension: Dimension
    limit: _Count
    algorithm: Algorithm = Algorithm.MINUTE
    window_seconds: Annotated[int, _Whole, Field(ge=1, le=86_400)] = 60
    burst: Annotated[int, _Whole, Field(ge=1, le=MAX_LIMIT)] | None = None
    cycle_start: _Moment | None = None
    cycle_end: _Moment | None = None


class _Policy(_Strict):
    name: Annotated[str, _Text, AfterValidator(_checked_name)]
    scope: Scope
    value: Annotated[str, _Text, AfterValidator(_checked_value)]
    model: Annotated[str, _Text, Field(min_length=1, max_length=MAX_VALUE_LENGTH)] = "*"
    mode: Mode = Mode.ENFORCE
    on_exceed: OnExceed = OnExceed.REFUSE
    across_roots: Annotated[bool, Field(strict=True)] = False
    effective_from: _Moment | None = None
    effective_to: _Moment | None = None
    rules: Annotated[list[_Rule], Field(min_length=1)]


class _File(_Strict):
    root: Annotated[str, _Text, AfterValidator(_checked_root)] | None = None
    policies: list[_Policy]


def read_policy_path(path: Path) -> PolicyFile:
    """The policies in a file. Raises PolicyFileError, and OSError when it cannot be read."""
    with path.open("rb") as file:
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise PolicyFileError(f"a file may hold {MAX_FILE_BYTES} bytes")
    try:
        return read_policy_file(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise PolicyFileError(f"byte {error.start + 1}: not UTF-8") from error


def read_policy_file(text: str) -> PolicyFile:
    """The policies in ``text``. Raises PolicyFileError that names every mistake by its place."""
    if len(text) > MAX_FILE_BYTES:
        raise PolicyFileError(f"a file may hold {MAX_FILE_BYTES} characters")
    plain = read_yaml(text)
    if not isinstance(plain, dict):
        raise PolicyFileError("a file begins with `policies:`")
    try:
        file = _File.model_validate(plain)
    except ValidationError as error:
        raise _all_of(map(_problem, error.errors(include_url=False))) from error
    return _to_domain(file)


def _all_of(problems: Iterable[str]) -> PolicyFileError:
    found = list(problems)
    more = [f"and {len(found) - _MAX_PROBLEMS} more"] if len(found) > _MAX_PROBLEMS else []
    return PolicyFileError("\n".join([*found[:_MAX_PROBLEMS], *more]))


def _to_domain(file: _File) -> PolicyFile:
    drafts: list[PolicyDraft] = []
    places: dict[str, int] = {}
    problems: list[str] = []
    for index, policy in enumerate(file.policies):
        place = f"policies[{index}]"
        if policy.name in places:
            problems.append(f"{place}.name: stands already in policies[{places[policy.name]}]")
        places.setdefault(policy.name, index)
        rules: list[Rule] = []
        for number, rule in enumerate(policy.rules):
            try:
                rules.append(Rule(**dict(rule)))
            except ValueError as error:
                problems.append(f"{place}.rules[{number}]: {error}")
        if len(rules) < len(policy.rules):
            continue
        given = dict(policy) | {
            "root": file.root,
            "rules": tuple(sorted(rules, key=lambda rule: rule.dimension)),
            "effective_from": policy.effective_from or EPOCH,
        }
        try:
            draft = LimitPolicy(version=1, **given)
        except ValueError as error:
            problems.append(f"{place}: {error}")
            continue
        drafts.append(PolicyDraft(policy=draft, has_start=policy.effective_from is not None))
    if problems:
        raise _all_of(problems)
    return PolicyFile(root=file.root, drafts=tuple(drafts))


def _problem(error: Any) -> str:
    place = ""
    for part in error["loc"]:
        place += f"[{part}]" if isinstance(part, int) else f".{shown(str(part))}"
    texts = {"extra_forbidden": "there is no such key", "missing": "is missing"}
    text = texts.get(error["type"]) or error["msg"].removeprefix("Value error, ")
    return f"{place.removeprefix('.')}: {text}"
