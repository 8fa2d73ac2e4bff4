"""What pip is configured to use is handed over to uv."""

import re
from pathlib import Path

from tools.uv_settings import uv_settings

LOCKS = Path(__file__).parents[2] / "infra" / "deploy" / "lock"


def test_index_links_certificate_and_proxy_are_handed_over():
    lines = [
        "global.index-url='https://mirror.example/simple'",
        "global.extra-index-url='https://a.example/simple\nhttps://b.example/simple'",
        "global.find-links='https://wheels.example/one https://wheels.example/two'",
        "install.trusted-host='mirror.example'",
        "global.cert='/etc/ssl/own.crt'",
        "global.proxy='http://proxy.example:3128'",
        ":env:.default-timeout='180'",
        "global.disable-pip-version-check='1'",
        "download.cert='/not/for/us'",
    ]
    settings = uv_settings([*lines[:1], lines[1].replace("\n", " "), *lines[2:]], {})
    assert settings == {
        "UV_DEFAULT_INDEX": "https://mirror.example/simple",
        "UV_INDEX": "https://a.example/simple https://b.example/simple",
        "UV_FIND_LINKS": "https://wheels.example/one,https://wheels.example/two",
        "UV_INSECURE_HOST": "mirror.example",
        "SSL_CERT_FILE": "/etc/ssl/own.crt",
        "ALL_PROXY": "http://proxy.example:3128",
        "UV_HTTP_TIMEOUT": "180",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
    }


def test_the_stronger_section_wins_and_what_is_set_for_uv_stays():
    lines = [":env:.cert='/of/the/environment'", "global.cert='/of/the/file'", "global.index-url='https://x.example'"]
    settings = uv_settings(lines, {"UV_DEFAULT_INDEX": "https://mine.example"})
    assert settings["SSL_CERT_FILE"] == "/of/the/environment"
    assert "UV_DEFAULT_INDEX" not in settings


def test_a_local_index_that_is_gone_is_left_out(tmp_path):
    lines = [f"global.extra-index-url='file://{tmp_path} file:///no/such/folder'"]
    assert uv_settings(lines, {})["UV_INDEX"] == f"file://{tmp_path}"


def test_every_package_of_every_lock_is_pinned_by_hash():
    for lock in sorted(LOCKS.glob("*.txt")):
        if lock.name == "left-out.txt":
            continue
        entries = re.split(r"^(?=[^ ])", lock.read_text(), flags=re.MULTILINE)[1:]
        assert entries, lock.name
        for entry in entries:
            assert re.match(r"[a-zA-Z0-9._-]+==\S+ ", entry), entry[:80]
            assert "--hash=sha256:" in entry, entry[:80]
