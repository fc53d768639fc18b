"""The rank side of migration: what an engine embeds to move experts together with its whole group.

Needs numpy, redis and zstandard only; ``eplb.agent.torch_group`` and ``eplb.agent.torch_transport`` are imported by
engines that run torch.
"""

from eplb.agent.agent import Agent
from eplb.agent.group import Group, ThreadGroup
from eplb.agent.link import Link, LocalLink, StoreLink, Wanted
from eplb.agent.memory import ExpertMemory, Probed
from eplb.agent.refusal import Code, Refusal
from eplb.agent.switch import Recorder, Switched
from eplb.agent.tables import Tables, dispatch_tables
from eplb.agent.transport import ThreadTransport, Transport
from eplb.agent.wire import LayerChange, LiveRecord, Offer

__all__ = [
    "Agent",
    "Code",
    "ExpertMemory",
    "Group",
    "LayerChange",
    "Link",
    "LiveRecord",
    "LocalLink",
    "Offer",
    "Probed",
    "Recorder",
    "Refusal",
    "StoreLink",
    "Switched",
    "Tables",
    "ThreadGroup",
    "ThreadTransport",
    "Transport",
    "Wanted",
    "dispatch_tables",
]
