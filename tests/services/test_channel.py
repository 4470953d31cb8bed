"""How a client's channel is made, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.channel import call_metadata, open_aio_channel, open_channel


def test_a_key_goes_as_a_bearer_token_beside_other_metadata():
    metadata = call_metadata({"traceparent": "00-1"}, "k-1~/+=")
    assert metadata == (("traceparent", "00-1"), ("authorization", "Bearer k-1~/+="))


def test_nothing_is_sent_without_a_key():
    assert call_metadata() == ()


@pytest.mark.parametrize("key", ["", "two words", "line\nbreak", "schlüssel"])
def test_what_can_be_no_key_is_refused_without_being_shown(key):
    with pytest.raises(ValueError, match="api_key") as caught:
        call_metadata(None, key)
    assert not key or key not in str(caught.value)


@pytest.mark.parametrize("open_any", [open_channel, open_aio_channel])
def test_an_authority_that_is_none_is_refused(open_any, tmp_path: Path):
    with pytest.raises(ValueError, match=r"tls_ca: can't read .*absent\.pem: No such file"):
        open_any("127.0.0.1:1", tls_ca=tmp_path / "absent.pem")
    (tmp_path / "key.pem").write_text("-----BEGIN PRIVATE KEY-----")
    with pytest.raises(ValueError, match=r"tls_ca: .* holds no PEM certificate"):
        open_any("127.0.0.1:1", tls_ca=tmp_path / "key.pem")
