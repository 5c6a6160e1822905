"""`tokenweir up` with its caller's settings: scopes by header, idempotency keys."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CLI = [sys.executable, "-m", "extproc.cli"]
SETTINGS = """\
[identity.scopes]
user = [{ kind = "header", name = "x-user" }]
[admission]
idempotency_header = "idempotency-key"
default_output_tokens = 7
"""
POLICIES = {
    "policies": [
        {
            "name": "user-calm",
            "scope": "user",
            "value": "*each",
            "rules": [{"dimension": "rpm", "limit": 1}],
        }
    ]
}


def post(url: str, *, text: str = "Hello", **headers: str) -> int:
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        data=json.dumps(
            {"model": "gpt-4o", "messages": [{"role": "user", "content": text}]}
        ).encode(),
        headers={
            "authorization": "Bearer demo-key-svc-chat",
            "content-type": "application/json",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        },
    )
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(request, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_scopes_and_idempotency_keys_of_the_settings_can_be_tried(tmp_path: Path) -> None:
    settings, policies, output = (tmp_path / name for name in ("own.toml", "p.yaml", "output"))
    settings.write_text(SETTINGS)
    policies.write_text(json.dumps(POLICIES))  # JSON is YAML
    with output.open("wb") as sink:
        process = subprocess.Popen(
            [*CLI, "up", "--run-dir", str(tmp_path / "run")],
            cwd=ROOT,
            stdout=sink,
            stderr=sink,
            env={**os.environ, "TOKENWEIR_CONFIG": str(settings)},
        )
    try:
        until = time.monotonic() + 60
        while "Ctrl-C" not in (text := output.read_text()):
            assert process.poll() is None, text
            assert time.monotonic() < until, text
            time.sleep(0.05)
        assert "Believed as clients send them, for trials only: x-user (user)." in text
        assert "A client's idempotency key: idempotency-key\n" in text
        exports = "\n".join(re.findall(r"^  export TOKENWEIR.*$", text, re.MULTILINE))
        apply = f"{exports}\n{sys.executable} -m extproc.cli limits apply -f {policies}"
        subprocess.run(["sh", "-ec", apply], cwd=ROOT, check=True, timeout=60)
        address = re.search(r"^Envoy +(\S+)$", text, re.MULTILINE)
        assert address is not None
        url = address[1]
        assert [post(url, x_user="alice") for _ in range(2)] == [200, 429]
        assert post(url, x_user="bob", idempotency_key="k-1") == 200
        assert post(url, x_user="carol", text="Other", idempotency_key="k-1") == 422
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0, output.read_text()
