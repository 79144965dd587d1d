"""What ssh says when it can't connect becomes one sentence, with what to type next. The texts are OpenSSH 9.2's."""

import pytest

from orchestrator.errors import AuthenticationFailed, ConfigError, ConnectionLost, HostKeyError, HostUnreachable
from orchestrator.ssh import failures

ASKED = failures.Asked(name="ct200", typed="ssh ct200", seconds=10)

CASES = [
    ("ssh: connect to host 10.1.2.3 port 23: Connection refused", "ct200: 10.1.2.3 refuses connections on port 23"),
    ("ssh: connect to host 10.1.2.3 port 22: Connection timed out", "ct200: 10.1.2.3 did not answer within 10 s"),
    ("ssh: connect to host 10.1.2.3 port 22: Operation timed out", "ct200: 10.1.2.3 did not answer within 10 s"),
    ("ssh: connect to host 10.1.2.3 port 22: No route to host", "ct200: there is no route to 10.1.2.3"),
    ("ssh: connect to host 10.1.2.3 port 22: Network is unreachable", "ct200: this machine has no network"),
    (
        "ssh: Could not resolve hostname ct200: Name or service not known",
        "ct200: there is no address for the name ct200",
    ),
    ("Unable to negotiate with 1.2.3.4 port 22: no matching cipher found. Their offer: x", "no matching cipher found"),
    ("Connection timed out during banner exchange", "ct200: it is silent"),
    (
        "channel 0: open failed: connect failed: No route to host\nstdio forwarding failed",
        "the jump host could not reach",
    ),
]


@pytest.mark.parametrize(("said", "sentence"), CASES)
def test_each_failure_of_the_network_has_its_sentence(said, sentence):
    error = failures.could_not_connect(ASKED, f"debug1: something\n{said}\r\n")
    assert type(error) is HostUnreachable
    assert sentence in error.message
    assert error.hint == "try: ssh ct200"
    assert error.host == "ct200"


def test_a_refused_log_in_names_what_the_server_takes():
    error = failures.could_not_connect(ASKED, "root@10.1.2.3: Permission denied (publickey,password).\r\n")
    assert isinstance(error, AuthenticationFailed)
    assert "publickey,password" in error.message
    assert "ssh ct200" in error.hint


def test_too_many_keys_say_how_to_name_the_right_one():
    said = "Received disconnect from 10.1.2.3 port 22:2: Too many authentication failures\nDisconnected from 10.1.2.3"
    error = failures.could_not_connect(ASKED, said)
    assert isinstance(error, AuthenticationFailed)
    assert "IdentitiesOnly" in error.hint


def test_a_wrong_configuration_is_the_users_error():
    file = "/home/u/.ssh/config"
    said = f"{file}: line 2: Bad configuration option: foo\n{file}: terminating, 1 bad configuration options"
    error = failures.could_not_connect(ASKED, said)
    assert isinstance(error, ConfigError)
    assert "line 2" in error.message


def test_a_revoked_host_key_stops():
    said = "@ WARNING: REVOKED HOST KEY DETECTED! @\nThe key for x is marked as revoked.\nHost key verification failed."
    error = failures.could_not_connect(ASKED, said)
    assert isinstance(error, HostKeyError)
    assert "revoked" in error.message


def test_only_a_dropped_start_is_worth_another_try():
    dropped = "kex_exchange_identification: read: Connection reset by peer\r\nConnection reset by 10.1.2.3 port 22\r\n"
    assert failures.start_was_dropped(dropped)
    assert not failures.start_was_dropped("u@h: Permission denied (publickey).\nConnection closed by 10.1.2.3 port 22")
    assert not failures.start_was_dropped("ssh: connect to host x port 22: Connection refused")


def test_a_transport_that_went_away_is_never_a_result():
    for said in ("Timeout, server ct200 not responding.", "client_loop: send disconnect: Broken pipe", ""):
        error = failures.ended_with_255(ASKED, f"the command's own words\n{said}")
        assert isinstance(error, ConnectionLost)
        assert "result unknown" in error.message


def test_words_from_a_host_are_shown_printable_and_short():
    error = failures.could_not_connect(ASKED, "\x1b[31mevil\x07" + "x" * 5000)
    assert error.message.isprintable()
    assert len(error.message) < 300
