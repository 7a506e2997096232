"""A real browser for tests: the system's Chromium, driven over the pipe of its DevTools protocol, without packages."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
import time
from itertools import count
from pathlib import Path
from typing import Any

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), "")
MISSING = "no Chromium found: the tests of the explorer are skipped (Debian: apt-get install chromium)"
KEYS = {"ArrowUp": 38, "ArrowDown": 40, "ArrowLeft": 37, "ArrowRight": 39, "Tab": 9, "Enter": 13, " ": 32}


class Browser:
    """One browser with one page; every method waits for its effect.

    Args:
        folder: where its profile and its downloads go.
    """

    def __init__(self, folder: Path) -> None:
        (there, write), (read, back) = os.pipe(), os.pipe()
        self.downloads = folder / "downloads"
        options = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-extensions")
        options += ("--disable-dev-shm-usage", "--disable-background-networking", "--remote-debugging-pipe")

        def wire() -> None:
            ends = [fcntl.fcntl(one, fcntl.F_DUPFD, 10) for one in (there, back)]  # neither is 3 or 4 already
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        command = [PROGRAM, *options, f"--user-data-dir={folder / 'profile'}", "about:blank"]
        self._process = subprocess.Popen(
            command, preexec_fn=wire, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(there)
        os.close(back)
        self._out, self._in = os.fdopen(write, "wb", buffering=0), os.fdopen(read, "rb", buffering=0)
        self._numbers, self._rest, self._session = count(1), b"", None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(self.downloads))
        self.size(1400, 1000)

    def close(self) -> None:
        self._out.close()  # the browser ends with its pipe
        self._process.wait(30)
        self._in.close()

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if self._session and not method.startswith(("Target.", "Browser.")):
            message["sessionId"] = self._session
        self._out.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._message()
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            data = self._in.read(1 << 16)
            assert data, "the browser ended"
            self._rest += data
        one, _, self._rest = self._rest.partition(b"\0")
        return json.loads(one)

    def size(self, width: int, height: int, *, dark: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def open(self, url: str) -> None:
        self.call("Page.navigate", url="about:blank")  # an address that differs only behind # would not load anew
        self.events.clear()
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def js(self, code: str) -> Any:
        """The value of an expression on the page; promises are awaited."""
        found = self.call("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"].get("exception", found)
        return found["result"].get("value")

    def until(self, code: str, seconds: float = 20.0) -> Any:
        """The value of an expression once it is true."""
        end = time.monotonic() + seconds
        while True:
            try:
                if (value := self.js(code)) not in (None, False, 0, ""):  # an element is {}
                    return value
            except AssertionError as error:  # the page is being replaced
                if "context" not in str(error):
                    raise
            assert time.monotonic() < end, f"not within {seconds} s: {code}\n{self.text()[:800]}"
            time.sleep(0.02)

    def text(self, selector: str = "body") -> str:
        return self.js(f"document.querySelector({selector!r}).innerText")

    def middle(self, selector: str) -> tuple[float, float]:
        box = self.js(
            f"(() => {{ const one = document.querySelector({selector!r}); one.scrollIntoView({{block: 'center'}});"
            "const b = one.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        return box[0], box[1]

    def mouse(self, kind: str, x: float, y: float) -> None:
        down = {"button": "left", "buttons": 1, "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **down)

    def click(self, selector: str) -> None:
        x, y = self.middle(selector)
        self.mouse("mousePressed", x, y)
        self.mouse("mouseReleased", x, y)

    def drag(self, selector: str, dx: float, dy: float, steps: int = 5) -> None:
        x, y = self.middle(selector)
        self.mouse("mousePressed", x, y)
        for n in range(1, steps + 1):
            self.mouse("mouseMoved", x + dx * n / steps, y + dy * n / steps)
        self.mouse("mouseReleased", x + dx, y + dy)

    def key(self, name: str, times: int = 1) -> None:
        text = {"Enter": "\r", " ": " "}.get(name, "")
        for _ in range(times):
            for kind in ("keyDown", "keyUp"):
                given = {"key": name, "code": "Space" if name == " " else name, "windowsVirtualKeyCode": KEYS[name]}
                self.call("Input.dispatchKeyEvent", type=kind, **given, **({"text": text} if text else {}))

    def put(self, selector: str, value: object) -> None:
        """Give a field or a list a value, as if it had been typed or chosen."""
        self.js(
            f"(() => {{ const one = document.querySelector({selector!r}); one.value = {json.dumps(value)};"
            "one.dispatchEvent(new Event('change')); })()"
        )

    def choose(self, selector: str, file: Path) -> None:
        """Choose a file in a file input."""
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(file)])

    def picture(self, path: Path, *, full: bool = False) -> None:
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=full)["data"]
        path.write_bytes(base64.b64decode(data))

    def problems(self) -> list[str]:
        """Errors that the page threw or logged."""
        self.js("0")
        found = []
        for event in self.events:
            params = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                found.append(str(params["exceptionDetails"].get("exception", {}).get("description", params)))
            if event.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
                found.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        return found
