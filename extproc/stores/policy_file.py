"""Policies as a YAML file, for people who keep configuration in git; see docs/limits.md.

A file is checked wholly before anything is done with it, and an error names its place in the file:
``policies[2].rules[0].limit``.
"""

from datetime import UTC, datetime
from typing import Annotated, Any

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
)

from extproc.core.ids import is_valid_id
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

MAX_FILE_BYTES = 4 * 1024 * 1024


class PolicyFileError(ValueError):
    """The file is wrong; a line for each mistake."""


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
    return zoned.astimezone(UTC).replace(microsecond=0)


def _checked_name(name: str) -> str:
    check_name(name)
    return name


def _checked_value(value: str) -> str:
    check_value(value, may_be_wild=True)
    return value


def _checked_root(root: str) -> str:
    if not is_valid_id(root):
        raise ValueError("must be 1 to 128 letters, digits, '.', '_', ':' or '-'")
    return root


def _text(value: object) -> object:
    """YAML reads 7, no and 1.5 as anything but text."""
    if value is not None and not isinstance(value, str):
        raise ValueError("must be text: put it in quotes")
    return value


_Text = BeforeValidator(_text)
_Moment = Annotated[datetime, BeforeValidator(parse_moment)]
_Count = Annotated[int, Field(ge=0, le=MAX_LIMIT, strict=True)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Rule(_Strict):
    dimension: Dimension
    limit: _Count
    algorithm: Algorithm = Algorithm.MINUTE
    window_seconds: Annotated[int, Field(ge=1, le=86_400, strict=True)] = 60
    burst: Annotated[int, Field(ge=1, le=MAX_LIMIT, strict=True)] | None = None
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


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice, where YAML's last one would silently win."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[str] = set()
    for key, _ in node.value:
        if key.value in seen:
            mark = key.start_mark
            raise PolicyFileError(f"line {mark.line + 1}: {key.value} stands twice")
        seen.add(key.value)
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def read_policy_file(text: str) -> PolicyFile:
    """The policies in ``text``. Raises PolicyFileError that names every mistake by its place."""
    if len(text) > MAX_FILE_BYTES:
        raise PolicyFileError(f"a file may hold {MAX_FILE_BYTES} characters")
    try:
        plain = yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        raise PolicyFileError(_yaml_problem(error)) from error
    except RecursionError as error:
        raise PolicyFileError("nested too deeply") from error
    except ValueError as error:  # a date that does not exist
        raise PolicyFileError(str(error)) from error
    if not isinstance(plain, dict):
        raise PolicyFileError("a file begins with `policies:`")
    try:
        file = _File.model_validate(plain)
    except ValidationError as error:
        raise PolicyFileError("\n".join(map(_problem, error.errors()))) from error
    return _to_domain(file)


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
        raise PolicyFileError("\n".join(problems))
    return PolicyFile(root=file.root, drafts=tuple(drafts))


def _problem(error: Any) -> str:
    place = ""
    for part in error["loc"]:
        place += f"[{part}]" if isinstance(part, int) else f".{part}"
    texts = {"extra_forbidden": "there is no such key", "missing": "is missing"}
    text = texts.get(error["type"]) or error["msg"].removeprefix("Value error, ")
    return f"{place.removeprefix('.')}: {text}"


def _yaml_problem(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    where = "" if mark is None else f"line {mark.line + 1}: "
    if "undefined alias" in problem:
        problem += ': put values with an asterisk in quotes, as "*each"'
    return f"{where}{problem}"
