"""One real process a rank, over gloo."""

import multiprocessing

from agent_crew import FACTS


def run_everywhere(tmp_path, target):
    """What each of four processes answers, in rank order."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed"])  # one import of torch for all four
    results = context.Queue()
    processes = [
        context.Process(target=target, args=(rank, str(tmp_path / "rendezvous"), results))
        for rank in range(FACTS.ranks)
    ]
    for process in processes:
        process.start()
    answers = sorted(results.get(timeout=60) for _ in processes)
    for process in processes:
        process.join(timeout=30)
    assert [process.exitcode for process in processes] == [0] * FACTS.ranks
    return answers
