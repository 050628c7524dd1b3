"""The worker of a replay: `python -m hotfuse.runtime.replay_worker`, a program of `child_main`.

    request   a ReplayRequest, as a parcel  ->  its findings

The programs that it runs are known to be wrong, or were: it may die of them, and that is a finding too (`Replayer`).

State: none between requests but imported modules.
"""

from __future__ import annotations

import os

from hotfuse.runtime.child_main import AskBack, run


def main() -> None:
    from hotfuse.runtime.build_worker import ONE_THREAD

    os.environ.update(ONE_THREAD)  # before numpy is imported: tier 0 is then the same every time
    run(answer, lambda greeting: None)


def answer(request: bytes, ask_back: AskBack) -> bytes:
    from hotfuse.runtime.parcel import unwrap, wrap
    from hotfuse.runtime.replay import replay_here

    return wrap(replay_here(unwrap(request)))


if __name__ == "__main__":
    main()
