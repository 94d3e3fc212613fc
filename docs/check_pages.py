"""Look at every built page in a browser: python docs/check_pages.py [docs/_build/html]

Opens each page in headless Chromium, as wide as a desktop and as a phone, and finds no
console error, no image that is missing, no TeX left raw, nothing fetched from a
network, no page that scrolls sideways. Needs chromium and chromedriver on the path
(Debian: apt-get install chromium chromium-driver), and nothing else.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SIZES = {"desktop": (1400, 900), "phone": (375, 800)}

OPTIONS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--allow-file-access-from-files",
]

# Runs in the page; gives a list of sentences, one a fault.
FAULTS = r"""
const faults = [];
const page = document.documentElement;
if (page.scrollWidth > page.clientWidth)
  faults.push(`scrolls sideways: ${page.scrollWidth} > ${page.clientWidth}`);
for (const image of document.images)
  if (!image.complete || !image.naturalWidth) faults.push(`no image ${image.src}`);
for (const formula of document.querySelectorAll("math"))
  if (!formula.getBoundingClientRect().width) faults.push("an empty formula");
const text = document.querySelector("article").innerText;
const code = [...document.querySelectorAll("article pre, article code")];
const prose = code.reduce((left, part) => left.replace(part.innerText, ""), text);
const tex = prose.match(
  /\\(frac|cdot|text|left|sum|sqrt|begin)\b|\$\$|\$[^$\n]{1,60}\$/
);
if (tex) faults.push(`raw TeX: ${tex[0]}`);
for (const entry of performance.getEntriesByType("resource"))
  if (!entry.name.startsWith("file:") && !entry.name.startsWith("data:"))
    faults.push(`fetched ${entry.name}`);
return faults;
"""


class Browser:
    """A few commands of the WebDriver protocol, which is JSON over HTTP."""

    def __init__(self, port: int, profile: str) -> None:
        self._url = f"http://127.0.0.1:{port}"
        options = {
            "args": [*OPTIONS, f"--user-data-dir={profile}"],
            "binary": shutil.which("chromium"),
        }
        wanted = {
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        answer = self._post("/session", capabilities={"alwaysMatch": wanted})
        self._url += f"/session/{answer['sessionId']}"

    def _post(self, path: str, **body: Any) -> Any:
        request = urllib.request.Request(
            self._url + path,
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as reply:
            return json.load(reply)["value"]

    def resize(self, width: int, height: int) -> None:
        # A window has a smallest width; the emulated screen of a phone has not.
        metrics = {
            "width": width,
            "height": height,
            "deviceScaleFactor": 1,
            "mobile": width < 600,
        }
        self._devtools("Emulation.setDeviceMetricsOverride", metrics)

    def _devtools(self, command: str, parameters: dict[str, Any]) -> Any:
        return self._post("/goog/cdp/execute", cmd=command, params=parameters)

    def open(self, page: Path) -> None:
        self._post("/url", url=page.as_uri())

    def faults(self) -> list[str]:
        found: list[str] = self._post("/execute/sync", script=FAULTS, args=[])
        log = self._post("/se/log", type="browser")
        return found + [entry["message"] for entry in log if entry["level"] == "SEVERE"]

    def close(self) -> None:
        request = urllib.request.Request(self._url, method="DELETE")
        urllib.request.urlopen(request, timeout=30).close()


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """A headless Chromium with a profile of its own, gone afterwards."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        driver = subprocess.Popen(
            ["chromedriver", f"--port={port}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            _wait_for(port)
            opened = Browser(port, profile)
            try:
                yield opened
            finally:
                opened.close()
        finally:
            driver.terminate()
            driver.wait(timeout=30)


def _wait_for(port: int) -> None:
    for _ in range(100):
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", port)),
        ):
            return
        time.sleep(0.1)
    raise TimeoutError("chromedriver did not start")


def main(folder: Path) -> int:
    pages = sorted(folder.rglob("*.html"))
    if not pages:
        print(f"There are no pages in {folder}: build the book first.")
        return 1
    faults = 0
    with browser() as chromium:
        for size, (width, height) in SIZES.items():
            chromium.resize(width, height)
            for page in pages:
                chromium.open(page)
                for fault in chromium.faults():
                    faults += 1
                    print(f"{page.relative_to(folder)} ({size}): {fault}")
    print(f"{len(pages)} pages in {len(SIZES)} widths: {faults} faults.")
    return 1 if faults else 0


if __name__ == "__main__":
    default = Path(__file__).parent / "_build" / "html"
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else default))
