"""A headless Chromium, driven over a pipe by its own DevTools protocol: no server, no port, no library.

Messages are JSON, each ended by a NUL: to the browser on its descriptor 3, from it on 4.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions"),
    *("--disable-dev-shm-usage", "--remote-debugging-pipe", "--no-startup-window"),
)
PATIENCE = 60.0


def where() -> str | None:
    """The browser on this machine; None where there is none."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Chromium:
    """One browser with one page."""

    def __init__(self, profile: Path) -> None:
        binary = where()
        assert binary is not None
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        command = f'exec "$@" 3<&{to_read} 4>&{to_write}'
        words = ["bash", "-c", command, "bash", binary, *FLAGS, f"--user-data-dir={profile}"]
        self._process = subprocess.Popen(
            words,
            pass_fds=(to_read, to_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._rest = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        """End the browser that this started."""
        os.close(self._write)
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its answer; what the browser tells meanwhile goes to `events`."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next(PATIENCE)
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                found = answer["result"]
                assert isinstance(found, dict)
                return found
            self.events.append(answer)

    def _next(self, patience: float) -> dict[str, Any]:
        deadline = time.monotonic() + patience
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "the browser does not answer"
            data = os.read(self._read, 1 << 20)
            assert data, "the browser has gone"
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        found = json.loads(message)
        assert isinstance(found, dict)
        return found

    # -- the page -------------------------------------------------------------------------------------------------

    def open(self, file: Path) -> None:
        """Load a file and wait for its load event."""
        self.events.clear()
        self.call("Page.navigate", url=file.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next(PATIENCE))

    def evaluate(self, expression: str) -> Any:
        """The JSON value of a JavaScript expression in the page. The page's own policy does not bind it."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def show(self, width: int, height: int, scheme: str = "light", *, phone: bool = False) -> None:
        """The size of the window, and whether the system is light or dark."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def box(self, selector: str) -> Mapping[str, float]:
        """Where an element that is shown stands in the window, after scrolling to it."""
        script = f"""(() => {{
          const all = [...document.querySelectorAll({json.dumps(selector)})];
          const found = all.find((one) => one.getClientRects().length);
          found.scrollIntoView({{block: "center"}});
          const box = found.getBoundingClientRect();
          return {{x: box.x, y: box.y, width: box.width, height: box.height}};
        }})()"""
        found = self.evaluate(script)
        assert isinstance(found, dict)
        return found

    def mouse(self, kind: str, x: float, y: float) -> None:
        """Move the pointer, or press and release it."""
        if kind == "move":
            self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
            return
        for step in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=step, x=x, y=y, button="left", clickCount=1)

    def click(self, selector: str, across: float = 0.5) -> None:
        """Click into an element, so far across its width."""
        box = self.box(selector)
        self.mouse("click", box["x"] + box["width"] * across, box["y"] + box["height"] / 2)

    def hover(self, selector: str, across: float = 0.5) -> None:
        """Move the pointer into an element."""
        box = self.box(selector)
        self.mouse("move", box["x"] + box["width"] * across, box["y"] + box["height"] / 2)

    def key(self, name: str, code: int) -> None:
        """Press a key, such as Tab (9) or ArrowLeft (37)."""
        for step in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=step, key=name, code=name, windowsVirtualKeyCode=code)

    def picture(self, file: Path, *, whole: bool = True) -> Path:
        """A screenshot: of the whole page, or of the window."""
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        file.write_bytes(base64.b64decode(data))
        return file

    def requests(self) -> list[str]:
        """URLs that the page asked for since it was opened."""
        sent = [event for event in self.events if event.get("method") == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]

    def complaints(self) -> list[str]:
        """What the browser has to say about the page: errors, violations of its policy."""
        found = []
        for event in self.events:
            if event.get("method") == "Runtime.exceptionThrown":
                found.append(str(event["params"]["exceptionDetails"]))
            if event.get("method") == "Log.entryAdded" and event["params"]["entry"]["level"] in ("error", "warning"):
                found.append(str(event["params"]["entry"]["text"]))
        return found
