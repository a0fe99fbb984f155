"""One cell of a pipeline schedule, in the letters of ``torch.distributed.pipelining``."""

import re
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, cast

ActionKind = Literal["F", "B", "I", "W"]
"""Forward; whole backward; its input-gradient part; its weight-gradient part. ``B = I + W``."""

_PATTERN = re.compile(r"(\d+)([FBIW])(\d+)")
_PAIR_PATTERN = re.compile(r"\((\d+F\d+);(\d+B\d+)\)OVERLAP_F_B")


class Action(NamedTuple):
    """One cell of a schedule, e.g. stage 2 runs forward on microbatch 0: ``2F0``.

    >>> str(Action(2, "F", 0))
    '2F0'
    """

    stage: int
    kind: ActionKind
    microbatch: int
    merged: bool = False
    """This forward runs together with the backward that follows it (DualPipe)."""

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"


def parse_action(text: str) -> Action:
    """Read one action.

    Raises:
        ValueError: If the text is not stage, letter, microbatch.

    >>> parse_action("2F0")
    Action(stage=2, kind='F', microbatch=0, merged=False)
    """
    match = _PATTERN.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not an action such as 2F0, with F, B, I or W")
    return Action(int(match[1]), cast(ActionKind, match[2]), int(match[3]))


def to_texts(actions: Iterable[Action]) -> list[str]:
    """One rank's actions as PyTorch writes them; a merged pair is one text.

    >>> to_texts([Action(0, "F", 1, merged=True), Action(3, "B", 0), Action(0, "B", 0)])
    ['(0F1;3B0)OVERLAP_F_B', '0B0']
    """
    texts: list[str] = []
    forward: Action | None = None
    for action in actions:
        if forward is not None:
            texts.append(f"({forward};{action})OVERLAP_F_B")
            forward = None
        elif action.merged:
            forward = action
        else:
            texts.append(str(action))
    if forward is not None:
        raise ValueError(f"{forward} is merged with the next action, but it is the last")
    return texts


def from_texts(texts: Sequence[str]) -> list[Action]:
    """The inverse of ``to_texts``.

    Raises:
        ValueError: If a text is neither an action nor a merged pair.

    >>> [str(a) for a in from_texts(["(0F1;3B0)OVERLAP_F_B", "0B0"])]
    ['0F1', '3B0', '0B0']
    """
    actions: list[Action] = []
    for text in texts:
        if pair := _PAIR_PATTERN.fullmatch(text.strip()):
            actions += [parse_action(pair[1])._replace(merged=True), parse_action(pair[2])]
        else:
            actions.append(parse_action(text))
    return actions
