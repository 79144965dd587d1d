"""The test hosts themselves: what every other test on real hosts relies on."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.hosts


def test_every_host_is_reachable_and_sees_the_checkout_and_this_python(testhosts):
    for host in ("laptop", "jump", "train", "eval", "oldpy"):
        said = subprocess.run(
            ["ssh", "-F", testhosts.config, host, f"hostname; ls -d {sys.executable} {__file__}"],
            capture_output=True,
            text=True,
        )
        assert said.stdout.split() == [host, sys.executable, __file__], said.stderr


def test_a_host_has_its_own_home_and_keeps_it_over_a_reboot(testhosts):
    testhosts.sh("oldpy", "echo kept > /root/file")
    assert testhosts.sh("train", "ls /root/file", check=False).returncode != 0
    testhosts.reboot("oldpy")
    assert testhosts.sh("oldpy", "cat /root/file").stdout == "kept\n"
