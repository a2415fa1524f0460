"""How the page behaves: errors, keys, the keyboard, small screens, and nothing sent elsewhere."""

from __future__ import annotations

from typing import Any

from driving import KEY, OpenTab, Tab

from figures import running
from serving import Server, wait_until

FOCUSED = "return document.activeElement.id || document.activeElement.className"


def enter_key(tab: Tab, key: str) -> None:
    """Type a key into the dialog that is open."""
    tab.one("#key-input").send_keys(key, "\ue007")


def press(tab: Tab, *keys: str) -> None:
    """Press keys where the focus is."""
    from selenium.webdriver import ActionChains

    ActionChains(tab.browser).send_keys(*keys).perform()


def test_stop_frees_the_slot(talker: Server, open_tab: OpenTab) -> None:
    tab = open_tab(talker)
    tab.takes_complaints("401 (Unauthorized)")
    tab.wait_for("document.querySelector('#key-dialog').open")
    enter_key(tab, KEY)
    tab.wait_until_ready()
    tab.fill("max_tokens", "60000")
    tab.one("#generate").click()
    wait_until(lambda: running(talker) == 1)
    tab.wait_for("document.querySelector('#slots-figure').textContent === '1'")
    tab.one("#stop").click()
    tab.wait_for("document.querySelector('.card .figures').textContent.startsWith('stopped')")
    wait_until(lambda: running(talker) == 0)
    assert tab.text("#announcer") == "Stopped."
    assert tab.answers()[0]


def test_a_key_is_asked_for_and_kept_in_the_tab_alone(talker: Server, open_tab: OpenTab) -> None:
    tab = open_tab(talker)
    tab.takes_complaints("401 (Unauthorized)")
    tab.wait_for("document.querySelector('#key-dialog').open")
    assert tab.text("#key-why") == "This server wants a key."
    tab.wait_for("document.querySelector('#status-note').textContent === 'The figures want a key.'")
    enter_key(tab, "sk-wrong")
    tab.wait_for("document.querySelector('#key-why').textContent.includes('wrong')")
    tab.one("#key-input").clear()
    enter_key(tab, KEY)
    tab.wait_until_ready()
    tab.wait_for("document.querySelector('#status-note').textContent === ''")
    tab.wait_for("document.querySelector('#slots-figure').textContent === '0'")
    stored = "return [JSON.stringify({...sessionStorage}), localStorage.length, document.cookie]"
    assert tab.run(stored) == [f'{{"ortolan-key":"{KEY}"}}', 0, ""]
    assert KEY not in tab.text("#code")
    assert "$ORTOLAN_API_KEY" in tab.text("#code")
    tab.one("#key-button").click()
    tab.one("#key-forget").click()
    assert tab.run("return sessionStorage.length") == 0


def test_a_refusal_is_shown_at_its_field(server: Server, open_tab: OpenTab) -> None:
    """In the server's own words."""
    tab = open_tab(server)
    tab.takes_complaints("400 (Bad Request)")
    tab.wait_until_ready()
    tab.fill("top_p", "1.5")
    tab.one("#generate").click()
    tab.wait_for("document.querySelector('.failure')")
    words = server.refused(server.body(top_p=1.5))["message"].replace("`", "")
    assert tab.text(".failure") == words
    assert tab.text("#field-top_p-error") == words
    assert tab.text("#announcer").replace("`", "") == words
    assert tab.one("#field-top_p").get_attribute("aria-invalid") == "true"
    assert tab.text(".facts").startswith("HTTP 400 · invalid_value · request req_")
    tab.one(".note button").click()
    assert tab.run(FOCUSED) == "field-top_p"
    tab.fill("top_p", "0.5")
    assert tab.one("#field-top_p").get_attribute("aria-invalid") is None
    tab.generate()
    assert tab.answers()[0]


def test_a_server_that_is_gone_is_told_of(server: Server, open_tab: OpenTab) -> None:
    tab = open_tab(server)
    tab.takes_complaints("ERR_INTERNET_DISCONNECTED")
    tab.wait_until_ready()
    network = {"latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
    tab.browser.execute_cdp_cmd("Network.enable", {})
    tab.browser.execute_cdp_cmd("Network.emulateNetworkConditions", {"offline": True, **network})
    tab.one("#generate").click()
    tab.wait_for("document.querySelector('.failure')")
    assert tab.text(".failure") == "The server does not answer. Is it running?"
    tab.wait_for("document.querySelector('#state').dataset.state === 'gone'")
    back = {"offline": False, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    tab.browser.execute_cdp_cmd("Network.emulateNetworkConditions", back)
    tab.wait_for("document.querySelector('#state').dataset.state === 'ready'")


def test_all_of_it_is_reached_by_the_keyboard(server: Server, open_tab: OpenTab) -> None:
    """In the order in which it is read; control and enter ask, wherever the focus is."""
    from selenium.webdriver import ActionChains

    tab = open_tab(server)
    tab.wait_until_ready()
    order = []
    for _ in range(9):
        press(tab, "\ue004")  # tab
        order.append(tab.run(FOCUSED))
    assert order[:5] == ["skip", "key-button", "prompt", "generate", "seeds"]
    assert tab.run("return document.activeElement.closest('.settings') !== null")
    tab.run("document.querySelector('#prompt').focus()")
    ActionChains(tab.browser).key_down("\ue009").send_keys("\ue007").key_up("\ue009").perform()
    tab.wait_for("document.querySelector('.card[data-state=done]')")
    assert tab.answers()[0]


def test_every_control_has_a_name(server: Server, open_tab: OpenTab) -> None:
    tab = open_tab(server)
    tab.wait_until_ready()
    tab.generate()
    tab.run("for (const group of document.querySelectorAll('details')) group.open = true")
    controls = tab.all("button, input:not([aria-hidden]), select, textarea, [tabindex='0']")
    assert len(controls) > 40
    for control in (control for control in controls if control.is_displayed()):
        assert control.accessible_name, control.get_attribute("outerHTML")


def test_the_arrow_keys_go_from_token_to_token(server: Server, open_tab: OpenTab) -> None:
    """The list is one stop of the tab key; escape hides what a token might have been."""
    tab = open_tab(server)
    tab.wait_until_ready()
    tab.fill("seed", "7")
    tab.choose("#view", "tokens")
    tab.generate()
    assert len(tab.all(".token[tabindex='0']")) == 1
    tab.run("document.querySelector('.token').focus()")
    press(tab, "\ue014", "\ue014", "\ue012", "\ue014")  # right, right, left, right
    scores = server.complete("Once upon a time", seed=7, logprobs=5, temperature=0.7, max_tokens=9)
    top = scores["choices"][0]["logprobs"]["top_logprobs"][2]
    shown = tab.texts(".alternative:not(.is-rest) code")
    assert shown == [name.replace(" ", "␣").replace("\n", "↵") for name in ranked(top)]
    assert len(tab.all(".alternative.is-taken")) == 1
    press(tab, "\ue00c")
    assert not tab.one("#alternatives").is_displayed()


def ranked(top: dict[str, float]) -> list[str]:
    """Return the names of tokens, the likeliest first."""
    return sorted(top, key=lambda name: -top[name])


def test_a_pointer_shows_what_a_token_might_have_been(server: Server, open_tab: OpenTab) -> None:
    from selenium.webdriver import ActionChains

    tab = open_tab(server)
    tab.wait_until_ready()
    tab.choose("#view", "tokens")
    tab.generate()
    ActionChains(tab.browser).move_to_element(tab.all(".token")[4]).perform()
    assert tab.one("#alternatives").is_displayed()
    box = tab.run("return document.querySelector('#alternatives').getBoundingClientRect().toJSON()")
    assert box["left"] >= 0
    assert box["right"] <= 1280
    assert box["bottom"] <= 900


def test_a_phone_scrolls_down_alone(server: Server, open_tab: OpenTab) -> None:
    """What can be pressed is large enough for a finger."""
    tab = open_tab(server, width=320, height=640)
    tab.wait_until_ready()
    tab.choose("#view", "tokens")
    tab.generate()
    tab.run("for (const group of document.querySelectorAll('details')) group.open = true")
    assert tab.run("return document.documentElement.scrollWidth") == 320
    heights = tab.run(
        "return ['#generate', '#seeds', '#key-button'].map((name) => "
        "document.querySelector(name).offsetHeight)"
    )
    assert min(heights) >= 44


def test_the_colours_follow_the_system_and_can_be_read(server: Server, open_tab: OpenTab) -> None:
    """At least 4.5 to 1, as WCAG asks of text."""
    papers = []
    for scheme in ("light", "dark"):
        tab = open_tab(server, scheme=scheme)
        colours = tab.run(
            "const style = getComputedStyle(document.documentElement);"
            "return Object.fromEntries(['paper', 'card', 'sunken', 'ink', 'muted', 'accent', 'bad',"
            "'bad-paper', 'on-accent', 'warn'].map((n) => [n, style.getPropertyValue(`--${n}`)]))"
        )
        papers.append(colours["paper"])
        for text in ("ink", "muted", "accent", "bad", "warn"):
            for ground in ("paper", "card", "sunken"):
                assert contrast(colours[text], colours[ground]) >= 4.5, (scheme, text, ground)
        assert contrast(colours["on-accent"], colours["accent"]) >= 4.5
        assert contrast(colours["bad"], colours["bad-paper"]) >= 4.5
    assert papers[0] != papers[1]


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours written as #rrggbb, by WCAG's formula."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    """Return the relative luminance of a colour."""
    parts = [int(colour.strip()[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_the_page_asks_its_own_server_alone(server: Server, open_tab: OpenTab) -> None:
    tab = open_tab(server)
    tab.wait_until_ready()
    tab.generate()
    asked: list[Any] = tab.run("return performance.getEntriesByType('resource').map((e) => e.name)")
    assert len(asked) > 20
    assert all(name.startswith(f"{server.url}/") for name in asked)


def test_the_page_works_below_a_path_of_a_proxy(proxied: Server, open_tab: OpenTab) -> None:
    """And without figures, which a proxy may keep to itself: they are asked for once."""
    tab = open_tab(proxied)
    tab.takes_complaints("403 (Forbidden)")
    tab.wait_until_ready()
    tab.generate()
    assert tab.answers()[0]
    assert f"curl -N {proxied.url}/v1/completions" in tab.text("#code")
    tab.wait_for("document.querySelector('#state').dataset.state === 'ready'")
    assert tab.text("#status-note") == "No figures: HTTP 403 Forbidden"
    asked = "return performance.getEntriesByType('resource').filter((e) => e.name.endsWith('ics'))"
    assert len(tab.run(asked)) == 1


def test_what_a_model_says_is_no_markup(server: Server, open_tab: OpenTab) -> None:
    """Echo lets it say anything."""
    tab = open_tab(server)
    tab.wait_until_ready()
    tab.prompt("<img src=x onerror=alert(1)><b>bold</b>")
    tab.run("document.querySelector('#field-echo').click()")
    tab.generate()
    assert tab.answers()[0].startswith("<img src=x onerror=alert(1)><b>bold</b>")
    assert tab.all(".card img, .card b") == []
