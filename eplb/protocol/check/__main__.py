"""``python -m eplb.protocol.check``: walk through every state within bounds, then take each guard away in turn."""

from __future__ import annotations

import argparse
import resource
import sys
from dataclasses import replace

from eplb.protocol import ALL_GUARDS, Profile
from eplb.protocol.check.controls import CONTROLS, TOGETHER, without
from eplb.protocol.check.explore import Result, explore
from eplb.protocol.check.world import ALL_FAULTS, MAIN_FAULTS


def main() -> int:
    """Print what was found; 0 = every rule holds, and each guard is missed when it is gone."""
    parser = argparse.ArgumentParser(prog="python -m eplb.protocol.check", description=__doc__)
    parser.add_argument("--ranks", type=int, choices=(2, 3), default=2, help="ranks of the pool")
    parser.add_argument("--faults", type=int, default=1, help="faults of all kinds together in one run")
    parser.add_argument("--main", action="store_true", help="crashes, a lost store and messages only")
    parser.add_argument("--plans", type=int, default=1, help="plans that the daemons may make")
    parser.add_argument(
        "--profile", choices=tuple(Profile), default=Profile.STAGED, help="who moves the weights"
    )
    parser.add_argument("--states", type=int, default=10**9, help="give up after so many states")
    parser.add_argument("--controls", action="store_true", help="also take each guard away in turn")
    options = parser.parse_args()
    if options.profile == Profile.DELEGATED and options.ranks != 2:
        parser.error("profile delegated is checked with 2 ranks")
    bounds = replace(
        MAIN_FAULTS if options.main else ALL_FAULTS,
        ranks=options.ranks,
        faults=options.faults,
        plans=options.plans,
        profile=Profile(options.profile),
    )
    print(bounds, file=sys.stderr)
    found = explore(bounds, ALL_GUARDS, states_max=options.states)
    _show(f"{options.ranks} ranks, {options.faults} faults", found)
    memory_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"    peak memory {memory_mib} MiB")
    sound = not found.wrong and found.complete
    for name in CONTROLS if options.controls else ():
        missed = without(name)
        pair = f" and {TOGETHER[name][0]}" if name in TOGETHER else ""
        _show(f"without {name}{pair}", missed)
        sound = sound and bool(missed.wrong)
    return 0 if sound else 1


def _show(title: str, found: Result) -> None:
    whole = "all" if found.complete else "not all"
    print(
        f"{title}: {found.states} states ({whole}), depth {found.depth}, {found.steps} steps, {found.seconds:.1f} s; "
        + (
            f"broken: {found.wrong}"
            if found.wrong
            else f"every rule holds, at most {found.to_end} steps to an end"
        )
    )
    for name in found.path:
        print(f"    {name}")


if __name__ == "__main__":
    sys.exit(main())
