"""One hop of a connection: a fabric.Connection whose open() is ours.

fabric's own open() accepts any host key, and its transport does not notice a cut path. This one resolves nothing
itself: it takes Settings, checks the host key before log-in, and keeps asking the server for a sign of life.
"""

from __future__ import annotations

import itertools
import logging
import random
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

import fabric
import paramiko
from paramiko.packet import Packetizer
from paramiko.ssh_exception import IncompatiblePeer

from orchestrator.errors import HostKeyError, HostUnreachable
from orchestrator.model import Timeouts
from orchestrator.ssh import hostkeys
from orchestrator.ssh.keyagent import SIGN_LIMIT
from orchestrator.ssh.keyfiles import CERTIFICATE
from orchestrator.ssh.login import log_in
from orchestrator.ssh.resolve import Settings
from orchestrator.ssh.start import Begun, begin, hop_name
from orchestrator.ssh.wires import HopWire, ProxyWire, Wire

_PREFERRED = {
    "kex": ("curve25519-sha256@libssh.org",),
    "ciphers": ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com"),
    "macs": ("hmac-sha2-256-etm@openssh.com",),
}
"""cheap in Python and safe; the rest of what the settings allow comes after them"""

RESTING = 30.0
"""seconds between two questions for a sign of life while nothing runs on a connection"""

logging.getLogger("paramiko").addHandler(logging.NullHandler())
logging.getLogger("paramiko").propagate = False


class SshStartRefused(Exception):
    """sshd closed the connection before the handshake was done: MaxStartups, or a blocked address."""


class LongLivedPacketizer(Packetizer):
    """New keys after 32 GiB instead of 512 MiB; RFC 4344 allows 64 GiB for AES.

    paramiko can lock up when a channel closes while keys are exchanged, so it must be rare.
    """

    REKEY_BYTES = 2**35


class Link(fabric.Connection):  # type: ignore[misc]
    """A checked connection to one host; `gateway` is the Link to the hop before it."""

    settings: Settings
    where: str
    timeouts: Timeouts
    begun: Begun | None
    wire: Wire | HopWire | None
    beating: threading.Event
    stirred: threading.Event
    resting: bool
    asking: threading.Thread

    def __init__(
        self,
        settings: Settings,
        where: str,
        timeouts: Timeouts,
        gateway: Link | None = None,
        begun: Begun | None = None,
    ) -> None:
        nothing_read = fabric.Config(lazy=True, ssh_config=paramiko.SSHConfig())
        super().__init__(
            settings.hostname, user=settings.user, port=settings.port, gateway=gateway, config=nothing_read
        )
        beating = threading.Event()
        asking = threading.Thread(target=_keep_asking, args=(self, beating), daemon=True, name=f"keepalive {where}")
        own = {"settings": settings, "where": where, "timeouts": timeouts, "wire": None, "begun": begun}
        kept = {"beating": beating, "stirred": threading.Event(), "resting": False, "asking": asking}
        for name, value in {**own, **kept}.items():
            object.__setattr__(self, name, value)  # fabric takes a new attribute for one of its own settings

    def open(self) -> None:
        """Connect, check the host key, log in. Tries again, a little later each time, when sshd drops a start.

        Raises HostUnreachable, AuthenticationFailed or HostKeyError.
        """
        if self.is_connected:
            return
        until = time.monotonic() + self.timeouts.connect
        for tries in itertools.count(1):
            try:
                return self._open_once()
            except SshStartRefused as refused:
                delay = random.uniform(0.1, 0.3) * 2 ** min(tries, 5)
                if time.monotonic() + delay > until:
                    raise HostUnreachable(
                        f"{self.where}: sshd closed the connection {tries} times before the handshake was done"
                        f" (MaxStartups, or this address is blocked): {refused}",
                        hint=self.settings.command,
                    ) from None
                time.sleep(delay)

    def _open_once(self) -> None:
        begun, self.begun = self.begun or self._begin(), None
        known, self.wire = begun.known, begun.wire
        transport = paramiko.Transport(self.wire, packetizer_class=LongLivedPacketizer)  # type: ignore[arg-type]
        self.transport = transport
        limit = self.timeouts.connect
        transport.banner_timeout = transport.handshake_timeout = transport.channel_timeout = limit
        transport.auth_timeout = max(limit, SIGN_LIMIT)
        try:
            _set_algorithms(transport, self.settings, known)
            self._shake_hands(transport)
            self._check_host_key(transport, known)
            log_in(transport, self.settings, self.where)
        except BaseException:
            self._drop()
            raise

    def _begin(self) -> Begun:
        if self.gateway is None:
            return begin(self.settings, self.where, self.timeouts)
        known = hostkeys.known_keys(self.settings)
        self.gateway.open()
        return Begun(known=known, wire=self._reach_through(self.gateway))

    def _reach_through(self, gateway: Link) -> HopWire:
        settings, limit = self.settings, self.timeouts.connect
        place = f"{settings.hostname} port {settings.port}"
        try:
            channel = gateway.transport.open_channel(
                "direct-tcpip", (settings.hostname, settings.port), ("127.0.0.1", 0), timeout=limit
            )
        except paramiko.ChannelException as error:
            if error.code == 1:
                text = f"the jump host {gateway.settings.target} forbids forwarding (AllowTcpForwarding, PermitOpen)"
            else:
                text = f"the jump host {gateway.settings.target} cannot connect to {place} ({error.text})"
            raise HostUnreachable(f"{self.where}: {text}", hint=settings.command) from None
        except (paramiko.SSHException, EOFError, OSError):
            lost = "does not answer" if gateway.is_connected else "is cut off: the jump host was lost"
            raise HostUnreachable(
                f"{self.where}: {place} behind {gateway.settings.target} {lost} within {limit:.0f} s",
                hint=settings.command,
            ) from None
        return HopWire(channel)

    def _shake_hands(self, transport: paramiko.Transport) -> None:
        started = time.monotonic()
        try:
            transport.start_client()
            return
        except IncompatiblePeer as error:
            text = f"no SSH handshake: {error}"
        except (paramiko.SSHException, EOFError, OSError) as error:
            if time.monotonic() - started >= self.timeouts.connect - 0.2:
                text = f"took the connection, but gives no SSH greeting within {self.timeouts.connect:.0f} s"
            elif isinstance(self.wire, ProxyWire) and self.wire.complaint():
                text = f"the ProxyCommand failed: {self.wire.complaint()}"
            elif "protocol version" in str(error):
                text = f"what answers there is no SSH server: {str(error)[:200]}"
            else:
                raise SshStartRefused(str(error) or "closed") from None
        raise HostUnreachable(f"{self.where}: {text}", hint=self.settings.command)

    def _check_host_key(self, transport: paramiko.Transport, known: tuple[hostkeys.KnownKey, ...]) -> None:
        key = transport.get_remote_server_key()
        shown = hostkeys.HostKey(type=key.get_name(), blob=key.asbytes())
        if str(transport.host_key_type).endswith(CERTIFICATE):  # asked for only after every plain type
            raise HostKeyError(f"{self.where}: shows only a certificate, which needs `transport: openssh`")
        hostkeys.check(self.settings, known, shown, self.where)
        smallest = int(self.settings.one("requiredrsasize", "1024"))
        if shown.type == "ssh-rsa" and key.get_bits() < smallest:
            raise HostKeyError(
                f"{self.where}: the RSA host key has {key.get_bits()} bits, RequiredRSASize is {smallest}",
                hint=self.settings.command,
            )

    def watch(self) -> None:
        """From now on a silent server counts as lost, and is asked for a sign of life where it says nothing."""
        if self.wire is not None:
            self.wire.pulse.heard()
            self.wire.pulse.limit = self.timeouts.dead
            self._be_patient()
            self.asking.start()

    def _be_patient(self) -> None:
        if self.wire is not None:
            self.wire.be_patient()
        if self.gateway is not None:
            self.gateway._be_patient()

    def rest(self) -> None:
        """Nothing runs here now: ask for signs of life more seldom, and wait for them longer."""
        if self.wire is not None and not self.resting:
            self.wire.pulse.limit = self.timeouts.dead + RESTING
            object.__setattr__(self, "resting", True)

    def stir(self) -> None:
        """Something is about to run here."""
        if self.wire is not None and self.resting:
            self.wire.pulse.heard()  # what rested too long is given its time anew
            self.wire.pulse.limit = self.timeouts.dead
            object.__setattr__(self, "resting", False)
            self.stirred.set()

    def silence(self) -> float:
        """Seconds since the server was last heard, or asked anew."""
        return self.wire.pulse.silence() if self.wire is not None else 0.0

    def close(self) -> None:
        """Close this hop and those before it; no thread or process stays behind."""
        super().close()
        self._drop()
        if self.gateway:
            self.gateway.close()

    def _drop(self) -> None:
        self.beating.set()
        self.stirred.set()
        transport, wire = self.transport, self.wire
        if wire is not None:
            with suppress(OSError):  # cut off already
                wire.shutdown(socket.SHUT_RDWR)  # wakes the reader, which looks up only every 0.1 s by itself
        if transport is not None:
            transport.close()
            transport.packetizer.complete_handshake()  # ends its timer, which would outlive a failed start
        if isinstance(wire, ProxyWire):
            wire.end()
        elif wire is not None:
            wire.close()
        for thread in (transport, self.asking):
            if thread is not None and thread.is_alive() and thread is not threading.current_thread():
                thread.join(2)


def open_link(settings: Settings, where: str, timeouts: Timeouts, begun: Begun) -> Link:
    """A watched connection to the host, through all its hops; the first of them has `begun`.

    Raises HostUnreachable, AuthenticationFailed or HostKeyError.
    """
    gateway: Link | None = None
    for hop in settings.hops:
        gateway = Link(hop, hop_name(where, hop), timeouts, gateway, None if gateway else begun)
    link = Link(settings, where, timeouts, gateway, None if gateway else begun)
    try:
        link.open()
    except BaseException:
        link.close()
        raise
    link.watch()
    return link


def _keep_asking(link: Link, over: threading.Event) -> None:
    """Ask whenever nothing was heard for one heartbeat. The answer costs the server nothing but sshd itself.

    This thread may wait for an answer or a full socket; the transport's reader ends both when the wire is dead.
    """
    wire, transport = link.wire, link.transport
    while wire and transport.is_active() and not over.is_set():
        beat = RESTING if link.resting else link.timeouts.heartbeat
        if link.stirred.wait(max(0.05, beat - min(wire.pulse.silence(), beat))):
            link.stirred.clear()
        elif wire.pulse.silence() >= beat:
            try:
                transport.global_request("keepalive@openssh.com", wait=True)
            except (paramiko.SSHException, EOFError, OSError):
                return


def _set_algorithms(transport: paramiko.Transport, settings: Settings, known: tuple[hostkeys.KnownKey, ...]) -> None:
    """What the settings allow and paramiko has, the cheap ones first; known host key types before others.

    Raises HostUnreachable where that leaves nothing.
    """
    options = transport.get_security_options()
    options.key_types = hostkeys.signature_algorithms(settings, known, options.key_types)
    options.kex = usable("kex", settings, options.kex)
    options.ciphers = usable("ciphers", settings, options.ciphers)
    options.digests = usable("macs", settings, options.digests)
    for kind, names in (("key types", options.key_types), ("kex", options.kex), ("ciphers", options.ciphers)):
        if not names:
            raise HostUnreachable(f"{settings.target}: the ssh configuration allows no {kind} that paramiko has")


def usable(kind: str, settings: Settings, possible: Sequence[str]) -> tuple[str, ...]:
    """Names of `kind` that both the settings and paramiko know, preferred ones first."""
    option = {"kex": "kexalgorithms"}.get(kind, kind)
    allowed = settings.names(option)
    if "curve25519-sha256" in allowed:  # paramiko knows it by its older name only
        allowed = (*allowed, "curve25519-sha256@libssh.org")
    names = [name for name in dict.fromkeys(allowed or possible) if name in possible]
    first = [name for name in _PREFERRED[kind] if name in names]
    return (*first, *(name for name in names if name not in first))
