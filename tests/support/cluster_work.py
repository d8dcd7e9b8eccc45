"""What workers of test clusters run; imports nothing heavy."""

import os
from pathlib import Path


class Poison:
    """Kills the process that reads it."""

    def __reduce__(self):
        return os._exit, (3,)


def square(number: int) -> int:
    return number * number


def die_once(folder: str, number: int) -> int:
    mark = Path(folder) / str(number)
    if number % 3 == 0 and not mark.exists():
        mark.touch()
        os._exit(1)
    return number


def die() -> None:
    os._exit(1)


def refuse(number: int) -> None:
    raise ValueError(f"no {number}")
