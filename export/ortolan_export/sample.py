"""A text of many kinds, which calibration runs on and checks compare bundles by."""

from __future__ import annotations

TEXT = """\
The harbour was quiet when the last ferry came in. Two women with baskets stepped ashore, then a boy
who carried a cage of pigeons, and nobody spoke until the ropes were tied. "You are late," said the
clerk, without looking up from his ledger. "The tide was late," answered the captain, and laughed.

# Installing
1. Unpack the archive, then run `make install` as the user who will own the files.
2. Set `CACHE_DIR` (default: /var/cache/app) and check that it can be written to.
Note: versions before 3.2 ignored this setting.

def median(values: list[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2

Photosynthesis turns light into chemical energy: 6 CO2 + 6 H2O -> C6H12O6 + 6 O2. In 1905, Blackman
showed that its rate is limited by the slowest of several factors, such as light or temperature.

Question: A train leaves at 9:40 and arrives at 11:05. How long does the journey take?
Answer: From 9:40 to 10:40 is one hour, and 25 minutes remain, so it takes 1 hour and 25 minutes.

{"id": 4711, "name": "Müller, Anna", "tags": ["new", "vip"], "balance": -12.50, "active": true}
SELECT city, COUNT(*) FROM orders WHERE total > 100 GROUP BY city ORDER BY 2 DESC;

Le marché ouvre à huit heures; on y trouve du pain, des fruits et du fromage. Der Zug nach Berlin
hat heute leider Verspätung. La biblioteca cierra los domingos. 今日はいい天気です。
Привет, как дела?

Dear Ms Okafor,
thank you for your letter of 3 March. We regret that the parts you ordered ($1,249.00) are out of
stock; they should arrive within ten days. Please let us know whether you would rather cancel.
"""
