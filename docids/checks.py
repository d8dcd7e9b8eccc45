"""Range checks for settings; messages give the setting (with its section, as in "docids."), its range and its value."""

from collections.abc import Sequence


def at_least(settings: object, section: str = "", /, **least: float) -> None:
    """Raise ValueError if a setting is below its least value, or NaN."""
    for name, bound in least.items():
        if not getattr(settings, name) >= bound:
            raise ValueError(f"{section}{name} must be at least {bound}, got {getattr(settings, name)}.")


def above_zero(settings: object, names: Sequence[str], section: str = "") -> None:
    """Raise ValueError if a setting is not above 0."""
    for name in names:
        if not getattr(settings, name) > 0:
            raise ValueError(f"{section}{name} must be above 0, got {getattr(settings, name)}.")


def below_one(settings: object, names: Sequence[str], section: str = "") -> None:
    """Raise ValueError if a setting is not in [0, 1)."""
    for name in names:
        if not 0 <= getattr(settings, name) < 1:
            raise ValueError(f"{section}{name} must be in [0, 1), got {getattr(settings, name)}.")


def one_of(settings: object, section: str = "", /, **allowed: Sequence[str]) -> None:
    """Raise ValueError if a setting is not one of its allowed values."""
    for name, values in allowed.items():
        if getattr(settings, name) not in values:
            raise ValueError(f"{section}{name} must be one of {', '.join(values)}, got {getattr(settings, name)!r}.")
