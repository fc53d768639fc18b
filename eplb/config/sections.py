"""Sections of the configuration that stand alone: one frozen model each, every default explained where it stands."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, model_validator

from collectors.access import StoreAccess
from collectors.urls import masked_url

STORE_SCHEMES = ("redis", "rediss", "unix")
"""URL schemes of a store: TCP, TCP with TLS, unix socket."""

MOST_S = 31_536_000.0
"""A year: no wait is meant to be longer, and a slip of the pen must not leave float64 as milliseconds."""

_STORE_HINT = "use redis://host:6379/0, rediss://host:6379/0 (TLS) or unix:///path/to/redis.sock"


class Section(BaseModel):
    """Base of every section: frozen, no unknown key, no NaN or infinity; numbers given as strings are parsed."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)


def _check_store_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"the URL cannot be read ({error}); {_STORE_HINT}") from error
    if parts.scheme not in STORE_SCHEMES:
        found = f"scheme {parts.scheme!r}" if parts.scheme else "no scheme"
        raise ValueError(f"{masked_url(url)!r} has {found}; {_STORE_HINT}")
    if parts.scheme == "unix" and not parts.path:
        raise ValueError(f"{masked_url(url)!r} names no socket; {_STORE_HINT}")
    if parts.scheme != "unix" and (not parts.hostname or port == 0):
        raise ValueError(f"{masked_url(url)!r} names no host and port; {_STORE_HINT}")
    return url


def is_loopback(host: str) -> bool:
    """Whether only processes of this host can reach an address."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


class StoreConfig(Section):
    """Where frames, maps and the lease are kept: Redis >= 6.2 or Valkey by URL, or a private one on this host."""

    url: Annotated[str, AfterValidator(_check_store_url)] | None = Field(default=None, repr=False)
    """redis://user@host:6379/0, rediss://... (TLS) or unix:///path.sock; the user stands here, the password better elsewhere."""
    password_file: str | None = None
    """File that holds the password, read for each connection, so that it can be changed while the daemon runs."""
    password: SecretStr | None = None
    """The password itself; for the environment (EPLB_STORE__PASSWORD), refused on the command line."""
    tls_ca_file: str | None = None
    """Authority that signed the store's certificate, PEM; empty = those that the system trusts. Only with rediss://."""
    tls_cert_file: str | None = None
    """This daemon's own certificate, PEM, where the store asks for one."""
    tls_key_file: str | None = None
    """Key of tls_cert_file, PEM."""
    tls_check_hostname: bool = True
    """Whether the store's certificate must name the URL's host; off only where hosts have no names."""
    embedded: bool = False
    """Run a private Valkey on a unix socket that ends with the daemon; for one host only."""
    timeout_s: float = Field(default=2.0, gt=0, le=60)
    """Longest wait for one answer. 2 s is far above a healthy round trip (1 ms) and short enough to keep the lease."""
    lease_ttl_s: float = Field(default=30.0, gt=0, le=600)
    """A leader that stops renewing is replaced after this time. 30 s = six cycles of the default length, and room for slow
    answers of the store for several pools."""

    @model_validator(mode="after")
    def _one_store(self) -> StoreConfig:
        if self.embedded and self.url is not None:
            raise ValueError("both url and embedded are given; keep one of them")
        if not self.embedded and self.url is None:
            raise ValueError(f"no store is given; set url ({_STORE_HINT}) or embedded: true")
        return self

    def access(self) -> StoreAccess:
        """Password and TLS files as the store's client takes them."""
        return StoreAccess(
            password=None if self.password is None else self.password.get_secret_value(),
            password_file=self.password_file,
            tls_ca_file=self.tls_ca_file,
            tls_cert_file=self.tls_cert_file,
            tls_key_file=self.tls_key_file,
            tls_check_hostname=self.tls_check_hostname,
        )


class HttpConfig(Section):
    """Where /metrics, /livez, /readyz and /state are served."""

    host: str = "127.0.0.1"
    """Address to listen on. Only this host by default; 0.0.0.0 in a container, which needs a token."""
    port: int = Field(default=8790, ge=0, le=65535)
    """TCP port; 0 lets the system choose one, which is logged."""
    token_file: str | None = None
    """File that holds the token which readers of /metrics and /state send as `Authorization: Bearer`; /livez and /readyz need none."""
    token: SecretStr | None = None
    """The token itself; for the environment (EPLB_HTTP__TOKEN), refused on the command line."""

    @model_validator(mode="after")
    def _closed_or_guarded(self) -> HttpConfig:
        if self.token is not None and self.token_file is not None:
            raise ValueError("both token and token_file are given; keep one of them")
        if self.token is None and self.token_file is None and not is_loopback(self.host):
            raise ValueError(
                f"host {self.host!r} can be reached from other hosts, so http.token_file (or EPLB_HTTP__TOKEN) is needed; "
                "set it, or listen on 127.0.0.1"
            )
        return self


class LogConfig(Section):
    """Structured log on stderr."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level that is written. info is one line a decision that changes something, not one a cycle."""
    format: Literal["json", "console"] = "json"
    """json = one object a line for a log collector; console = for a reader at a terminal."""


class MetricsConfig(Section):
    """What /metrics shows beyond the default series."""

    layer_rank: bool = False
    """Add one series per layer and rank (61 layers x 72 ranks = 4392); off, because it costs the scraper 40 times more."""


class WindowConfig(Section):
    """The sliding window over which load is measured."""

    window_s: float = Field(default=60.0, gt=0, le=86_400)
    """Length. 60 s holds enough steps to rise above noise and still follows a change of domain; smoothing over longer
    spans costs more than it saves. Not longer than the ranks keep their frames (retention_s, 90 s by default)."""
    max_slices: int = Field(default=256, ge=2, le=65_536)
    """Most slices handed to the solver. More than 256 no longer improve a plan on load not yet seen."""
    window_bytes: int = Field(default=256_000_000, ge=1_000_000)
    """Most memory of the window; checked at start against ranks x frame x window."""


class HistoryConfig(Section):
    """What is kept of the traffic before the window, and how a plan makes use of it."""

    use: Literal["off", "pooled", "regimes"] = "regimes"
    """off = plan on the window alone; pooled = on all that is kept, weighed by age; regimes = what resembles the traffic that is
    expected while the plan serves weighs more (docs/history.md compares them)."""
    folder: str = ""
    """Where each pool's history is kept over restarts, one file each; empty = in memory only, and a restart begins anew."""
    keep_s: float = Field(default=604_800.0, ge=600, le=7_776_000)
    """Age at which steps are dropped. A week holds every hour of the day and every day of the week."""
    half_life_s: float = Field(default=86_400.0, ge=60, le=7_776_000)
    """Age at which a step counts half: half_life_s / (half_life_s + age). A day: the same hour of yesterday still counts half."""
    most_moments: int = Field(default=256, ge=8, le=1024)
    """Most minutes that are kept, up to 8 steps of each. 256 are 2048 slices, eight times what a plan takes; more make finding
    regimes slower (its time grows with the square)."""
    most_bytes: int = Field(default=64_000_000, ge=100_000, le=2_000_000_000)
    """Most packed counts, in memory and in the file. 2048 steps of 58 layers x 256 experts and 512 tokens take 21 MB."""
    window_share: float = Field(default=0.25, gt=0, le=1)
    """Least part of the weight that the window's own slices have, so that traffic never seen before is not drowned."""


class GateConfig(Section):
    """When a better placement is worth acting on; the cheapest check comes first."""

    mode: Literal["observe", "advise", "auto"] = "observe"
    """observe = measure only; advise = propose without moving anything; auto = move. A fresh install moves nothing."""
    cooldown_s: float = Field(default=300.0, ge=0, le=MOST_S)
    """Rest after a plan has been applied. Minutes, so that the gain is measured before the next plan."""
    coverage: float = Field(default=0.9, gt=0, le=1)
    """Share of ranks that must have been seen in the window. Below it a missing rank looks like an idle one."""
    min_slices: int = Field(default=20, ge=1)
    """Slices a plan must rest on. With fewer, experts that peak together cannot be told from chance."""
    min_tokens: int = Field(default=50_000, ge=0)
    """Tokens the window must hold. 50 000 at top-8 are 400 000 choices, where noise falls below the trigger."""
    trigger_excess: float = Field(default=0.10, ge=0)
    """Mean recoverable excess (live ratio minus a balanced map's on the same steps) above which a plan is looked for."""
    target_excess: float = Field(default=0.05, ge=0)
    """Recoverable excess below which the pool counts as balanced; the dead band up to the trigger stops flapping."""
    trigger_slices: int = Field(default=3, ge=1)
    """Newest slices that must all be above the target too, so that a burst that is over triggers nothing."""
    min_gain: float = Field(default=0.02, ge=0)
    """Smallest drop of the ratio that a plan must promise. Below 0.02 a gain cannot be told from noise afterwards."""
    min_interval_s: float = Field(default=300.0, ge=0, le=MOST_S)
    """Least time between two plans, from offer to offer. Minutes: public balancers that planned every few seconds lost more than they won."""
    drift_share: float = Field(default=0.3, gt=0, le=1)
    """Inside the dead band a plan is looked for too once the experts that were hottest when the last plan was made miss this share of the load
    of those that are hottest now. Sampling noise alone stays below 0.1."""
    min_gain_shares: float = Field(default=0.01, ge=0)
    """Smallest drop of the ratio for a plan that changes shares alone. It moves no bytes, so half of min_gain is enough."""
    exposed_share: float = Field(default=1.0, gt=0, le=1)
    """Part of the expert time that nothing hides. Lower it for an engine that overlaps two batches."""
    price_us_per_token: float | None = Field(default=None, gt=0)
    """Microseconds that a step gets shorter for each token less on its busiest rank. Empty = fitted from the ranks' own step times; where they
    report none, mode auto moves nothing (no_price) until this is set."""
    horizon_s: float = Field(default=1800.0, gt=0, le=MOST_S)
    """Time over which a gain is weighed against the price of moving; capped by the measured half-life of past gains."""
    thrash_intervals: int = Field(default=3, ge=0)
    """No expert comes back to a rank that it left within so many intervals between plans; 0 = it may."""
    least_delivered: float = Field(default=0.1, ge=0, le=1)
    """A plan that surely brought less than this share of its promise, and nothing for sure, is taken back. Else the promise of the next plans is corrected."""
    progress_s: float = Field(default=120.0, gt=0, le=MOST_S)
    """A plan in flight that stands still for this long is stalled: twice the life of an offer."""
    solver_failures: int = Field(default=3, ge=1)
    """Failures of the solver in a row that are said as no progress."""

    @model_validator(mode="after")
    def _dead_band(self) -> GateConfig:
        if self.trigger_excess <= self.target_excess:
            raise ValueError(
                f"trigger_excess {self.trigger_excess:g} must be above target_excess {self.target_excess:g}; "
                "raise the trigger or lower the target"
            )
        return self

    @property
    def interval_s(self) -> float:
        """Time between two plans at least, whichever rest is longer, in seconds."""
        return max(self.cooldown_s, self.min_interval_s)


class SolverConfig(Section):
    """How hard to look for a placement."""

    effort: Literal["fast", "normal", "thorough"] = "normal"
    """normal plans 58 layers x 256 experts well within the deadline on one core."""
    seed: int = Field(default=0, ge=0)
    """The same load and seed give the same plan on any machine."""
    deadline_s: float = Field(default=30.0, gt=0, le=MOST_S)
    """Time after which planning is given up with the decision planning_timeout."""
    slack: float = Field(default=0.02, ge=0, lt=1)
    """The plan with the fewest moves within this share of the best is taken. On a window's slices 2 % is chance: in replays 0.005
    moved twice as much and was no better on the next slices (docs/replay.md)."""


class MigrationConfig(Section):
    """How a plan reaches the ranks."""

    profile: Literal["staged", "delegated"] = "staged"
    """Who moves the weights, as the ranks' agents are told too: staged = the agent, into staging, until the vote can stop it; delegated = the engine
    itself, after the vote, so that a failed read-back is answered by a plan back to the map before, from what each rank serves, and a pause."""
    gate_steps: int = Field(default=20, ge=20)
    """Group forwards between two headers of rank 0. 20 keeps the cost of the broadcast below 0.1 % of a step."""
    offer_expires_s: float = Field(default=60.0, gt=0, le=MOST_S)
    """Age at which ranks drop a prepared wave on which no vote was taken. One layer moves in seconds."""
    staging_slots: int | None = Field(default=None, ge=1)
    """Spare slots a rank has for a wave; empty = the arrivals of one whole layer."""
    bytes_per_rank: int | None = Field(default=None, ge=1)
    """Most bytes that one wave sends to one rank; empty = no limit but staging_slots."""
    slowdown: float = Field(default=0.5, gt=0)
    """Rise of the 95th percentile of step times during a wave, 0.5 = half as long again, above which the next wave is halved."""
    link_bytes_per_s: float = Field(default=1.25e9, gt=0)
    """Bytes per second from one rank to another on another node, for predicted times. Weights travel through host memory over
    TCP: a rank's eighth of a 100 Gbit/s adapter is 1.56 GB/s, of which TCP leaves about 80 %."""
    node_link_bytes_per_s: float = Field(default=2.5e9, gt=0)
    """The same inside a node. A copy through host memory and a socket is far below NVLink (450 GB/s) or PCIe (64 GB/s)."""
    headroom_bytes: int | None = Field(default=None, ge=0)
    """Memory of a rank for redundant experts and staging; a pool that needs more is refused at start. Empty = unknown."""


class AlertConfig(Section):
    """When the daemon logs imbalance_high: the same condition as EplbImbalanceHigh of configs/prometheus/rules.yml."""

    recoverable_excess: float = Field(default=0.30, gt=0)
    """Recoverable excess that is worth a person's look: at 0.30 nearly a quarter of the MoE time is spent waiting, and need not be."""
    for_s: float = Field(default=600.0, ge=0, le=MOST_S)
    """The condition must hold this long; ten minutes outlast a burst and one round of planning."""
    keep_s: float = Field(default=300.0, ge=0, le=MOST_S)
    """The alert stays this long after the condition has ended, so that it does not flap."""
    stale_after_s: float = Field(default=30.0, gt=0, le=MOST_S)
    """A rank without a frame for this long is stale: thirty times the default publishing interval."""
