"""The page in a real browser: headless Chromium, driven by Selenium.

Neither is part of the environment for development: `pip install '.[browser]'`, and the packages
`chromium` and `chromium-driver` of Debian. Without them these tests are skipped.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from driving import KEY, OpenTab, Tab

from serving import Server, serving


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests of this folder."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def server(glass_bundle: Path) -> Iterator[Server]:
    """Give a server of a small English model, context 128."""
    with serving(glass_bundle) as running:
        yield running


@pytest.fixture(scope="session")
def proxied(server: Server) -> Iterator[Server]:
    """Give the same server below `/llm/` of a proxy, which keeps `/metrics` to itself."""

    class Proxy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/llm/metrics":
                self.send_error(403)
                return
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            path = self.path.removeprefix("/llm")
            kind = {"content-type": self.headers.get("content-type", "text/plain")}
            answer = server.client.request(self.command, path, content=body, headers=kind)
            self.send_response(answer.status_code)
            for name in ("content-type", "content-security-policy", "x-ortolan-seed"):
                self.send_header(name, answer.headers.get(name, ""))
            self.end_headers()
            self.wfile.write(answer.content)

        do_POST = do_GET

        def log_message(self, format: str, *arguments: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{proxy.server_port}/llm"
        front = Server(server.process, url, server.log)
        yield front
        front.client.close()
        proxy.shutdown()


@pytest.fixture(scope="session")
def pair(glass_bundle: Path, tiny_bundle: Path) -> Iterator[Server]:
    """Give a server of two models, of which the second talks nonsense."""
    with serving(glass_bundle, tiny_bundle) as running:
        yield running


@pytest.fixture(scope="session")
def talker(babbling_bundle: Path) -> Iterator[Server]:
    """Give a server behind a key whose model never ends by itself."""
    headers = {"authorization": f"Bearer {KEY}"}
    with serving(babbling_bundle, headers=headers, api_key=KEY) as running:
        yield running


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """Give a headless Chromium for all tests."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    binary = shutil.which("chromium") or shutil.which("chromium-browser")
    driver = shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("chromium and chromedriver are not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    # A container has little shared memory, and root cannot be sandboxed there.
    for argument in ("--headless=new", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield browser
    browser.quit()


@pytest.fixture
def open_tab(chromium: Any) -> Iterator[OpenTab]:
    """Give a function that opens a page in a tab of its own, of a size and a colour scheme.

    At its end no script may have failed and no policy been broken, unless the test took the log.
    """
    opened: list[Tab] = []

    def open_(
        server: Server, *, width: int = 1280, height: int = 900, scheme: str = "light"
    ) -> Tab:
        chromium.switch_to.new_window("tab")
        tab = Tab(chromium, server, width=width, height=height, scheme=scheme)
        opened.append(tab)
        return tab

    yield open_
    complaints = [complaint for tab in opened for complaint in tab.complaints()]
    for _ in opened:
        chromium.close()
        chromium.switch_to.window(chromium.window_handles[0])
    assert complaints == []
