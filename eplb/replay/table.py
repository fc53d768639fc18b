"""The result of a replay as plain data and as text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eplb.models import MODELS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from eplb.replay.ledger import Account
    from eplb.replay.options import ReplayOptions
    from eplb.replay.recording import Recording

LABEL = "recorded picks, simulated schedule"


@dataclass(frozen=True, slots=True)
class Duel:
    """A policy of ours on one machine and seed against the best that plans from scratch every N windows.

    ``best``: the policy ``every:N`` or ``greedy:N`` with the least total time. ``below_never``, ``below_best``: its total time is
    less. ``best_moves``: that policy's moves; ``tenth_of_every_one``: a tenth of the moves of ``every:1``, None = not replayed.
    """

    policy: str
    machine: str
    seed: int
    total_s: float
    never_s: float
    best: str
    best_s: float
    moves: int
    best_moves: int
    tenth_of_every_one: float | None

    @property
    def won(self) -> bool:
        """Less time than both, no more moves than the best, at most a tenth of those of ``every:1``."""
        few = self.tenth_of_every_one is None or self.moves <= self.tenth_of_every_one
        fast = self.total_s < min(self.never_s, self.best_s)
        return fast and self.moves <= self.best_moves and few


def duels(accounts: Sequence[Account]) -> tuple[Duel, ...]:
    """Every policy of ours on every machine and seed; none where there is nothing to compare with."""
    found: list[Duel] = []
    for account in accounts:
        if not _is_ours(account.policy):
            continue
        rivals = [other for other in accounts if other.seed == account.seed]
        found.extend(_duels_of(account, rivals))
    return tuple(found)


def _duels_of(account: Account, rivals: list[Account]) -> Iterable[Duel]:
    never = next((other for other in rivals if other.policy == "never"), None)
    one = next((other for other in rivals if other.policy == "every:1"), None)
    scratch = [other for other in rivals if other.policy.startswith(("every:", "greedy:"))]
    if never is None or not scratch:
        return
    for bill in account.bills:
        totals_s = [other.on(bill.machine).total_s for other in scratch]
        best = scratch[totals_s.index(min(totals_s))]
        yield Duel(
            policy=account.policy,
            machine=bill.machine,
            seed=account.seed,
            total_s=bill.total_s,
            never_s=never.on(bill.machine).total_s,
            best=best.policy,
            best_s=best.on(bill.machine).total_s,
            moves=account.moves,
            best_moves=best.moves,
            tenth_of_every_one=None if one is None else one.moves / 10,
        )


def _is_ours(policy: str) -> bool:
    return policy.partition(":")[0] == "ours"


def as_dict(recording: Recording, options: ReplayOptions, accounts: Sequence[Account]) -> dict[str, Any]:
    """Everything as plain data: what was served, every account, every duel."""
    schedule = options.schedule
    return {
        "label": LABEL,
        "sequences": recording.sequences,
        "layers": recording.layers,
        "experts": recording.experts,
        "top_k": recording.top_k,
        "ranks": options.ranks,
        "nodes": options.nodes,
        "slots_per_rank": options.slots_per_rank,
        "phase": options.phase,
        "model": options.model,
        "effort": options.effort,
        "memory_windows": options.memory_windows,
        "undone_within": options.undone_within,
        "schedule": {
            "steps": schedule.steps,
            "window_steps": schedule.window_steps,
            "running": schedule.running,
            "requests_per_sequence": schedule.requests_per_sequence,
            "passes": schedule.passes,
            "step_ms": schedule.step_ms,
            "arrivals": len(schedule.arrivals),
            "mix": schedule.mix.kind,
            "at": schedule.mix.at,
        },
        "machines": [
            {
                "name": price.machine.name,
                "kernels": price.kernels.provenance,
                "bytes_per_expert": price.bytes_per_expert,
                "link_bytes_per_s": price.link_bytes_per_s,
            }
            for price in options.prices()
        ],
        "accounts": [_account(account) for account in accounts],
        "duels": [_duel(duel) for duel in duels(accounts)],
    }


def _account(account: Account) -> dict[str, Any]:
    return {
        "policy": account.policy,
        "seed": account.seed,
        "steps": account.steps,
        "tokens": account.tokens,
        "ratio": account.ratio,
        "ratio_by_window": list(account.ratio_by_window),
        "changes": account.changes,
        "moves": account.moves,
        "bytes": account.bytes,
        "undone": account.undone,
        "decisions": dict(account.decisions),
        "bills": [
            {
                "machine": bill.machine,
                "serving_s": bill.serving_s,
                "stall_s": bill.stall_s,
                "total_s": bill.total_s,
            }
            for bill in account.bills
        ],
    }


def _duel(duel: Duel) -> dict[str, Any]:
    names = ("policy", "machine", "seed", "total_s", "never_s", "best", "best_s", "moves", "best_moves")
    return {**{name: getattr(duel, name) for name in names}, "won": duel.won}


def as_text(recording: Recording, options: ReplayOptions, accounts: Sequence[Account]) -> str:
    """The head, one table a machine with means over the seeds, and every duel in a line."""
    lines = [*_head(recording, options, accounts)]
    for price in options.prices():
        lines += ["", *_table(price.machine.name, accounts)]
    fought = duels(accounts)
    if fought:
        lines += ["", *map(_duel_line, fought)]
    return "\n".join(lines)


def _head(recording: Recording, options: ReplayOptions, accounts: Sequence[Account]) -> list[str]:
    schedule, mix = options.schedule, options.schedule.mix
    seeds = sorted({account.seed for account in accounts})
    steps = sorted({account.steps for account in accounts})
    tokens = accounts[0].tokens // schedule.requests_per_sequence if accounts else 0
    first, second = schedule.groups(recording)
    domains = ", ".join(first) if mix.kind == "stationary" else f"{', '.join(first)} -> {', '.join(second)}"
    when = f" at {mix.at:g} of the run" if mix.kind in ("switch", "ramp") else ""
    model = MODELS[options.model]
    lines = [
        LABEL,
        (
            f"schedule   {'-'.join(map(str, steps))} steps in windows of {schedule.window_steps}, {schedule.running} sequences running, "
            f"each for {schedule.requests_per_sequence} equal requests; {tokens} recorded tokens served in seed {seeds[0]}"
        ),
        f"domains    {mix.kind}{when}: {domains}",
        (
            f"pool       {options.ranks} ranks x {options.slots_per_rank} slots, {recording.layers} layers x {recording.experts} experts, "
            f"top-{recording.top_k}; plans on the newest {options.memory_windows} windows, effort {options.effort}"
        ),
        (
            f"cost       {options.phase} kernels of {model.name}, {model.bytes_per_expert / 1e6:.2f} MB an expert; expert layers alone, stalls "
            "not hidden"
        ),
        f"seeds      {', '.join(map(str, seeds))}; the tables show means",
    ]
    fits: list[str] = []
    for price in options.prices():
        rate = price.link_bytes_per_s / 1e9
        pair, _, fit = price.kernels.provenance.rpartition("; scaled from: ")
        scaled = f"kernels scaled to {pair}" if pair else "kernels as fitted"
        lines.append(f"{price.machine.name:10s} {rate:g} GB/s into a rank; {scaled}")
        fits += [fit] if fit not in fits else []
    lines.extend(f"kernels    {fit}" for fit in fits)
    return lines


def _table(machine: str, accounts: Sequence[Account]) -> list[str]:
    policies = list(dict.fromkeys(account.policy for account in accounts))
    width = max(10, *map(len, policies))
    rows = {policy: [account for account in accounts if account.policy == policy] for policy in policies}
    never = rows.get("never", [])
    base_s = _mean(account.on(machine).total_s for account in never) if never else None
    lines = [
        (
            f"{machine:{width}s}  {'ratio':>6s} {'serving s':>10s} {'stall s':>8s} {'total s':>8s} {'of never':>8s} "
            f"{'moves':>8s} {'GB':>8s} {'undone':>8s}"
        )
    ]
    for policy, each in rows.items():
        total_s = _mean(account.on(machine).total_s for account in each)
        part = "" if base_s is None else f"{total_s / base_s:8.3f}"
        lines.append(
            f"{policy:{width}s}  {_mean(a.ratio for a in each):6.3f} {_mean(a.on(machine).serving_s for a in each):10.4f} "
            f"{_mean(a.on(machine).stall_s for a in each):8.4f} {total_s:8.4f} {part:>8s} "
            f"{_mean(a.moves for a in each):8.0f} {_mean(a.bytes / 1e9 for a in each):8.1f} {_mean(a.undone for a in each):8.0f}"
        )
    return lines


def _duel_line(duel: Duel) -> str:
    limit = "" if duel.tenth_of_every_one is None else f", a tenth of every:1 {duel.tenth_of_every_one:.0f}"
    return (
        f"{'won ' if duel.won else 'LOST'} {duel.machine} seed {duel.seed}: {duel.policy} {duel.total_s:.4f} s with {duel.moves} moves; "
        f"never {duel.never_s:.4f} s, best from scratch {duel.best} {duel.best_s:.4f} s with {duel.best_moves} moves{limit}"
    )


def _mean(values: Iterable[float]) -> float:
    held = list(values)
    return sum(held) / len(held)
