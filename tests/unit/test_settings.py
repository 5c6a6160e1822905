"""Settings: a wrong one stops the start with its name."""

from pathlib import Path

import pytest

from extproc.core.errors import SettingsError
from extproc.demo.own_settings import child_variables
from extproc.settings import HeaderSource, MetadataSource, load_settings


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in list(os.environ):
        if name.startswith("TOKENWEIR_"):
            monkeypatch.delenv(name)


def test_defaults_need_nothing() -> None:
    settings = load_settings()
    assert settings.redis.timeout_ms == 50
    assert settings.redis.failure_mode == "closed"
    assert settings.limits.cache_ttl_seconds == 600
    assert settings.identity.sources == (HeaderSource(kind="header", name="x-tokenweir-service"),)


_PRICE = '[{"model": "m", "input_micros": 1, "output_micros": 2}]'
_TTL = "admission.idempotency_ttl_seconds"
_HEADER = "TOKENWEIR_ADMISSION__IDEMPOTENCY_HEADER"
_NO_KEYS = ("authorization", "host", "content-type", "x-tokenweir-service")


def _scope(name: str) -> str:
    return f'{{"{name}": [{{"kind": "header", "name": "x-s"}}]}}'


@pytest.mark.parametrize(
    ("name", "value", "key"),
    [
        ("TOKENWEIR_REDIS__TIMEOUT_MS", "soon", "redis.timeout_ms"),
        ("TOKENWEIR_REDIS__TIMEOUT_MS", "0", "redis.timeout_ms"),
        ("TOKENWEIR_REDIS__FAILURE_MODE", "maybe", "redis.failure_mode"),
        ("TOKENWEIR_REDIS__CLUSTER", "perhaps", "redis.cluster"),
        ("TOKENWEIR_REDIS__URL", "redis://a:1,b:2/0", "redis.url"),
        ("TOKENWEIR_SERVER__LISTEN", "18070", "server.listen"),
        ("TOKENWEIR_SERVER__LISTEN", "unix:relative.sock", "server.listen"),
        ("TOKENWEIR_SERVER__METRICS_LISTEN", "unix:/tmp/x", "server.metrics_listen"),
        ("TOKENWEIR_REDIS__TIMEOT_MS", "5", "TOKENWEIR_REDIS__TIMEOT_MS"),
        ("TOKENWEIR_REDSI__URL", "x", "TOKENWEIR_REDSI__URL"),
        ("TOKENWEIR_IDENTITY__SOURCES", "[]", "identity.sources"),
        ("TOKENWEIR_IDENTITY__SOURCES", '[{"kind": "cookie"}]', "identity.sources.0"),
        ("TOKENWEIR_IDENTITY__SOURCES", "[{", "TOKENWEIR_IDENTITY__SOURCES"),
        ("TOKENWEIR_IDENTITY__SCOPES", _scope("service"), "identity.scopes"),
        ("TOKENWEIR_IDENTITY__SCOPES", _scope("model"), "identity.scopes"),
        ("TOKENWEIR_PRICES", "2.50", "prices"),
        ("TOKENWEIR_PRICES", "gpt-4o", "TOKENWEIR_PRICES"),
        ("TOKENWEIR_PRICES", _PRICE.replace("2", "true"), "prices.0.output_micros"),
        ("TOKENWEIR_SERVER__METRICS_DIR", "", "server.metrics_dir"),
        ("TOKENWEIR_ADMISSION__UNKNOWN_MODELS", "refuse", "admission.unknown_models"),
        ("TOKENWEIR_ADMISSION__UNKNOWN_MODELS", "count", "admission.unknown_models"),
        ("TOKENWEIR_ADMISSION__KNOWN_MODELS", '[""]', "admission.known_models.0"),
        ("TOKENWEIR_ADMISSION__KNOWN_MODELS", "gpt", "TOKENWEIR_ADMISSION__KNOWN_MODELS"),
        ("TOKENWEIR_ADMISSION__IDEMPOTENCY_TTL_SECONDS", "899", _TTL),
        *((_HEADER, name, "admission.idempotency_header") for name in _NO_KEYS),
    ],
)
def test_a_wrong_variable_names_its_key(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, key: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as caught:
        load_settings()
    assert caught.value.key == key


def test_the_environment_is_stronger_than_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "tokenweir.toml"
    file.write_text(
        "[redis]\ntimeout_ms = 70\nmax_connections = 3\n"
        "[[identity.sources]]\nkind = 'metadata'\npath = ['payload', 'service_id']\n"
    )
    monkeypatch.setenv("TOKENWEIR_REDIS__TIMEOUT_MS", "90")
    settings = load_settings(file)
    assert settings.redis.timeout_ms == 90
    assert settings.redis.max_connections == 3
    source = settings.identity.sources[0]
    assert isinstance(source, MetadataSource)
    assert source.path == ("payload", "service_id")


def test_the_file_can_be_named_by_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "other.toml"
    file.write_text("[reaper]\npolicy = 'release'\n")
    monkeypatch.setenv("TOKENWEIR_CONFIG", str(file))
    assert load_settings().reaper.policy == "release"


def test_the_variables_of_a_kubernetes_service_are_not_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in (
        "TOKENWEIR_SERVICE_HOST",
        "TOKENWEIR_SERVICE_PORT",
        "TOKENWEIR_SERVICE_PORT_GRPC",
        "TOKENWEIR_PORT",
        "TOKENWEIR_PORT_18070_TCP_ADDR",
        "TOKENWEIR_SERVE_SERVICE_HOST",
        "TOKENWEIR_SERVE_PORT_18070_TCP",
    ):
        monkeypatch.setenv(name, "tcp://10.0.0.1:18070")
    assert load_settings().redis.timeout_ms == 50


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[redis]\ntimeot_ms = 5\n", "redis.timeot_ms"),
        ("[radis]\nurl = 'x'\n", "radis"),
        ("[redis]\ntimeout_ms = [1]\n", "redis.timeout_ms"),
    ],
)
def test_a_wrong_key_in_the_file_is_named(tmp_path: Path, text: str, key: str) -> None:
    file = tmp_path / "t.toml"
    file.write_text(text)
    with pytest.raises(SettingsError) as caught:
        load_settings(file)
    assert caught.value.key == key


def test_a_file_that_is_no_toml_is_named(tmp_path: Path) -> None:
    file = tmp_path / "t.toml"
    file.write_text("[redis\n")
    with pytest.raises(SettingsError, match=r"t\.toml"):
        load_settings(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no such file"):
        load_settings(tmp_path / "absent.toml")


@pytest.mark.parametrize(
    "url", ["unix:///run/redis.sock", "redis://a/1", "redis://a:1,b:x/0", "redis://a?db=2"]
)
def test_the_url_of_a_cluster_is_checked_too(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("TOKENWEIR_REDIS__CLUSTER", "true")
    monkeypatch.setenv("TOKENWEIR_REDIS__URL", "redis://user:pw@a:7000,b/0")
    assert load_settings().redis.cluster
    monkeypatch.setenv("TOKENWEIR_REDIS__URL", url)
    with pytest.raises(SettingsError) as caught:
        load_settings()
    assert caught.value.key == "redis.url"


def test_a_url_is_checked_before_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENWEIR_REDIS__URL", "localhost:6379")
    with pytest.raises(SettingsError) as caught:
        load_settings()
    assert caught.value.key == "redis.url"
    monkeypatch.setenv("TOKENWEIR_REDIS__URL", "redis://localhost:6379")
    monkeypatch.setenv("TOKENWEIR_DATABASE__URL", "oracle://x")
    with pytest.raises(SettingsError) as caught:
        load_settings()
    assert caught.value.key == "database.url"


def test_the_header_of_who_asks_holds_no_idempotency_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENWEIR_IDENTITY__SCOPES", _scope("user"))
    monkeypatch.setenv(_HEADER, "idempotency-key")
    assert load_settings().admission.idempotency_header == "idempotency-key"
    monkeypatch.setenv(_HEADER, "x-s")
    with pytest.raises(SettingsError) as caught:
        load_settings()
    assert caught.value.key == "admission.idempotency_header"


def test_a_flag_is_no_number_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "t.toml"
    file.write_text("[redis]\ncluster = false\ntimeout_ms = true\n")
    with pytest.raises(SettingsError) as caught:
        load_settings(file)
    assert caught.value.key == "redis.timeout_ms"


@pytest.mark.parametrize("where", ["prices", "names"])
def test_unknown_models_are_refused_once_some_are_known(
    monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setenv("TOKENWEIR_ADMISSION__UNKNOWN_MODELS", "refuse")
    if where == "prices":
        monkeypatch.setenv("TOKENWEIR_PRICES", _PRICE)
    else:
        monkeypatch.setenv("TOKENWEIR_ADMISSION__KNOWN_MODELS", '["gpt-4o*"]')
    settings = load_settings()
    assert settings.admission.unknown_models == "refuse"
    variables = child_variables(settings)
    assert variables["TOKENWEIR_ADMISSION__UNKNOWN_MODELS"] == "refuse"
    if where == "names":
        assert variables["TOKENWEIR_ADMISSION__KNOWN_MODELS"] == '["gpt-4o*"]'


def test_strict_estimates_and_slices_exclude_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENWEIR_LOCAL_VIEW__ENABLED", "true")
    assert load_settings().local_view.enabled
    monkeypatch.setenv("TOKENWEIR_ADMISSION__ESTIMATE", "strict")
    monkeypatch.setenv("TOKENWEIR_ADMISSION__PLATFORM_CAP_TOKENS", "100")
    with pytest.raises(SettingsError, match=r"local_view\.enabled"):
        load_settings()
