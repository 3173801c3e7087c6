from __future__ import annotations

import pytest

from holdfast.errors import UsageError
from holdfast.gateway.model import FAMILIES, family_of

OLD, NEW = FAMILIES


@pytest.mark.requirement("GW-1")
@pytest.mark.parametrize("version", ["0.12", "0.12.0", "v0.12.3"])
def test_the_last_of_the_zero_releases_has_a_form_of_its_own(version: str) -> None:
    assert family_of(version).family is OLD
    assert OLD.timeout == ("timeout",)


@pytest.mark.requirement("GW-1")
@pytest.mark.parametrize("version", ["1.0", "1.0.0", "1.1.0", "v1.2.1", "1.3.1", "1.4.1", " 1.4.7 ", "1.4.1+build.5"])
def test_every_release_from_one_zero_on_takes_the_policies_form(version: str) -> None:
    release = family_of(version)
    assert release.family is NEW
    assert NEW.timeout == ("policies", "http", "requestTimeout")
    assert release.warning == ""


@pytest.mark.parametrize("version", ["1.5.0", "1.40.0", "2.0.0"])
def test_an_unknown_newer_release_is_rendered_as_the_newest_known_with_a_warning(version: str) -> None:
    release = family_of(version)
    assert (release.family, release.minor) == (NEW, (1, 4))
    assert "newer than all known versions: rendered for 1.4" in release.warning


def test_a_pre_release_is_rendered_as_its_release_with_a_warning() -> None:
    release = family_of("1.0.0-alpha.4")
    assert release.family is NEW
    assert "pre-release" in release.warning


@pytest.mark.parametrize("version", ["0.11.2", "0.8.0", "0.13.0"])
def test_a_release_whose_form_is_not_known_is_refused(version: str) -> None:
    with pytest.raises(UsageError, match=f"AgentGateway {version} is not supported") as refused:
        family_of(version)
    assert "0.12, 1.0 to 1.4" in refused.value.hint


@pytest.mark.parametrize("version", ["", "latest", "1", "1.x", "1.4.1.2", "१.४", "1.4 .1", "99999.1"])
def test_what_is_no_version_is_refused(version: str) -> None:
    with pytest.raises(UsageError, match="is not an AgentGateway version"):
        family_of(version)
