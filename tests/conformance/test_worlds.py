"""The suite's own machinery: what fails is told, and the world works again afterwards."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .worlds import World


@pytest.mark.parametrize(("task", "texts"), [
    ("hang", ["did not end within 3 s", "stuck_here", "rank 0 (exit code None) had answered"]),
    ("die", ["rank 1 died"]),
    ("wrong", ["rank 1: one and one is two", "bits: ranks [2] have other bits than rank 0"]),
    ("unlike", ["nothing: no error", "text: 'another text' does not say 'the text'", "kind: ValueError(another text), not"]),
    ("stumble", ["KeyError: 'the reason'", "PeerLost"]),
])
def test_failures_are_told(special: Callable[..., World], task: str, texts: list[str]) -> None:
    world = special(3, "shm")
    with pytest.raises(AssertionError) as caught:
        world.run(f"faults.{task}", limit=3.0 if task == "hang" else 60.0)
    assert all(text in str(caught.value) for text in texts) and "right:" not in str(caught.value), str(caught.value)
    world.run("groups.facts", size=3)
