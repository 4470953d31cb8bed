"""What happens beside the requests: pins, and the loss of an executor, each when so many answers have come."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

_SECONDS_BETWEEN_LOOKS = 0.05


@dataclass(frozen=True)
class Scene:
    """One thing to do.

    Attributes:
        share: After which part of all answers.
        play: Does it.
    """

    share: float
    play: Callable[[], Awaitable[None]]


async def play(scenes: Sequence[Scene], share: Callable[[], float]) -> None:
    """Plays every scene in its turn, each not before its time.

    Args:
        scenes: What to do.
        share: The part of all answers that has come; gets to 1.
    """
    for scene in sorted(scenes, key=lambda each: each.share):
        while share() < scene.share:
            await asyncio.sleep(_SECONDS_BETWEEN_LOOKS)
        await scene.play()
