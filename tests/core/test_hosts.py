"""Which hosts are this machine."""

from __future__ import annotations

import pytest

from holdfast.core.hosts import is_loopback


@pytest.mark.requirement("SEC-2")
@pytest.mark.requirement("SEC-3")
@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.9.9.9",
        "127.255.255.254",
        "::1",
        "[::1]",
        "::ffff:127.0.0.1",
        "[::ffff:127.0.0.1]",
        "localhost",
        "LocalHost",
        "localhost.",
    ],
)
def test_this_machine_is_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.requirement("SEC-2")
@pytest.mark.requirement("SEC-3")
@pytest.mark.parametrize(
    "host",
    [
        "",
        "0.0.0.0",
        "::",
        "128.0.0.1",
        "126.255.255.255",
        "10.0.0.1",
        "::2",
        "::ffff:10.0.0.1",
        "::127.0.0.1",
        "127.1",
        "2130706433",
        "127.0.0.1.evil.example",
        "localhost.evil",
        "evil-localhost",
        "app.localhost",
        ".localhost",
        "\u00a0localhost",
        "example.org",
    ],
)
def test_a_name_or_address_that_can_be_another_machine_is_not_loopback(host: str) -> None:
    assert not is_loopback(host)
