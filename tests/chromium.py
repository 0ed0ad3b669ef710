"""A headless Chromium, driven over a socket by its DevTools protocol, so no package is needed."""

import base64
import contextlib
import json
import shutil
import socket
import subprocess
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def find():
    """Return the path of an installed Chromium or Chrome, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Page:
    """One page in a browser that the object starts; `close` ends the browser."""

    def __init__(self, profile):
        ours, theirs = socket.socketpair()
        number = theirs.fileno()
        # Chromium reads commands from descriptor 3 and replies on 4; each message ends with NUL.
        self.process = subprocess.Popen(
            [
                *("bash", "-c", f'exec "$0" "$@" 3<&{number} 4>&{number}', find()),
                *("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"),
                *("--hide-scrollbars", f"--user-data-dir={profile}", "about:blank"),
            ],
            pass_fds=[number],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        theirs.close()
        ours.settimeout(60)
        self.socket, self.buffer = ours, b""
        self.count, self.session, self.events = 0, {}, []
        (target,) = self._targets("page")
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self.session = {"sessionId": attached["sessionId"]}
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def close(self):
        self.socket.close()
        self.process.kill()
        self.process.wait()

    def send(self, method, **params):
        """Send a command and return its result; events that arrive meanwhile go to `events`."""
        self.count += 1
        message = {"id": self.count, "method": method, "params": params, **self.session}
        self.socket.sendall(json.dumps(message).encode() + b"\0")
        while (reply := self._receive()).get("id") != self.count:
            self.events.append(reply)
        assert "error" not in reply, reply
        return reply["result"]

    def _receive(self):
        while b"\0" not in self.buffer:
            received = self.socket.recv(1 << 20)
            assert received, "the browser has ended"
            self.buffer += received
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def open(self, place):
        """Open a file, given as a Path, or an address, and wait until it is loaded."""
        self.events.clear()
        self.send("Page.navigate", url=place if isinstance(place, str) else place.as_uri())
        until = time.monotonic() + 60
        while self("document.readyState") != "complete" or self("location.href") == "about:blank":
            assert time.monotonic() < until, "the page does not load"

    def __call__(self, expression):
        """Evaluate a JavaScript expression and return its value; a promise is awaited."""
        how = {"returnByValue": True, "awaitPromise": True}
        result = self.send("Runtime.evaluate", expression=expression, **how)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    @contextlib.contextmanager
    def inside(self):
        """Evaluate in the page's only frame, which is sandboxed, so that it has its own session."""
        until = time.monotonic() + 60
        while not (frames := self._targets("iframe")):
            assert time.monotonic() < until, "no frame"
        attached = self.send("Target.attachToTarget", targetId=frames[0], flatten=True)
        outside, self.session = self.session, {"sessionId": attached["sessionId"]}
        try:
            yield self
        finally:
            self.session = outside

    def _targets(self, kind):
        targets = self.send("Target.getTargets")["targetInfos"]
        return [each["targetId"] for each in targets if each["type"] == kind]

    def wait(self, expression):
        """Wait until a JavaScript expression is true."""
        until = time.monotonic() + 60
        while not self(f"Boolean({expression})"):
            assert time.monotonic() < until, f"never true: {expression}"
            time.sleep(0.01)

    def write(self, text):
        """Type text where the focus is."""
        self.send("Input.insertText", text=text)

    def press(self, *keys, control=False, shift=False):
        codes = {"Tab": 9, "Escape": 27, " ": 32, "Enter": 13, "End": 35, "Home": 36}
        codes |= {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        for key in keys:
            text = {"Enter": "\r", " ": " "}.get(key, "")
            press = {"key": key, "windowsVirtualKeyCode": codes[key], "text": text}
            press["modifiers"] = 2 * control + 8 * shift
            self.send("Input.dispatchKeyEvent", type="keyDown", **press)
            self.send("Input.dispatchKeyEvent", type="keyUp", **press | {"text": ""})

    def point(self, selector):
        """Move the mouse to the middle of an element."""
        self.send("Input.dispatchMouseEvent", type="mouseMoved", **self._middle(selector))

    def click(self, selector):
        button = {"button": "left", "clickCount": 1, **self._middle(selector)}
        self.send("Input.dispatchMouseEvent", type="mousePressed", **button)
        self.send("Input.dispatchMouseEvent", type="mouseReleased", **button)

    def _middle(self, selector):
        element = f"document.querySelector({json.dumps(selector)})"
        self(f"{element}.scrollIntoView({{block: 'nearest', behavior: 'instant'}})")
        box = self(f"{element}.getBoundingClientRect().toJSON()")
        return {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}

    def scheme(self, name):
        feature = {"name": "prefers-color-scheme", "value": name}
        self.send("Emulation.setEmulatedMedia", features=[feature])

    def size(self, width, height):
        screen = {"deviceScaleFactor": 1, "mobile": False}
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, **screen)
        self("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def screenshot(self):
        """Return a screenshot, as the bytes of a PNG file."""
        return base64.b64decode(self.send("Page.captureScreenshot")["data"])
