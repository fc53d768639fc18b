"""A wire that failed is made anew at a gate, so that ranks need no restart to move experts again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from eplb.agent.hand import APPLY_WAIT_S
from eplb.agent.refusal import Code, Refusal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eplb.agent.group import Group
    from eplb.agent.transfer import Transfer
    from eplb.agent.transport import Transport


def mend(group: Group, transport: Transport, leaving: Sequence[Transfer]) -> Refusal | None:
    """Renew the transport if it is broken on any rank; every rank calls it at the same gate, before it judges an offer.

    ``leaving``: transfers of this rank that nobody wants any more; only when they have ended everywhere can the wire be renewed.
    Returns why this offer cannot travel, the same on all ranks if a transfer still runs.
    """
    broken = group.gather(np.array([transport.broken], dtype=np.int64))
    if not broken.any():
        return None
    idle = all(transfer.wait(APPLY_WAIT_S) for transfer in leaving)
    if not group.min(int(idle)):
        return Refusal(Code.BUSY, "the wire is broken, and a transfer of an earlier offer has not ended")
    try:
        transport.renew()
    except Exception as error:  # noqa: BLE001 - the others come to a vote, so this rank must come to it too
        return Refusal.of(Code.TRANSFER_FAILED, error)
    return None
