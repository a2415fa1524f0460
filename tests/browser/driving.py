"""One tab of the browser: what a person does there, and what there is to see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from serving import Server, wait_until

KEY = "sk-browser"  # of the server that wants one

_WAIT_S = 20.0


class Tab:
    """The page of a server, loaded in a tab."""

    def __init__(
        self, browser: Any, server: Server, *, width: int, height: int, scheme: str
    ) -> None:
        self.browser = browser
        self.server = server
        self._expected: list[str] = []
        media = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.get_log("browser")  # what other tabs left
        browser.get(f"{server.url}/")

    def run(self, script: str, *arguments: Any) -> Any:
        """Return what a script returns; it may await."""
        body = f"return (async () => {{ {script} }})()"
        return self.browser.execute_script(body, *arguments)

    def all(self, selector: str) -> list[Any]:
        """Return the elements that a selector finds."""
        found: list[Any] = self.browser.find_elements("css selector", selector)
        return found

    def one(self, selector: str) -> Any:
        """Return the element that a selector finds."""
        return self.browser.find_element("css selector", selector)

    def text(self, selector: str) -> str:
        """Return an element's text as it is in the document, white space included."""
        text: str = self.run("return document.querySelector(arguments[0]).textContent", selector)
        return text

    def texts(self, selector: str) -> list[str]:
        """Return the text of every such element."""
        script = "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)"
        texts: list[str] = self.run(script, selector)
        return texts

    def wait_for(self, script: str) -> None:
        """Wait until an expression is true."""
        wait_until(lambda: self.run(f"return {script}"), _WAIT_S)

    def wait_until_ready(self) -> None:
        """Wait until the form is there."""
        self.wait_for("!document.querySelector('#generate').disabled")

    def fill(self, name: str, text: str) -> None:
        """Type into a field of the form, whatever was there; open its group."""
        field = self.one(f"#field-{name}")
        self.run("arguments[0].closest('details').open = true", field)
        field.clear()
        field.send_keys(text)

    def prompt(self, text: str) -> None:
        """Type a prompt."""
        field = self.one("#prompt")
        field.clear()
        field.send_keys(text)

    def choose(self, group: str, value: str) -> None:
        """Press one of a row of radio buttons."""
        self.one(f"{group} input[value={value}]").click()

    def select(self, selector: str, text: str) -> None:
        """Choose an entry of a list."""
        self.one(selector).send_keys(text)

    def generate(self) -> None:
        """Press the button and wait for the end."""
        self.one("#generate").click()
        self.wait_for("document.querySelector('#stop').disabled")
        self.wait_for("!document.querySelector('.card:not([data-state=done])')")

    def answers(self) -> list[str]:
        """Return the text of each card."""
        return self.texts(".card .text")

    def takes_complaints(self, *expected: str) -> None:
        """Expect complaints with these words in the log."""
        self._expected.extend(expected)

    def complaints(self) -> list[str]:
        """Return what went wrong by the browser's log, but for what is expected."""
        messages = [entry["message"] for entry in self.browser.get_log("browser")]
        return [m for m in messages if not any(words in m for words in self._expected)]


OpenTab = Callable[..., Tab]
