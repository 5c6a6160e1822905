"""Key names are a contract with whoever looks into Redis, and decide the Cluster slot."""

import re

import pytest

from extproc.stores import keys
from extproc.stores.scripts import ALL, load_script


def test_names_are_exactly_the_documented_ones() -> None:
    assert keys.config("a.b:c") == "config:{a.b:c}"
    assert keys.rpm_prefix("a") + "202601020304" == "rate:rpm:{a}:202601020304"
    assert keys.tpm_prefix("a") + "202601020304" == "rate:tpm:{a}:202601020304"
    assert keys.output_prefix("a") + "202601020304" == "usage:output:{a}:202601020304"
    model = "usage:output:{a}:model:gpt-4o:202601020304"
    assert keys.output_model_prefix("a", "gpt-4o") + "202601020304" == model
    assert keys.reservation("a", "r1") == "resv:{a}:r1"
    assert keys.pending("a") == "pending:{a}"
    assert keys.refusals("a") == "refusals:{a}"
    assert keys.events("a") == "events:{a}"
    assert keys.ROOTS == "roots"
    assert keys.minute_prefix("a", "p.rpm.user:u") == "rate:{a}:p.rpm.user:u:"
    assert keys.window("a", "p") == "window:{a}:p"
    assert keys.bucket("a", "p") == "bucket:{a}:p"
    assert keys.slots("a", "p") == "slots:{a}:p"
    assert keys.quota_prefix("a", "p") + "20260102" == "quota:{a}:p:20260102"


@pytest.mark.parametrize("model", ["", "{b}", "org/model", ":x", "m" * 129, "é", "a b", "\ud800"])
def test_a_models_name_that_is_no_id_stands_in_a_key_as_a_digest(model: str) -> None:
    key = keys.output_model_prefix("a", model)
    assert re.fullmatch(r"usage:output:\{a\}:model::[0-9a-f]{20}:", key)
    assert key != keys.output_model_prefix("a", model + "2")


def test_all_keys_of_a_root_have_the_root_as_hash_tag() -> None:
    names = [
        keys.config("svc"),
        keys.rpm_prefix("svc"),
        keys.tpm_prefix("svc"),
        keys.output_prefix("svc"),
        keys.output_model_prefix("svc", "{other}"),
        keys.reservation("svc", "r1"),
        keys.pending("svc"),
        keys.refusals("svc"),
        keys.events("svc"),
    ]
    assert {name[name.index("{") + 1 : name.index("}")] for name in names} == {"svc"}


@pytest.mark.parametrize("name", ALL)
def test_every_script_documents_its_keys_and_arguments(name: str) -> None:
    source = load_script(name).source
    assert "-- KEYS[1]" in source
    assert "-- ARGV[1]" in source or "ARGV" not in source
    assert "--!include" not in source
