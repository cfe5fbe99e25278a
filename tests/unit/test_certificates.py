"""Who gets in with TLS when the files of the server's certificate and authorities change?"""

import logging
import re
import shutil
import ssl
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from consumers.runtime.certificate import Tls
from consumers.runtime.config import load
from consumers.servers.metrics import Metrics
from consumers.servers.security import certificates
from consumers.servers.security.certificates import Certificates
from consumers.servers.server import ServerSettings, _tls_of
from consumers.tools.doctor import doctor
from consumers.views.health import Check, Level

Made = tuple[Path, Path]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Made]:
    pytest.importorskip("cryptography")
    from tests.certificates import make_certificate

    monkeypatch.setattr(certificates, "LOOK_SECONDS", -1.0)

    def made(name: str) -> Made:
        (tmp_path / name).mkdir()
        return make_certificate(tmp_path / name)

    return made


def spoken(
    served: ssl.SSLContext, context: ssl.SSLContext, session: ssl.SSLSession | None = None
) -> ssl.SSLObject:
    """Return a client's end of a connection on which an answer came; SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(to_client, to_server, session=session)
    server = served.wrap_bio(to_server, to_client, server_side=True)
    for step in (client.do_handshake, server.do_handshake, client.do_handshake):
        try:
            step()
        except ssl.SSLWantReadError:
            continue
    server.do_handshake()
    client.do_handshake()
    server.write(b"answer")
    assert client.read() == b"answer"
    for end in (client, server, client):  # an end without a farewell would end the session, too
        try:
            end.unwrap()
        except ssl.SSLWantReadError:
            continue
    return client


def client_of(own: Made, version: ssl.TLSVersion) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(*own)
    context.maximum_version = version
    return context


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_client_whose_authority_was_removed_does_not_come_back(
    tmp_path: Path, make: Callable[[str], Made], version: ssl.TLSVersion
) -> None:
    """Who goes on with an earlier session shows no certificate, so none would be checked."""
    (shown, key), client, other = make("server"), make("client"), make("other")
    authority = tmp_path / "authority.pem"
    shutil.copy(client[0], authority)
    served = Certificates(Tls(str(shown), str(key), str(authority))).context
    context = client_of(client, version)
    session = spoken(served, context).session
    shutil.copy(client[0], tmp_path / "same.pem")
    (tmp_path / "same.pem").replace(authority)  # the files of a Kubernetes secret are all new
    again = spoken(served, context, session)
    assert again.session_reused is (version is ssl.TLSVersion.TLSv1_2)
    shutil.copy(other[0], authority)
    for earlier in (again.session, None):
        with pytest.raises(ssl.SSLError, match=r"(?i)callback|certificate"):
            spoken(served, context, earlier)
    assert spoken(served, client_of(other, version))


def test_a_file_of_authorities_that_cannot_be_used_is_named(
    tmp_path: Path, make: Callable[[str], Made], caplog: pytest.LogCaptureFixture
) -> None:
    """OpenSSL's own words name no file, and the certificate's alone would mislead."""
    (shown, key), client = make("server"), make("client")
    authority = tmp_path / "authority.pem"
    shutil.copy(client[0], authority)
    served = Certificates(Tls(str(shown), str(key), str(authority))).context
    authority.write_text("")
    assert spoken(served, client_of(client, ssl.TLSVersion.TLSv1_3))
    assert str(authority) in caplog.text
    assert "the previous TLS files stay in use" in caplog.text


def test_files_that_are_swapped_by_a_link_are_read_again(
    tmp_path: Path, make: Callable[[str], Made]
) -> None:
    """So a Kubernetes secret changes: one link leads from the old folder to the new one."""
    links, clients = tmp_path / "..data", make("client")
    (first, _), (second, _) = make("first"), make("second")
    links.symlink_to(first.parent.name)
    for name in ("certificate.pem", "key.pem"):
        (tmp_path / name).symlink_to(f"..data/{name}")
    served = Certificates(Tls(*(str(tmp_path / n) for n in ("certificate.pem", "key.pem")))).context
    context = client_of(clients, ssl.TLSVersion.TLSv1_3)

    def shown() -> bytes | None:
        return spoken(served, context).getpeercert(binary_form=True)

    before = shown()
    assert before == ssl.PEM_cert_to_DER_cert(first.read_text())
    (tmp_path / "..new").symlink_to(second.parent.name)
    (tmp_path / "..new").replace(links)
    assert shown() == ssl.PEM_cert_to_DER_cert(second.read_text())
    links.unlink()
    assert shown() == ssl.PEM_cert_to_DER_cert(second.read_text())


def diagnosis(**settings: Path) -> Check:
    return next(one for one in doctor(load(dict(settings))) if one.name == "certificate")


@pytest.mark.parametrize(
    ("begins", "ends", "level", "said"),
    [
        (-2, -1, logging.ERROR, "expired on 2"),
        (1, 2, logging.ERROR, "is not valid before 2"),
        (-77, 13, logging.WARNING, "expires on 2"),
        (-9, 1, logging.WARNING, ", in 1.0 days"),
        (-1, 1, None, ""),  # a short life, of which half is left
        (-60, 30, None, ""),
    ],
)
def test_a_certificate_that_nobody_renews_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, begins: int, ends: int, level: int, said: str
) -> None:
    """The log says so once a day, `doctor` each time; both name the file."""
    pytest.importorskip("cryptography")
    from tests.certificates import DAY, make_certificate

    certificate, key = make_certificate(tmp_path, begins=begins * DAY, ends=ends * DAY)
    served = Certificates(Tls(str(certificate), str(key)))
    served._look()
    found = [(one.levelno, one.getMessage()) for one in caplog.records]
    assert [one for one, _ in found] == ([] if level is None else [level])
    assert all(str(certificate) in text and said in text for _, text in found)
    check = diagnosis(tls_certificate=certificate)
    levels = {logging.ERROR: Level.FAIL, logging.WARNING: Level.WARN, None: Level.OK}
    assert check.level is levels[level]
    assert str(certificate) in check.message
    assert said in check.message


def test_a_renewed_certificate_is_told_anew_and_measured(
    tmp_path: Path, make: Callable[[str], Made], caplog: pytest.LogCaptureFixture
) -> None:
    from tests.certificates import DAY, make_certificate

    certificate, key = make_certificate(tmp_path, ends=-DAY / 2)
    metrics, settings = Metrics(), Tls(str(certificate), str(key))
    context = _tls_of(ServerSettings(metrics=metrics, tls=settings))["ssl_context_factory"]

    def expires() -> float:
        name = "commitlog_http_certificate_expiry_timestamp_seconds"
        return metrics.registry.get_sample_value(name) or 0.0

    assert abs(expires() - time.time() + 12 * 3600) < 600
    renewed = make("renewed")
    for new, old in zip(renewed, (certificate, key), strict=True):
        shutil.copy(new, old)
    caplog.clear()
    caplog.set_level(logging.INFO)
    assert spoken(context(None, None), client_of(renewed, ssl.TLSVersion.TLSv1_3))
    assert abs(expires() - time.time() - 24 * 3600) < 600
    assert [one.levelno for one in caplog.records] == [logging.INFO]


def test_doctor_names_a_certificate_that_no_server_can_show(
    tmp_path: Path, make: Callable[[str], Made]
) -> None:
    """A server goes on with the one before, so without this only its log tells."""
    (certificate, key), (other, _) = make("server"), make("other")
    given = {"tls_certificate": certificate, "tls_key": key}
    assert diagnosis(**given).level is Level.OK
    for wrong in ({"tls_certificate": other}, {"tls_client_ca": key}):
        check = diagnosis(**{**given, **wrong})
        assert check.level is Level.FAIL
        assert re.search(f"{next(iter(wrong))} .*cannot be used", check.message)


def test_doctor_names_a_certificate_that_it_cannot_read(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    path = tmp_path / "no.pem"
    path.write_text("rubbish")
    check = diagnosis(tls_certificate=path)
    assert check.level is Level.FAIL
    assert f"tls_certificate {path} cannot be read" in check.message
