"""Which process groups may carry weights in a background thread."""

import subprocess
import sys

import pytest

GROUP_OF_ANOTHER_KIND = """
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from eplb.agent.torch_transport import TorchTransport
from eplb.errors import ConfigError

dist.init_process_group("fake", rank=0, world_size=1, store=FakeStore())
try:
    TorchTransport(dist.group.WORLD)
except ConfigError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_transfer_group_that_is_not_gloo_is_refused_by_name():
    """There is no device here, so torch's own group without a wire stands for every backend but gloo."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", GROUP_OF_ANOTHER_KIND],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert "uses fake, must be gloo" in done.stdout
