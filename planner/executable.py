"""What the executor runs, as constraints for the search.

The executor itself has the last word before a launch (it names the reason); these words keep
the search away from what it would refuse.
"""

FIXED = "fused_loss=off"
FORBIDDEN = ("cp", "etp", "offload_optimizer", "schedule=dualpipe")


def executable_words(fixed: str, forbid: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """The user's own constraints, with the executor's added.

    >>> executable_words("tp=2", ())[0]
    'tp=2,fused_loss=off'
    """
    return ",".join(filter(None, (fixed, FIXED))), (*forbid, *FORBIDDEN)
