"""Look-ups of subscribers: python bench/match.py [--subscriptions 1000000] [--seconds 2] [--json]"""

from __future__ import annotations

import argparse
import json

from headwater.cli.bench_match import measure

GOALS = {  # DESIGN section 9
    "bytes_per_subscription": "≤ 400",
    "bytes_per_wildcard_subscription": "≤ 400",
    "warm_per_s": "≥ 3,000,000",
    "cold_per_s": "≥ 150,000",
    "warm_while_changing_per_s": "≥ half of warm",
    "cold_while_changing_per_s": "≥ half of cold",
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure look-ups of subscribers by topic.")
    parser.add_argument("--subscriptions", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each of the four speeds")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    result = measure(arguments.subscriptions, arguments.seconds)
    if arguments.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:32} {value:>12,}  {GOALS.get(name, '')}")


if __name__ == "__main__":
    main()
