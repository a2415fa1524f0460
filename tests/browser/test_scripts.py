"""The page's modules, each asked by itself in the browser that will run them."""

from __future__ import annotations

from typing import Any

import pytest
from driving import OpenTab, Tab

from serving import Server


@pytest.fixture
def tab(server: Server, open_tab: OpenTab) -> Tab:
    """Give a tab whose modules can be imported."""
    return open_tab(server)


@pytest.mark.parametrize(
    ("text", "json"),
    [
        ("1", "1"),
        (" -7 ", "-7"),
        ("0.5", "0.5"),
        (".5e1", "5"),
        ("9223372036854775807", "9223372036854775807"),
        ("-9223372036854775808", "-9223372036854775808"),
        ("1e400", "null"),
        ("hot", '"hot"'),
        ("0x10", '"0x10"'),
    ],
)
def test_a_number_is_read_exactly_and_anything_else_stays_text(
    tab: Tab, text: str, json: str
) -> None:
    script = (
        "const v = await import('/page/values.js'); return v.toJson(v.parseNumber(arguments[0]))"
    )
    assert tab.run(script, text) == json


@pytest.mark.parametrize(
    ("reader", "text", "value"),
    [
        ("parseLines", "a\n\\n\\n\n\\\\n", ["a", "\n\n", "\\n"]),
        ("parseOneOrMore", "END", "END"),
        ("parseOneOrMore", "a\nb", ["a", "b"]),
        ("parseIds", "1, 2  3\n4", [1, 2, 3, 4]),
        ("parseIds", "1, x", [1, "x"]),
        ("parsePairs", "50256: -100\n a:b : 2.5\n", {"50256": -100, " a:b ": 2.5}),
        ("parsePairs", "7", {"7": None}),
    ],
)
def test_what_is_typed_becomes_values(tab: Tab, reader: str, text: str, value: Any) -> None:
    script = "const v = await import('/page/values.js'); return v[arguments[0]](arguments[1])"
    assert tab.run(script, reader, text) == value


def test_python_literals_are_pythons(tab: Tab) -> None:
    value = {"a": [True, False, None], "b": 'it\'s "x"\n\u2028\\', "c": 1.5}
    script = "return (await import('/page/values.js')).toPython(arguments[0])"
    assert eval(tab.run(script, value)) == value


@pytest.mark.parametrize(
    ("first", "seeds"),
    [
        ("7", "7 8"),
        ("9223372036854775807", "9223372036854775807 -9223372036854775808"),
        ("9007199254740992", "9007199254740992 9007199254740993"),
    ],
)
def test_seeds_go_on_within_64_bits(tab: Tab, first: str, seeds: str) -> None:
    script = """
        const [{ parseNumber }, { seedsFrom }] = await Promise.all(
          ["values", "request"].map((name) => import(`/page/${name}.js`)));
        return seedsFrom(parseNumber(arguments[0]), 2).join(" ");
    """
    assert tab.run(script, first) == seeds


def test_events_are_found_wherever_a_stream_is_cut(tab: Tab) -> None:
    """Characters too, comments are none, and both line ends are known."""
    stream = ': waiting\n\ndata: {"text": "é漢"}\n\ndata: a\r\n\r\ndata: [DONE]\n\n'
    script = """
        const { eventsOf } = await import("/page/sse.js");
        const bytes = new TextEncoder().encode(arguments[0]);
        const found = [];
        for (const size of [1, 2, 3, 7, bytes.length]) {
          const body = new ReadableStream({
            start(controller) {
              for (let at = 0; at < bytes.length; at += size) {
                controller.enqueue(bytes.slice(at, at + size));
              }
              controller.close();
            },
          });
          const events = [];
          for await (const data of eventsOf(body)) events.push(data);
          found.push(events);
        }
        return found;
    """
    assert tab.run(script, stream) == [['{"text": "é漢"}', "a", "[DONE]"]] * 5


def test_a_rate_is_the_growth_of_a_counter(tab: Tab) -> None:
    """It is never below 0, though a new model's counters begin at 0."""
    script = """
        const { Rates, parseMetrics } = await import("/page/metrics.js");
        const rates = new Rates();
        const told = [];
        for (const [at, total] of [[0, 10], [1000, 30], [2000, 50], [3000, 0]]) {
          const text = `# TYPE n counter\\nn{kind="a"} ${total - 1}\\nn{kind="b"} 1.0\\n`;
          rates.add(parseMetrics(text), at);
          told.push(rates.perSecond("n"));
        }
        return told;
    """
    assert tab.run(script) == [0, 20, 20, 0]
