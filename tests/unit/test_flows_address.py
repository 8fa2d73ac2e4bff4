"""Where a server listens, and the names that it answers to."""

import socket

import pytest

from memagent.errors import UsageError
from pipelines.web.address import HOST, Address


def test_by_default_only_this_machine_and_its_names():
    address = Address(4200)
    address.check()
    assert (address.local, address.public) == ("http://127.0.0.1:4200", "http://127.0.0.1:4200")
    assert address.origins == ["http://127.0.0.1:4200", "http://localhost:4200"]
    assert address.names == [HOST, "localhost"] and address.warning == ""


def test_another_address_is_the_only_name():
    address = Address(4200, "127.0.0.2")
    address.check()
    assert address.names == ["127.0.0.2"] and address.origins == ["http://127.0.0.2:4200"]
    assert address.local == "http://127.0.0.2:4200" and address.is_private and address.warning == ""


def test_other_machines_are_told_of(monkeypatch):
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "10.0.0.5")
    address = Address(4200, "Archive.example.org")
    assert address.names == ["archive.example.org"] and not address.is_private
    assert "4200 of Archive.example.org" in address.warning and "without TLS" in address.warning
    assert "proxy" in address.warning


def test_behind_a_proxy_its_name_is_one_more():
    address = Address(4200, url="https://Review.example.org/")
    address.check()
    assert address.names == [HOST, "localhost", "review.example.org"]
    assert address.origins[-1] == address.public == "https://review.example.org"
    assert address.local == "http://127.0.0.1:4200"


def test_all_addresses_need_a_name():
    for everywhere in ("0.0.0.0", "0"):
        with pytest.raises(UsageError, match=r"every address of this machine.*--url"):
            Address(4200, everywhere).check()
    address = Address(4200, "0.0.0.0", "http://archive.example.org:8080")
    address.check()
    assert address.names == [HOST, "localhost", "archive.example.org"]
    assert address.local == "http://127.0.0.1:4200" and "without TLS" in address.warning


@pytest.mark.parametrize("host", ["", "http://10.0.0.5", "10.0.0.5:4200", "::1", "*", "a b", "a/b", "-x", "a\nb"])
def test_what_is_no_address_is_refused(host):
    with pytest.raises(UsageError, match="IPv4 address or a name"):
        Address(4200, host).check()


@pytest.mark.parametrize(
    ("host", "said"), [("198.51.100.1", "no address of this machine"), ("nope.invalid", "no such name")]
)
def test_what_is_not_of_this_machine_is_refused(host, said):
    with pytest.raises(UsageError, match=said):
        Address(4200, host).check()


@pytest.mark.parametrize(
    "url", ["review.example.org", "ftp://review.example.org", "https://", "https://a.example/path"]
)
def test_what_is_no_proxys_address_is_refused(url):
    with pytest.raises(UsageError, match="give scheme and host"):
        Address(4200, url=url).check()
