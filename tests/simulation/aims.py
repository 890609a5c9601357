"""Which trouble a rule is about, where somebody knows: what `guided` tries first.

An aim is spelled like ``stall after write_message 45``, for some statement near the place at which
a seed reaches the rule. After ``&`` it is one of the client of the aim before, the next one if it
has the same name; after ``@`` it is one of another client, at the same place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.ablations import Ablation

GHOST: Final = ("repeat insert_bucket 8.5", "& stall before fill_bucket 9.5")
"""A late copy of the insert comes when the bucket was dropped, and its sealer after it."""

BORN_AGAIN: Final = ("repeat insert_sink 30", "& stall before update_sink 40")
"""Another mover takes over and ends; then a late copy brings back the row as it was."""

HELPED: Final = ("repeat insert_bucket 8.5", "@ stall before fill_bucket 9.5")
"""The same, and the sealer is another client, which has helped."""

AIMS: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "P2: What is claimed": (HELPED, GHOST),
    "P2: A put": ((*GHOST, "stall after write_message 45"),),
    "P2: An ack": ((*GHOST, "lose and stall update_bucket 25"),),
    "P3": (HELPED, GHOST, ("lose and stall update_bucket 4",)),
    "P5: A bulk": (("stall before insert_bucket 45",), ("repeat insert_bucket 20",)),
    "P6: What": (("stall after write_message 45",), ("stall before read_bucket 45",)),
    "P7: A CAS that": (("lose and stall update_bucket 4",), ("lose and stall update_sink 4",)),
    "P10: A commit": (("kill after update_sink 4",),),
    "P10: A reader": (("kill after update_sink 4",),),
    "P11: What another": (("kill after read_messages 4",), ("kill before update_bucket 12",)),
    "P25": (("kill after read_messages 4",), ("kill before update_bucket 4",)),
    "P13: A deletion raises": (("stall before write_message 12",),),
    "P13: A deletion takes": (("kill after update_queue 1",), ("stall before delete_monoton 4",)),
    "P13: A slow": (
        ("stall before delete_monoton 12",),
        ("stall after update_queue 12",),
        ("stall before advance_pointer 4",),
    ),
    "P14: The": (("stall after update_bucket 4",), ("stall before write_message 4",)),
    "P18: A claim that nobody": (
        ("stall after fill_bucket 45",),
        ("stall after update_bucket 45",),
    ),
    "P19": (("stall before advance_pointer 12",), ("late advance_pointer 12",)),
    "P24": (("stall before insert_sink 45",), ("stall before insert_sink 12",)),
    "R1": (("stall before update_sink 12",), ("stall after read_sink_serial 12",)),
    "R2": (("stall after read_bucket 45",), ("stall after read_pointers 45",)),
    "R4": (("stall before update_sink 12",), ("stall after read_sink_serial 12",)),
    "R5": (("stall before update_sink 12",), ("stall after read_sink_serial 12",)),
    "R8: A CAS": (("lose and stall update_bucket 4",), ("lose and stall update_bucket 12",)),
    "R11: A bucket": (("stall before insert_bucket 12",), ("stall before insert_bucket 45",)),
    "R14: What": (("stall after read_bucket 12",), ("stall before update_bucket 12",)),
    "R14: Repair": (("stall after read_bucket 12",), ("stall before insert_sink 12",)),
    "R14: A mover": (("stall before fill_bucket 12",), ("kill after update_sink 12",)),
    "R15": (("kill after write_message 4",),),
    "R17": (("stall before update_bucket 12",),),
    "R20: A claim": (("stall before update_bucket 4",), ("stall after update_bucket 12",)),
    "R21: A CAS": (("stall after update_bucket 45",),),
    "T17: A get whose": (("stall after read_messages 45",), ("stall after update_bucket 45",)),
    "T14: A queue row": (("repeat insert_queue 4",), ("kill after insert_queue 4",)),
    "T14: A list": (("repeat insert_queue 4",),),
    "T14: A queue is": (("kill after delete_monoton 4",), ("kill before insert_queue 4",)),
    "T14: Who has": (("repeat insert_queue 4",), ("kill before insert_queue 4",)),
    "T14: It": (("repeat insert_queue 4",), ("stall after insert_queue 4",)),
    "T14: The": (("repeat insert_queue 4",), ("stall after insert_monoton 4",)),
    "T14: L": (("repeat insert_monoton 4",),),
    "T3: A transaction": (BORN_AGAIN,),
    "T3: A mover": (BORN_AGAIN,),
    "U2": (("stall after add_to_schedule 400",), ("stall before add_to_schedule 400",)),
    "U3: Of": (("stall before write_message 12", "stall after read_bucket 12"),),
    "U3: An": (("lose and stall take_key 4",), ("lose and stall take_key 12",)),
    "U4": (("stall before write_message 12",), ("stall after take_key 12",)),
    "U5: The": (("stall before take_key 12",), ("stall before take_key 45",)),
    "U5: Below": ((*GHOST, "stall before take_key 45"),),
    "U13": (("kill after take_key 4",), ("stall after take_key 12",)),
    "U14: The": (("lose and stall update_bucket 4",), ("lose update_bucket 4",)),
    "U18: Whoever": (("kill after update_sink 4",),),
}
"""By rule, as `classes` names it: groups of aims, one of which is tried at a time."""


def aims_of(rule: Ablation) -> tuple[tuple[str, ...], ...]:
    """Return the groups of aims of a rule."""
    named = f"{rule.mark}: {rule.rule}"
    return next(
        (
            aims
            for one, aims in AIMS.items()
            if named == one or named.startswith((f"{one} ", f"{one}:"))
        ),
        (),
    )
