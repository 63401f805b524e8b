"""Names and counts every skipped test of a CI run and fails on one that nobody expected.

Usage: skips.py EXPECTED REPORTS, where REPORTS is a folder of JUnit files. EXPECTED has one rule per line,
`REGEX :: CONDITION`: a skip whose reason matches REGEX is expected where the shell command CONDITION succeeds, so that
a tool that is there cannot be skipped. The last line printed counts all tests.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree


def read_rules(path: Path) -> list[tuple[re.Pattern[str], str]]:
    """Returns the pattern and the shell condition of each rule."""
    rules = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        pattern, separator, condition = line.partition(" :: ")
        if not separator:
            sys.exit(f"{path}:{number}: expected `REGEX :: CONDITION`, got {line!r}")
        rules.append((re.compile(pattern.strip()), condition.strip()))
    return rules


def reason_of(skipped: ElementTree.Element) -> str:
    """Returns why a test was skipped; a module skipped as a whole has its reason in the text only."""
    message = skipped.get("message") or "no reason given"
    return (skipped.text or message).strip() if message == "collection skipped" else message


def is_expected(reason: str, rules: list[tuple[re.Pattern[str], str]]) -> bool:
    """Tells whether some rule matches the reason and its condition holds on this machine."""
    return any(
        pattern.search(reason)
        and subprocess.run(["bash", "-c", condition], stdin=subprocess.DEVNULL, capture_output=True).returncode == 0
        for pattern, condition in rules
    )


def main(expected: Path, reports: Path) -> int:
    """Prints skips and totals; returns 1 on an unexpected skip, a failure or an empty run."""
    outcomes: Counter[str] = Counter()
    skips: Counter[str] = Counter()
    for report in sorted(reports.glob("*.xml")):
        for case in ElementTree.parse(report).iter("testcase"):
            skipped = case.find("skipped")
            if skipped is not None:
                skips[reason_of(skipped)] += 1
                outcomes["skipped"] += 1
            else:
                has_failed = case.find("failure") is not None or case.find("error") is not None
                outcomes["failed" if has_failed else "passed"] += 1
    rules = read_rules(expected)
    unexpected = [reason for reason in skips if not is_expected(reason, rules)]
    for reason, count in sorted(skips.items()):
        print(f"skipped {count}: {reason}{' (UNEXPECTED)' if reason in unexpected else ''}")
    print(f"{outcomes['passed']} passed, {outcomes['failed']} failed, {outcomes['skipped']} skipped")
    return 1 if unexpected or outcomes["failed"] or not outcomes["passed"] else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
