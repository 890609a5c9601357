"""Every rule that a counterexample gave us has a test that fails without it: take it away and see.

    python -m tests.ablations            all, one after the other
    python -m tests.ablations P7 R1      these
    python -m tests.ablations --table    the table of docs/marks.md

Each rule is taken out of a copy of the package, and its tests run there must fail, each by an
assertion or an error of its own. Before, all of them must pass there. About an hour for all;
not a part of ``make test``, but that each rule is still to be found in the code, and each test still
there, is (``tests/unit/test_marks.py``).
"""

# ruff: noqa: E501, T201 - source text as it stands; a program that prints what it found

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import cassieq_spark

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pytest

ROOT: Final = Path(__file__).resolve().parents[1]
COPIED: Final = ("cassieq_spark", "pyspark_cassieq.py", "tests", "docs", "conf", "pyproject.toml")

LONGEST_TEST_S: Final = 180
"""Ends a test that hangs without its rule; no test expects it."""

NOT_A_PROOF: Final = (
    "Failed: Timeout",
    "ImportError",
    "IndentationError",
    "ModuleNotFoundError",
    "NameError",
    "SyntaxError",
    "UnboundLocalError",
)
"""A test that fails by one of these misses no rule: the code around it is broken."""

PASSED: Final = ""
NOT_RUN: Final = "was not run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ablation:
    """One rule: ``old`` stands once in the package; with ``new`` in its place each test fails.

    It is found by its words, wherever it stands and however it is laid out.

    Attributes:
        within: The module, where the same words stand in others, too.
    """

    mark: str
    rule: str
    old: str
    new: str
    tests: tuple[str, ...]
    within: str = ""

    @property
    def path(self) -> str:
        """The module that has the rule, from the root of the project.

        Raises:
            ValueError: None has it, or several do.
        """
        words = " ".join(self.old.split())
        found = [path for path, text in _words().items() if words in text]
        if self.within in found or len(found) == 1:
            return self.within or found[0]
        raise ValueError(f"{self.mark}: in {len(found)} modules, name one:\n{self.old}")

    def applied_to(self, source: str) -> str:
        """The module without the rule; ``new`` is indented as ``old`` is there."""
        pattern = r"\s+".join(re.escape(word) for word in self.old.split())
        found = list(re.finditer(rf"[ \t]*{pattern}\n?", source))
        if len(found) != 1:
            raise ValueError(f"{self.mark}: {len(found)} times in its module:\n{self.old}")
        (one,) = found
        shift = _indent(one.group()) - _indent(self.old)
        new = "".join(
            " " * shift + line if shift > 0 else line[-shift:]
            for line in self.new.splitlines(keepends=True)
        )
        has_end = one.group().endswith("\n") and not self.old.endswith("\n")
        return source[: one.start()] + new + ("\n" if has_end else "") + source[one.end() :]


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip())


@cache
def _words() -> dict[str, str]:
    """Each module of the package, without its layout."""
    return {
        str(path.relative_to(ROOT)): " ".join(path.read_text("utf-8").split())
        for path in sorted((ROOT / "cassieq_spark").rglob("*.py"))
    }


ABLATIONS: Final = (
    Ablation(
        mark="P1",
        rule="The sink row alone decides a transaction; nobody acts on an undecided bucket.",
        old=("    if epoch >= row.epoch:\n        return Fate.UNDECIDED\n"),
        new="",
        tests=(
            "tests/unit/test_sink_txn.py::test_p1_the_row_alone_decides_about_a_bucket",
            "tests/node/test_transaction.py::test_p1_a_reader_touches_no_undecided_bucket",
        ),
    ),
    Ablation(
        mark="P2",
        rule="A row that is absent or `sealing` means nothing until the repair pointer was read after it.",
        within="cassieq_spark/queue/seal.py",
        old=(
            """        if bucket < (await low()).repair:
            return None
"""
        ),
        new="",
        tests=(
            "tests/node/test_seal.py::test_p2_a_seal_of_a_bucket_below_the_repair_pointer_delivers_nothing",
        ),
    ),
    Ablation(
        mark="P2",
        rule="All rows of a look are read first, and the repair pointer after them.",
        old="            low = (await low_read()).repair\n",
        new="            low = scan.pointers.repair\n",
        tests=(
            "tests/node/test_reader.py::test_p2_a_bucket_that_is_dropped_while_a_reader_looks_is_not_closed",
        ),
    ),
    Ablation(
        mark="P2",
        rule="What is claimed from a row below the repair pointer is handed to nobody: it is a ghost (ADR 11).",
        old="        claimed = [one for one in claimed if one.bucket >= pointers.repair]\n",
        new="",
        tests=("tests/node/test_ghosts.py::test_p2_nothing_is_delivered_from_a_ghost",),
    ),
    Ablation(
        mark="P2",
        rule="A put reads the repair pointer after a sealed row, too, before it believes the manifest (ADR 11).",
        old="        is_gone = closed is None or await lane.is_dropped(bucket)\n",
        new="        is_gone = closed is None\n",
        tests=(
            "tests/node/test_ghosts.py::test_p2_a_put_is_not_acknowledged_by_the_manifest_of_a_ghost",
        ),
    ),
    Ablation(
        mark="P2",
        rule="An ack is called stale only of a bucket that was not dropped (ADR 11).",
        old="        if in_doubt and await lane.is_dropped(bucket):\n",
        new="        if answer.row is None and await lane.is_dropped(bucket):\n",
        tests=(
            "tests/node/test_ghosts.py::test_p2_an_ack_that_counted_is_not_called_stale_by_a_ghost",
        ),
    ),
    Ablation(
        mark="P3",
        rule="A CAS is conditional on a uuid that is never used again, so a row that is born twice fools nobody.",
        old="            version = self._next_version(before, mark or self._session.entropy.new_uuid())\n",
        new=(
            "            number = 1 if before is None else before.row_version + 1\n"
            "            version = self._next_version(before, UUID(int=number))\n"
        ),
        tests=(
            "tests/node/test_cas.py::test_p3_a_row_that_is_born_again_is_not_the_one_a_stale_cas_read",
        ),
    ),
    Ablation(
        mark="P4",
        rule="The seal's scan selects every column, so that read repair writes whole messages back.",
        old='"scan_messages", _MESSAGE.select(f"{_CHUNK}, has_key")',
        new='"scan_messages", _MESSAGE.select("first, part, count, parts")',
        tests=(
            "tests/node/test_statements.py::test_p4_the_seals_scan_selects_every_column_of_a_message",
        ),
    ),
    Ablation(
        mark="P5",
        rule="A bulk writer reads the repair pointer after its `writing` row, and below it takes another bucket.",
        within="cassieq_spark/queue/sink/writer.py",
        old="            if row is not None and not await lane.is_dropped(bucket):",
        new="            if row is not None:",
        tests=(
            "tests/node/test_bulk.py::test_p5_a_bulk_writer_reads_the_repair_pointer_after_its_row",
        ),
    ),
    Ablation(
        mark="P5",
        rule="A driver that opens a block of buckets reads the repair pointer after the last of their rows.",
        old=" or bucket < dropped_below[lane]",
        new="",
        tests=(
            "tests/node/test_bulk_buckets.py::test_p5_the_repair_pointer_is_read_after_the_rows_and_once_a_block",
        ),
    ),
    Ablation(
        mark="P5",
        rule="A bucket that is reserved and stays without a row is closed after the gap timeout.",
        old="            if is_old[bucket] and not has_any:\n                ripe.append(bucket)",
        new="            if is_old[bucket] and not has_any:\n                pass",
        tests=(
            "tests/node/test_reader.py::test_p5_a_reserved_bucket_without_a_row_blocks_nobody_and_is_closed",
        ),
    ),
    Ablation(
        mark="P5",
        rule="A put whose write was not answered seals its bucket, to know its outcome.",
        within="cassieq_spark/queue/put/producer.py",
        old="            closed = await seal.close(lane, bucket)\n",
        new="            return Proof(kept=None)\n",
        tests=(
            "tests/node/test_put.py::test_p5_a_put_whose_write_is_never_answered_settles_its_own_outcome",
        ),
    ),
    Ablation(
        mark="P6",
        rule="A row outside the manifest is delivered to nobody.",
        old=(
            "            wanted_here = span & planned.runs\n"
            "            if not wanted_here:\n"
            "                continue\n"
            "            seen |= wanted_here\n"
        ),
        new=("            wanted_here = span\n            seen |= span & planned.runs\n"),
        tests=(
            "tests/node/test_seal.py::test_p6_a_row_outside_the_manifest_stays_where_it_is_and_is_never_delivered",
        ),
    ),
    Ablation(
        mark="P6",
        rule="What is gone is never put again: it may have been delivered.",
        old="kept=None if is_gone else everything",
        new="kept=Runs() if is_gone else everything",
        tests=(
            "tests/node/test_put.py::test_p6_a_put_into_a_bucket_that_was_dropped_is_ambiguous_and_never_sent_again",
        ),
    ),
    Ablation(
        mark="P7",
        rule="A CAS whose answer was lost is sent again, the same statement, until it is answered.",
        old="                metrics.CAS_UNKNOWN.inc()\n",
        new="                return _Answer(is_applied=False, was_sent_once=True)\n",
        tests=(
            "tests/node/test_cas.py::test_p7_a_cas_that_lands_between_two_sends_has_happened_once",
            "tests/node/test_cas.py::test_p7_a_lost_answer_is_settled_by_sending_the_same_statement_again",
        ),
    ),
    Ablation(
        mark="P7",
        rule="A CAS that was refused on its second sending has happened if its uuid is among the tags.",
        old="            if now is not None and now.version.tags.has(version.writer):\n",
        new="            if False:\n",
        tests=(
            "tests/node/test_cas.py::test_p7_a_cas_that_took_effect_and_was_overtaken_has_happened",
        ),
    ),
    Ablation(
        mark="P8",
        rule="Buckets belong to a task attempt; what the commit does not list is void.",
        old=" and place in row.listed",
        new="",
        tests=(
            "tests/node/test_bulk.py::test_p8_attempts_have_buckets_of_their_own_and_the_loser_is_void",
        ),
    ),
    Ablation(
        mark="T1",
        rule="A bulk writer takes no chunk for which its bucket has no ids left.",
        old="        if not 1 <= count <= self.capacity():\n",
        new="        if False:\n",
        tests=(
            "tests/node/test_bulk.py::test_t1_a_writer_that_is_given_more_than_its_room_writes_nothing_of_it",
        ),
    ),
    Ablation(
        mark="T1",
        rule="A mover cuts its chunks by the room that is left in the bucket.",
        old="encode.pack_into(rows, capacity=into.capacity)",
        new="encode.pack(rows, bucket_size=target.bucket_size)",
        tests=(
            "tests/node/test_bulk.py::test_t1_whatever_the_bucket_size_each_moved_message_has_an_id_of_its_own_and_can_be_acked",
        ),
    ),
    Ablation(
        mark="T1",
        rule="No bucket is prepared with more messages than it has ids.",
        old="    if filled.count > lane.bucket_size:\n",
        new="    if False:\n",
        tests=("tests/node/test_bulk.py::test_t1_no_bucket_is_prepared_with_more_than_its_ids",),
    ),
    Ablation(
        mark="T1",
        rule="A seal leaves out what lies beyond the bucket's last id.",
        old="chunk.last) & ids\n",
        new="chunk.last)\n",
        tests=(
            "tests/node/test_bulk.py::test_t1_a_seal_takes_nothing_into_its_manifest_that_is_beyond_the_bucket",
        ),
    ),
    Ablation(
        mark="P9",
        rule="A sink id belongs to one query.",
        old="    elif row.query_id != who.query_id:\n",
        new="    elif False:\n",
        tests=(
            "tests/unit/test_sink_txn.py::test_p9_another_query_checkpoint_or_queue_may_not_write_under_the_id",
        ),
    ),
    Ablation(
        mark="P9",
        rule="A sink id belongs to one checkpoint location.",
        old="    elif row.checkpoint != who.checkpoint:\n",
        new="    elif False:\n",
        tests=(
            "tests/unit/test_sink_txn.py::test_p9_another_query_checkpoint_or_queue_may_not_write_under_the_id",
        ),
    ),
    Ablation(
        mark="P10",
        rule="A commit rolls forward the list that it overwrites, before it.",
        old="                await roll_forward(lane, who.sink_id, earlier)\n",
        new="",
        tests=(
            "tests/node/test_transaction.py::test_p10_what_a_dead_driver_committed_is_rolled_forward_before_its_list_goes",
        ),
    ),
    Ablation(
        mark="P10",
        rule="A reader rolls a decided transaction forward, if its driver died before.",
        old="                listed += [(sink_id, *entry) for entry in sink.listed]\n",
        new="                pass\n",
        tests=("tests/node/test_transaction.py::test_p10_a_reader_rolls_forward_what_is_decided",),
    ),
    Ablation(
        mark="P11",
        rule="What a batch holds is decided once per run and batch.",
        old="        if key not in self._plans:\n",
        new="        if True:\n",
        tests=("tests/spark/test_planner.py::test_a_plan_is_made_once_per_run_and_batch",),
    ),
    Ablation(
        mark="P11",
        rule="What another consumer holds by now is left out of a replay.",
        old=(
            "                # Else what is missing was settled, before a crash kept Spark from committing.\n"
            "                continue\n"
        ),
        new=(
            "                plan.append(Planned(bucket=leased.bucket, runs=leased.runs, delivery_count=1, lease_id=leased.lease_id))\n"
            "                continue\n"
        ),
        tests=(
            "tests/spark/test_planner.py::test_what_another_consumer_got_meanwhile_is_left_out_or_fails",
        ),
    ),
    Ablation(
        mark="T21",
        rule="A row that cannot be read is seen as such by a look, which goes on with all others.",
        old="            found[bucket] = _as_seen(self._lane, bucket, rows[0]) if is_there else None\n",
        new="            found[bucket] = _stored(self._lane, bucket, rows[0]) if is_there else None\n",
        tests=(
            "tests/node/test_corrupt.py::test_t21_a_get_goes_on_with_all_others_and_says_which_row_it_cannot_read",
            "tests/node/test_corrupt.py::test_t21_repair_heals_the_buckets_beside_it_and_names_it",
        ),
    ),
    Ablation(
        mark="T21",
        rule="One sink, or bucket, that cannot be read or changed stops no other from being settled.",
        old="    ended = zip(todo, await lane.store.session.each(work, todo), strict=True)\n",
        new="    ended = zip(todo, await lane.store.session.map(work, todo), strict=True)\n",
        tests=(
            "tests/node/test_corrupt.py::test_t21_one_sink_that_cannot_be_read_hides_no_others_batch",
            "tests/node/test_corrupt.py::test_t21_one_bucket_that_holds_another_number_than_is_listed_hides_no_other",
        ),
    ),
    Ablation(
        mark="T21",
        rule="A get that found nothing, and was not answered about something, does not say that there is nothing.",
        old='                    self._pass_over(bucket, why)  # decided or not: "none" would be a guess [T21]\n',
        new="                    pass\n",
        tests=(
            "tests/node/test_corrupt.py::test_t21_what_is_not_known_of_one_sink_is_told_only_where_nothing_else_is_found",
        ),
    ),
    Ablation(
        mark="T21",
        rule="Dead sets of a row that cannot be read may still be there: the rows of their moves stay.",
        old="                has_missed = True  # dead sets are missed, too\n",
        new="",
        tests=(
            "tests/node/test_corrupt.py::test_t21_the_row_of_a_move_stays_while_nobody_knows_whether_its_set_is_there",
        ),
    ),
    Ablation(
        mark="T21",
        rule="Stored messages that cannot be read stay leased: given back, they would be in every next get.",
        old="        if isinstance(read, DataLoss | RowCorrupt):\n",
        new="        if False:\n",
        tests=(
            "tests/node/test_corrupt.py::test_t21_stored_messages_that_cannot_be_read_are_in_no_other_get",
        ),
    ),
    Ablation(
        mark="P12",
        rule="A bucket that was dropped counts as acked on a replay.",
        old=' == "fail" and not is_gone:',
        new=' == "fail":',
        tests=(
            "tests/spark/test_planner.py::test_a_bucket_that_was_dropped_counts_as_acked_and_says_so",
        ),
    ),
    Ablation(
        mark="P13",
        rule="A reservation never creates the monoton row: without one the queue is deleted.",
        within="cassieq_spark/queue/reserve.py",
        old="                raise await lane.ended()\n",
        new=(
            """                await lane.monotons.insert(Monoton(next_id=0, reserved_us=0))
                continue
"""
        ),
        tests=(
            "tests/node/test_pointers.py::test_p13_a_reservation_does_not_bring_a_deleted_lane_back",
        ),
    ),
    Ablation(
        mark="P13",
        rule="A deletion raises the repair pointer above every bucket, so that late puts fail their check.",
        old="    if not pointers.is_deleted:\n        return Raise(dropped=pointers.repair)\n",
        new="",
        tests=("tests/node/test_put.py::test_r25_a_put_that_sleeps_through_a_deletion_is_told_so",),
    ),
    Ablation(
        mark="P13",
        rule="A deletion takes the monoton row away: no id is handed out any more.",
        old="    if end is not None:\n        return Close(end=end)\n",
        new="",
        tests=(
            "tests/node/test_put.py::test_p13_a_put_never_creates_a_monoton_row",
            "tests/explicit/test_born_again_worlds.py::test_no_interleaving_breaks_an_invariant",
        ),
    ),
    Ablation(
        mark="P13",
        rule="A slow deleter removes only the queue row that it has read.",
        within="cassieq_spark/store/tables/queues.py",
        old="(old.value.name,), old)\n",
        new="(old.value.name,), await self.read(old.value.name) or old)\n",
        tests=("tests/node/test_life.py::test_p13_two_may_delete_and_create_at_once",),
    ),
    Ablation(
        mark="P14",
        rule="A drop is written a day ahead, so that what lands late stays shadowed.",
        old="DROP_AHEAD_US: Final = 86_400_000_000\n",
        new="DROP_AHEAD_US = -1\n",
        tests=("tests/node/test_repair.py::test_p14_what_lands_after_the_drop_stays_shadowed",),
    ),
    Ablation(
        mark="P14",
        rule="The repair pointer passes only an unbroken run of finished buckets.",
        old="    return row.status in FINISHED and row.changed_us <= before_us\n",
        new="    return row.changed_us <= before_us\n",
        tests=(
            "tests/node/test_repair.py::test_p14_a_bucket_above_one_that_waits_is_not_dropped_from_under_it",
        ),
    ),
    Ablation(
        mark="P15",
        rule="A reservation begins behind every bucket that is known closed.",
        old="max(-(-old.value.next_id // size), above)",
        new="-(-old.value.next_id // size)",
        tests=(
            "tests/node/test_seal.py::test_p15_a_reservation_begins_behind_what_is_known_closed",
        ),
    ),
    Ablation(
        mark="P15",
        rule="A reservation takes whole buckets, from the next boundary on.",
        old="-(-old.value.next_id // size)",
        new="(old.value.next_id // size)",
        tests=("tests/node/test_seal.py::test_p15_a_reservation_is_whole_buckets_of_its_own",),
    ),
    Ablation(
        mark="P16",
        rule="A seal and the sealer's first claim are one CAS.",
        old="    if terms is not None:\n",
        new="    if False:\n",
        tests=("tests/node/test_seal.py::test_p16_a_sealer_claims_by_the_same_cas_that_seals",),
    ),
    Ablation(
        mark="P17",
        rule="A claim's hint is written before its CAS.",
        old="        while needed := self.short_of_hints(folded, moment):\n",
        new="        while needed := dict[int, set[int]]():\n",
        tests=("tests/node/test_claims.py::test_p17_the_hint_is_written_before_the_claim",),
    ),
    Ablation(
        mark="P17",
        rule="A hint whose minute the time pointer has passed meanwhile is written again.",
        old=" if minute_of(one.lease.until_us) < passed]",
        new=" if False]",
        tests=(
            "tests/node/test_claims.py::test_p17_a_hint_that_the_time_pointer_has_passed_is_written_again",
        ),
    ),
    Ablation(
        mark="P17",
        rule="The time pointer stays half a minute behind: a hint may come late.",
        old="(minute + 1) * MINUTE_US + PASS_AFTER_US < now_us",
        new="(minute + 1) * MINUTE_US < now_us",
        tests=(
            "tests/unit/test_pointer.py::test_p17_a_minute_is_passed_only_when_late_hints_had_their_time",
        ),
    ),
    Ablation(
        mark="P17",
        rule="The time pointer stays at a minute in which something comes back.",
        old="            return bucket in unread or still_due(rows.get(bucket), minute)\n",
        new="            return False\n",
        tests=(
            "tests/node/test_claims.py::test_p17_the_time_pointer_stays_at_a_minute_that_still_matters",
        ),
    ),
    Ablation(
        mark="T7",
        rule="The time is the median of several nodes': one whose clock is wrong moves nothing.",
        old="    lower, upper = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]\n",
        new="    lower, upper = ordered[0], ordered[0]\n",
        tests=("tests/unit/test_clock.py::test_t7_one_node_whose_clock_is_wrong_moves_nothing",),
    ),
    Ablation(
        mark="T7",
        rule="Of two nodes that disagree a new client believes the earlier.",
        old="    return lower if own is None or",
        new="    return upper if own is None or",
        tests=(
            "tests/unit/test_clock.py::test_t7_of_two_that_disagree_for_long_the_earlier_is_believed_at_first",
        ),
    ),
    Ablation(
        mark="T7",
        rule="Of two nodes that disagree a running client believes the one like itself.",
        old="abs(lower - own) <= abs(upper - own) else upper",
        new="True else upper",
        tests=(
            "tests/unit/test_clock.py::test_t7_of_two_that_disagree_a_clock_that_runs_believes_the_one_like_itself",
        ),
    ),
    Ablation(
        mark="T7",
        rule="A first measurement waits for a majority of the nodes.",
        old="            is_sure = agreeing > known // 2\n",
        new="            is_sure = agreeing > 0\n",
        tests=("tests/unit/test_clock.py::test_t7_a_first_measurement_waits_for_a_majority",),
    ),
    Ablation(
        mark="T7",
        rule="Nodes that are fewer than half do not tell the time.",
        old="        if not is_half:\n",
        new="        if not offsets:\n",
        tests=(
            "tests/unit/test_clock.py::test_t7_a_wrong_node_that_is_the_only_one_to_answer_moves_nothing",
        ),
    ),
    Ablation(
        mark="T7",
        rule="A round trip that leaves too much open is not used.",
        old="        return self.most - self.least <= WIDEST_US\n",
        new="        return True\n",
        tests=(
            "tests/unit/test_clock.py::test_t7_a_first_sample_that_took_seconds_is_not_used",
            "tests/unit/test_clock.py::test_t7_however_slow_the_answers_two_clients_are_no_further_apart_than_the_margin",
            "tests/unit/test_clock.py::test_t7_a_later_measurement_that_is_slow_corrects_nothing",
        ),
    ),
    Ablation(
        mark="T7",
        rule="A reader that sees the time pointer ahead of now starts some hours back.",
        old="passed if passed <= now else now - REACH_MINUTES",
        new="passed",
        tests=(
            "tests/node/test_time.py::test_t7_what_comes_back_is_found_though_the_time_pointer_is_an_hour_ahead",
            "tests/node/test_time.py::test_t7_a_long_poll_hears_of_it_too",
        ),
    ),
    Ablation(
        mark="T7",
        rule="A hint below a pointer that is ahead of now is written behind it, too.",
        old="    return (at,) if at >= passed else (at, passed + 1)\n",
        new="    return (at,)\n",
        tests=(
            "tests/node/test_time.py::test_t7_a_hint_written_below_the_pointer_is_found_when_now_has_reached_it",
        ),
    ),
    Ablation(
        mark="T7",
        rule="No hint is written at a minute that is over.",
        old="    at = max(minute, now)\n",
        new="    at = minute\n",
        tests=("tests/unit/test_pointer.py::test_t7_a_hint_is_written_where_it_will_be_found",),
    ),
    Ablation(
        mark="T7",
        rule="A reader carries what is hinted below a pointer that is ahead over to it.",
        old="        await self._time.carry_over(scan.pointers, hints, self._finished, now_us=now_us)\n",
        new="",
        tests=(
            "tests/node/test_time.py::test_t7_a_reader_carries_hints_over_to_a_pointer_that_is_ahead",
        ),
    ),
    Ablation(
        mark="T7",
        rule="A hint whose write took long is written again.",
        old="            if took_us > LATE_AFTER_US:\n",
        new="            if False:\n",
        tests=(
            "tests/node/test_time.py::test_t7_a_hint_whose_write_took_minutes_is_written_again",
        ),
    ),
    Ablation(
        mark="T13",
        rule="The time in which a machine slept while Cassandra is away counts.",
        old="        slept_us = 0 if self._counts_sleep else self._jump_us(old, self._base.monotonic())\n",
        new="        slept_us = 0\n",
        tests=(
            "tests/unit/test_clock.py::test_t13_time_goes_on_while_the_machine_sleeps_and_cassandra_is_away",
        ),
    ),
    Ablation(
        mark="T13",
        rule="Monotonic time goes on while a machine sleeps, where the platform has such a clock.",
        old='getattr(time, "CLOCK_BOOTTIME", None)\n',
        new="None\n",
        tests=(
            "tests/unit/test_clock.py::test_t13_monotonic_time_counts_what_a_suspended_machine_sleeps",
        ),
    ),
    Ablation(
        mark="P18",
        rule="A claim that is answered after its own end is not handed out.",
        old="[one for one in claimed if one.lease.until_us > now_us]",
        new="list(claimed)",
        tests=(
            "tests/node/test_claims.py::test_p18_a_claim_answered_after_its_end_is_given_back_uncounted",
        ),
    ),
    Ablation(
        mark="P18",
        rule="A claim that nobody held uses up no delivery.",
        old="    uncounted = 0 if count_delivery else 1\n",
        new="    uncounted = 0\n",
        tests=("tests/unit/test_lease.py::test_p18_a_claim_that_nobody_held_uses_up_no_delivery",),
    ),
    Ablation(
        mark="P18",
        rule="A lease is claimed again only a margin after its end: two measured clocks differ less.",
        old="now_us > lease.until_us + EXPIRY_MARGIN_US",
        new="now_us > lease.until_us",
        tests=(
            "tests/unit/test_lease.py::test_a_live_lease_is_nobody_elses_until_the_margin_is_over",
        ),
    ),
    Ablation(
        mark="T17",
        rule="A get hands out nothing that ran out while bodies were read.",
        old=(
            "    ended = [one for one in claimed if one.lease.until_us <= now_us]\n"
            "    if not ended:\n"
        ),
        new=(
            "    ended = [one for one in claimed if one.lease.until_us <= now_us]\n    if True:\n"
        ),
        tests=(
            "tests/node/test_time.py::test_t17_a_get_hands_out_nothing_that_ran_out_while_bodies_were_read",
            "tests/node/test_time.py::test_t17_a_look_behind_a_claim_that_slept_hands_out_the_rest",
        ),
    ),
    Ablation(
        mark="T17",
        rule="A get that read too slowly claims for longer than a read takes.",
        old="max(wanted.visibility_us, 2 * min(took_us))",
        new="wanted.visibility_us",
        tests=(
            "tests/node/test_time.py::test_t17_a_get_that_reads_slowly_each_time_claims_for_longer",
        ),
    ),
    Ablation(
        mark="T17",
        rule="A get whose process stood still once claims for no longer.",
        old="            if len(took_us) > 1:\n",
        new="            if True:\n",
        within="cassieq_spark/queue/get/getter.py",
        tests=(
            "tests/node/test_time.py::test_t17_a_get_whose_process_stood_still_once_claims_for_no_longer",
        ),
    ),
    Ablation(
        mark="P19",
        rule="A pointer's value is its own write timestamp: the largest wins, whoever writes last.",
        old="        return value, value, self._lane, pointer.value\n",
        new="        return self._session.clock.now_us(), value, self._lane, pointer.value\n",
        tests=(
            "tests/node/test_pointers.py::test_p19_a_pointer_never_goes_back_whoever_writes_last",
        ),
    ),
    Ablation(
        mark="P20",
        rule="The consistency is on each statement, never a driver's default.",
        old="                prepared.consistency_level = statement.consistency\n",
        new="",
        tests=(
            "tests/node/test_statements.py::test_p20_both_consistencies_are_on_the_prepared_statement",
        ),
    ),
    Ablation(
        mark="P20",
        rule="The serial consistency of a CAS is on the statement, too.",
        old="                    prepared.serial_consistency_level = statement.serial_consistency\n",
        new="                    pass\n",
        tests=(
            "tests/node/test_statements.py::test_p20_both_consistencies_are_on_the_prepared_statement",
        ),
    ),
    Ablation(
        mark="P20",
        rule="A quorum read is sticky: what one reader saw, each later one sees.",
        old="\"read_repair = 'BLOCKING'\"",
        new="\"read_repair = 'NONE'\"",
        tests=("tests/node/test_statements.py::test_p20_a_quorum_read_is_sticky_in_every_table",),
    ),
    Ablation(
        mark="P21",
        rule="A client in another data centre than the queue's is refused.",
        old="    if not at_home(store, row):\n",
        new="    if False:\n",
        tests=(
            "tests/node/test_cas.py::test_p21_a_client_in_another_data_centre_than_the_queues_is_refused",
        ),
    ),
    Ablation(
        mark="P21",
        rule="A queue is ended in its home only: elsewhere the repair pointer is raised for another quorum (ADR 17).",
        old=("        check_home(store, found.value)\n        lane = found.value.lanes[0]\n"),
        new="        lane = found.value.lanes[0]\n",
        tests=(
            "tests/fault/test_datacenters.py::test_p21_whoever_is_elsewhere_can_neither_use_nor_change_nor_end_a_queue",
            "tests/fault/test_datacenters.py::test_p21_a_deletion_that_was_cut_off_is_finished_at_home_only",
        ),
    ),
    Ablation(
        mark="P21",
        rule="What a home shows as active may have ended there: its repair pointer says so (ADR 17).",
        old="    return (await store.lane(row.lanes[0]).pointers.read()).is_deleted\n",
        new="    return False\n",
        tests=("tests/node/test_homes.py::test_p21_an_ended_queue_that_is_still_shown_is_gone",),
    ),
    Ablation(
        mark="P21",
        rule="A home finds its queues by its own quorum, while other data centres are away (ADR 17).",
        old="    found = await store.queues.find(name)\n",
        new="    found = await None\n",
        tests=(
            "tests/fault/test_datacenters.py::test_p21_a_queue_lives_on_without_the_other_data_centre",
        ),
    ),
    Ablation(
        mark="P21",
        rule="A full repair elsewhere ends no due lane: it hears of the schedule late (ADR 25).",
        old="        if not any(DueLane.said_by(queue, lane) for queue in elsewhere):\n",
        new="",
        tests=(
            "tests/node/test_homes.py::test_p21_a_full_pass_elsewhere_ends_no_due_lane_of_a_queue",
        ),
    ),
    Ablation(
        mark="P22",
        rule="A `writing` row says where its block ends: the rest of it is no gap.",
        old="self._jumps[bucket] = (sink.block_end, until)",
        new="self._jumps[bucket] = (type(bucket)(bucket + 1), until)",
        tests=(
            "tests/node/test_reader.py::test_p22_the_rest_of_a_block_that_is_being_written_is_no_gap",
        ),
    ),
    Ablation(
        mark="P23",
        rule="The same start offset gets the same answer, and claims nothing.",
        old="        if self._pending is not None and self._pending[0] == key:\n",
        new="        if False:\n",
        tests=(
            "tests/spark/test_planner.py::test_the_same_start_has_the_same_answer_and_claims_nothing",
        ),
    ),
    Ablation(
        mark="P24",
        rule="A mover looks whether the dead set is still there after it has created the sink row.",
        old="    if await _is_there(lane, bucket, set_id):\n",
        new="    if await True:\n",
        tests=(
            "tests/node/test_repair.py::test_p24_a_mover_that_sleeps_before_any_step_while_another_moves_all",
        ),
    ),
    Ablation(
        mark="P23",
        rule="Leases that nobody asks for any more are renewed no longer.",
        old="        if now - self._called > self._give_up_after_s:\n",
        new="        if False:\n",
        tests=(
            "tests/node/test_claims.py::test_p23_leases_that_nobody_asks_for_any_more_are_let_go",
        ),
    ),
    Ablation(
        mark="P25",
        rule="A restart takes over the leases that its offset names, whoever's run they carry.",
        old="row = rules.take_over(row, leases, run=run, until_us=until_us, now_us=now_us)",
        new="row = rules.extend(row, leases, until_us=until_us, now_us=now_us)",
        tests=("tests/spark/test_planner.py::test_a_second_run_takes_the_leases_over_at_once",),
    ),
    Ablation(
        mark="P26",
        rule="The revision of an updated body is in the bucket row, whatever becomes of the lease.",
        old="        revisions = tuple(sorted({**dict(revisions), offset: action.revision}.items()))\n",
        new="        pass\n",
        tests=(
            "tests/unit/test_lease.py::test_p26_a_revised_message_has_a_lease_of_its_own_and_keeps_its_revision",
            "tests/node/test_get.py::test_p26_an_update_outlives_its_lease",
        ),
    ),
    Ablation(
        mark="P28",
        rule="Who lost a race goes to another bucket.",
        old="TRIES: Final = 4\n",
        new="TRIES: Final = 1\n",
        tests=(
            "tests/node/test_reader.py::test_p28_a_reader_that_lost_its_race_goes_to_another_bucket",
        ),
    ),
    Ablation(
        mark="P28",
        rule="Who pauses after a lost race reads its row again.",
        old="self._is_pausing, self._must_read = True, self._losses > 1\n",
        new="self._is_pausing, self._must_read = True, False\n",
        tests=(
            "tests/node/test_contention.py::test_p28_who_pauses_after_a_lost_race_reads_its_row_again",
        ),
    ),
    Ablation(
        mark="P28",
        rule="Who lost a seal leaves that bucket to the winner.",
        old="        is_lost = row.status is Status.SEALING or (bool(row.leases) and not closed.is_ours)\n",
        new="        is_lost = row.status is Status.SEALING\n",
        tests=("tests/node/test_choice.py::test_p28_who_lost_a_seal_goes_to_another_bucket",),
    ),
    Ablation(
        mark="P28",
        rule="A seal that a rival has just begun is left to it.",
        old="                helps=not left or bucket in scan.half_sealed or not self._choice.has_met,\n",
        new="",
        tests=(
            "tests/node/test_choice.py::test_p28_a_seal_that_was_begun_just_now_is_left_to_a_rival",
        ),
    ),
    Ablation(
        mark="P28",
        rule="A rival's seal that has not ended after a second is helped with.",
        old="            place = 3 if is_young and chooser.has_met else 0\n",
        new="            place = 3 if chooser.has_met else 0\n",
        tests=(
            "tests/node/test_choice.py::test_p28_a_rival_is_left_alone_with_a_seal_until_it_may_be_dead",
        ),
    ),
    Ablation(
        mark="P28",
        rule="With rivals, open buckets come before those that they are at work in.",
        old="        ours, theirs = self._choice.split(scan.candidates)\n",
        new="        ours, theirs = scan.candidates, {}\n",
        tests=(
            "tests/node/test_choice.py::test_p28_with_a_rival_open_buckets_come_before_those_it_is_at_work_in",
        ),
    ),
    Ablation(
        mark="P28",
        rule="Once clients have met, each get tries free buckets in an order of its own.",
        old="        return hash((self.draw, bucket)) if self.keeps_apart else bucket\n",
        new="        return bucket\n",
        tests=(
            "tests/unit/test_choice_world.py::test_p28_free_buckets_are_tried_in_an_order_of_each_get_once_clients_have_met",
        ),
    ),
    Ablation(
        mark="P28",
        rule="One get in so many takes fresh messages by id.",
        old="        if self.is_by_id and has_fresh(seen.row, now_us):\n",
        new="        if False:\n",
        tests=(
            "tests/unit/test_choice_world.py::test_p28_a_fresh_message_is_tried_within_x",
            "tests/node/test_choice.py::test_p28_one_get_in_so_many_goes_by_id_whoever_is_at_work_there",
        ),
    ),
    Ablation(
        mark="P28",
        rule="A get by id takes what is fresh before what came back.",
        old="    left.rotate(first.fresh_first)\n",
        new="",
        tests=(
            "tests/node/test_choice.py::test_p28_a_get_by_id_takes_what_is_fresh_before_what_always_returns",
        ),
    ),
    Ablation(
        mark="P28",
        rule="A get by id seals open buckets below the first that is sealed.",
        old="        if has_open and self._choice.is_by_id:\n",
        new="        if False:\n",
        tests=(
            "tests/node/test_choice.py::test_p28_a_get_by_id_seals_what_is_open_below_the_first_sealed_bucket",
        ),
    ),
    Ablation(
        mark="P28",
        rule="A bucket whose holder only extends is free.",
        old="        lately_us = min(lately_us, max(lately_us if at is None else at for at in began))\n",
        new="",
        tests=("tests/node/test_choice.py::test_p28_a_bucket_whose_holder_only_extends_is_free",),
    ),
    Ablation(
        mark="R1",
        rule="The row that a commit reads must show the epoch that every task wrote under.",
        old="    if has_skipped or epochs != {row.epoch}:\n",
        new="    if has_skipped:\n",
        tests=(
            "tests/unit/test_sink_txn.py::test_r1_the_row_must_show_the_epoch_that_every_task_wrote_under",
            "tests/node/test_transaction.py::test_r1_a_commit_reads_the_row_anew_and_must_find_its_own_epoch",
        ),
    ),
    Ablation(
        mark="R2",
        rule="A producer that slept looks at its bucket before it writes into it.",
        old="        if began - block.proven_at <= min(",
        new="        if True or began <= min(",
        tests=("tests/node/test_put.py::test_r2_a_producer_that_slept_looks_before_it_writes",),
    ),
    Ablation(
        mark="P6",
        rule="Callers whose messages are put together are each told of their own only.",
        old="one.answer.set_result(replace(found, each=found.each[start:end]))\n",
        new="one.answer.set_result(found)\n",
        tests=(
            "tests/unit/test_together.py::test_p6_each_is_told_what_became_of_its_own_messages",
            "tests/node/test_together.py::test_p6_what_cannot_be_settled_is_told_to_each_caller_by_its_own_ids",
        ),
    ),
    Ablation(
        mark="T5",
        rule="What several callers wait for runs under the limits of none of them.",
        old="    task = asyncio.get_running_loop().create_task(work, context=Context())\n",
        new="    task = asyncio.get_running_loop().create_task(work)\n",
        tests=(
            "tests/unit/test_together.py::test_t5_what_is_shared_runs_under_nobodys_limits_as_long_as_the_last_one_may_wait",
        ),
    ),
    Ablation(
        mark="T5",
        rule="A put that is not answered holds up none of those that come later.",
        old="        line = self._lines.get_or_make(asked.kind, lambda: _Line(Places(1, clock)))\n",
        new="        line = self._lines.get_or_make(asked.kind, lambda: _Line(Places(1, __import__('cassieq_spark.testing').testing.ManualClock())))\n",
        tests=(
            "tests/unit/test_together.py::test_t5_a_put_that_is_not_answered_holds_up_no_other",
        ),
    ),
    Ablation(
        mark="T12",
        rule="A producer looks before repair may have dropped its bucket, however long linger is.",
        old="min(lane.settings.linger_s, lane.rest_s)",
        new="lane.settings.linger_s",
        tests=(
            "tests/node/test_time.py::test_t12_a_producer_looks_before_repair_may_have_dropped_its_bucket",
        ),
    ),
    Ablation(
        mark="R3",
        rule="A writer says that it is at work before its first row.",
        old="""    if not is_row_fresh:
        await beat()
""",
        new="",
        tests=(
            "tests/node/test_transaction.py::test_r3_a_writer_is_known_to_be_at_work_from_its_first_moment",
        ),
    ),
    Ablation(
        mark="R3",
        rule="An abort is counted, so that repair waits longer for the next.",
        old="        aborts=row.aborts + 1,\n",
        new="        aborts=row.aborts,\n",
        tests=(
            "tests/unit/test_sink_txn.py::test_r3_an_abort_ends_the_epoch_with_nothing_in_it_and_is_counted",
        ),
    ),
    Ablation(
        mark="R4",
        rule="A batch older than the last one is refused, never skipped.",
        old="    if batch_id < row.last:\n",
        new="    if False:\n",
        tests=(
            "tests/unit/test_sink_txn.py::test_r4_a_batch_older_than_the_last_is_diverged_never_skipped",
            "tests/node/test_transaction.py::test_r4_an_older_batch_is_diverged",
        ),
    ),
    Ablation(
        mark="R5",
        rule="The commit registers its run; superseded ones stay on the row and are refused.",
        old="past=_with_past(row, who.run)",
        new="past=row.past",
        tests=(
            "tests/unit/test_sink_txn.py::test_r5_the_commit_registers_the_run_and_supersedes_the_old_one",
            "tests/node/test_transaction.py::test_r5_a_restarted_run_takes_over_and_the_old_one_is_fenced",
        ),
    ),
    Ablation(
        mark="R6",
        rule="Expired leases crowd no row: the claim that takes from them merges them.",
        old="        and sum(not is_expired(lease, now_us) for lease in row.leases) >= CROWDED_LEASES\n",
        new="        and len(row.leases) >= CROWDED_LEASES\n",
        tests=(
            "tests/unit/test_lease.py::test_r6_expired_leases_crowd_no_row_and_are_merged_by_the_claim",
        ),
    ),
    Ablation(
        mark="R6",
        rule="A look for messages goes on behind a bucket with 2,048 live leases.",
        old="            if is_theirs or is_crowded(row.value, now_us=now_us):\n",
        new="            if available < 0:\n",
        tests=(
            "tests/node/test_row_limits.py::test_t11_a_get_looks_for_other_buckets_beside_a_crowded_one",
        ),
    ),
    Ablation(
        mark="R7",
        rule="Any number of distinct delays fits a row, by wider steps: no seal is refused for its size.",
        old="        if len(merged) <= limit:\n",
        new="        if merged is not None:\n",
        tests=(
            "tests/unit/test_bucket.py::test_r7_any_number_of_distinct_delays_fits_a_row_by_wider_steps",
        ),
    ),
    Ablation(
        mark="R8",
        rule="A row keeps one tag per client, however often that client writes.",
        old="[old for old in self.entries if old.client != tag.client] + [tag]",
        new="[*self.entries, tag]",
        tests=("tests/node/test_cas.py::test_r8_a_client_has_one_tag_however_often_it_writes",),
    ),
    Ablation(
        mark="R8",
        rule="A CAS whose tag may have been pushed out is neither applied nor refused: its effects are looked at.",
        old="            if now is not None and now.version.tags.evicted > base:\n",
        new="            if False:\n",
        tests=(
            "tests/node/test_cas.py::test_r8_more_clients_than_tags_make_a_lost_answer_a_look_at_effects",
        ),
    ),
    Ablation(
        mark="R9",
        rule="Plain writes carry the server's time, not a client's.",
        old="self.session.use_client_timestamp = False",
        new="self.session.use_client_timestamp = True",
        tests=("tests/node/test_statements.py::test_r9_plain_writes_carry_the_servers_time",),
    ),
    Ablation(
        mark="R10",
        rule="One call seals at most eight young buckets.",
        old="        for _ in range(SEALS_PER_CALL):\n",
        new="        for _ in list(left):\n",
        tests=("tests/node/test_reader.py::test_r10_one_call_seals_at_most_so_many_young_buckets",),
    ),
    Ablation(
        mark="R10",
        rule="All buckets without a row cost one read of the repair pointer together.",
        old="            if bucket >= low and not self.undecided",
        new="            if bucket >= self._lane.read_pointers().repair and not self._undecided",
        tests=(
            "tests/node/test_reader.py::test_r10_silent_buckets_cost_one_read_of_the_repair_pointer_together",
        ),
    ),
    Ablation(
        mark="R11",
        rule="A gap is as old as the oldest later row says, so a consumer of this moment can close it.",
        old="                oldest = min(oldest, times[later.pop(0)])\n",
        new="                later.pop(0)\n",
        tests=("tests/node/test_reader.py::test_r11_a_gap_is_as_old_as_any_later_bucket_says",),
    ),
    Ablation(
        mark="R11",
        rule="A bucket that was closed before its writer came is replaced by another.",
        old="    is_ours = isinstance(outcome, Applied) and outcome.now.value.status is Status.WRITING\n",
        new="    is_ours = True\n",
        tests=("tests/node/test_bulk.py::test_r11_a_refused_bucket_is_replaced",),
    ),
    Ablation(
        mark="R11",
        rule="Buckets are reserved by 64 at most, each block's rows inserted before the next is reserved.",
        old="min(wanted[lane], most)",
        new="wanted[lane]",
        tests=(
            "tests/node/test_bulk_buckets.py::test_r11_no_block_is_larger_than_its_rows_are_soon_there",
        ),
    ),
    Ablation(
        mark="R12",
        rule="Hints are left out below the first bucket that is not finished, and nowhere else.",
        old="        while self._end in self:\n            self._end = BucketNo(self._end + 1)\n",
        new="        while self._end in self or BucketNo(self._end + 1) in self:\n            self._end = BucketNo(self._end + 1)\n",
        tests=(
            "tests/node/test_finished.py::test_what_comes_back_behind_finished_buckets_is_found",
        ),
    ),
    Ablation(
        mark="R12",
        rule="The hints of the first lease and of delays are written before the seal.",
        old="        await returns.hint(return_times_us(sealed))\n",
        new="",
        tests=(
            "tests/node/test_seal.py::test_r12_hints_of_lease_and_delays_are_written_before_the_seal",
        ),
    ),
    Ablation(
        mark="R12",
        rule="The hints of a batch's delays are written before it becomes visible.",
        old="        await ExpiryHintWriter(lane, bucket).hint(return_times_us(new))\n",
        new="",
        tests=("tests/node/test_bulk.py::test_delays_of_a_batch_are_groups_with_hints",),
    ),
    Ablation(
        mark="T4",
        rule="What fell due before a batch was published is fresh, so that a look-ahead finds it.",
        old="    due = union(group.runs for group in row.delayed if group.due_us <= now_us)\n",
        new="    due, now_us = EMPTY, 0\n",
        tests=(
            "tests/node/test_late_hints.py::test_t4_what_fell_due_before_a_bucket_was_published_is_fresh",
        ),
    ),
    Ablation(
        mark="T4",
        rule="No hint is written behind the present minute: the time pointer may be past it.",
        old="    at = max(minute, now)\n",
        new="    at = minute\n",
        tests=(
            "tests/node/test_late_hints.py::test_t4_a_hint_is_never_written_behind_the_present_minute",
        ),
    ),
    Ablation(
        mark="T4",
        rule="A CAS that comes so late that its hint's minute may have been passed has the hint written again.",
        old="            await self._write([now_us], now_us)\n",
        new="            pass\n",
        tests=(
            "tests/node/test_late_hints.py::test_t4_a_seal_that_sleeps_between_hint_and_cas_hints_again",
            "tests/node/test_late_hints.py::test_t4_what_is_given_back_by_a_cas_that_came_late_is_hinted_again",
        ),
    ),
    Ablation(
        mark="R13",
        rule="A hint outlives what it points at by two days and ends by its TTL: nobody deletes it.",
        old="    return max(0, until_us - now_us) // 1_000_000 + HINT_SPARE_S\n",
        new="    return HINT_SPARE_S\n",
        tests=(
            "tests/unit/test_pointer.py::test_r13_a_hint_outlives_what_it_points_at_by_days_and_then_ends",
        ),
    ),
    Ablation(
        mark="R14",
        rule="What dies goes into an open set; a closed one, which a mover may have, is never extended.",
        old="    set_id = next(iter(entries.values())).set_id if entries else new_id()\n",
        new="    set_id = dead[0].set_id if dead else new_id()\n",
        tests=(
            "tests/unit/test_lease.py::test_r14_what_dies_is_in_an_open_set_beside_the_closed_ones",
            "tests/unit/test_settlement.py::test_r14_what_is_rejected_joins_no_set_that_is_closed",
        ),
    ),
    Ablation(
        mark="R14",
        rule="Repair closes the open dead set by a CAS before it moves it.",
        old="        if not part.is_open:\n            sets.setdefault",
        new="        if part:\n            sets.setdefault",
        tests=("tests/unit/test_dead.py::test_r14_a_mover_takes_closed_sets_only",),
    ),
    Ablation(
        mark="R14",
        rule="A task never creates the row of a sink for one transaction: a removed one would be born again.",
        old="        raise _ended(once.who)\n",
        new="        once = begin_once(lane, once.who.sink_id)\n",
        tests=(
            "tests/node/test_transaction.py::test_r14_a_task_never_creates_the_row_of_a_sink_for_one_transaction",
        ),
    ),
    Ablation(
        mark="R14",
        rule="A mover deletes its sink row only when all it lists is visible: without the row that is void.",
        old="    await target.store.sinks.delete(sink_id, stored)\n",
        new="    pass\n",
        tests=("tests/node/test_repair.py::test_r14_the_row_of_a_move_goes_when_the_move_is_over",),
    ),
    Ablation(
        mark="R15",
        rule="A message with a part missing does not exist.",
        old="    if len(parts) == head.parts and all(",
        new="    if all(",
        tests=("tests/node/test_seal.py::test_r15_a_message_with_a_part_missing_does_not_exist",),
    ),
    Ablation(
        mark="T20",
        rule="A chunk is sized by all columns of its messages.",
        old="        ends = arrays.ends(row_sizes(batch))\n",
        new="        ends = arrays.ends(row_sizes(batch.select([BODY])))\n",
        tests=(
            "tests/unit/test_packer.py::test_t20_a_chunk_of_the_arrow_door_is_near_its_limit_whatever_the_columns_hold",
            "tests/unit/test_packer.py::test_t20_a_chunk_of_the_connectors_door_is_near_its_limit_whatever_the_columns_hold",
        ),
    ),
    Ablation(
        mark="T20",
        rule="What is put, or moved, is sized by the bytes of its texts, not by their characters.",
        old="    return len(text) if text.isascii() else len(text.encode())\n",
        new="    return len(text)\n",
        tests=(
            "tests/unit/test_packer.py::test_t20_a_put_counts_bytes_of_all_columns_and_not_characters",
        ),
    ),
    Ablation(
        mark="R17",
        rule="A renewal never takes a lease back from a later run.",
        old="            if mine and _is_for(row, lease_id, action):\n",
        new="            if mine:\n",
        tests=(
            "tests/node/test_claims.py::test_r17_extend_never_takes_a_lease_back_from_a_later_run",
        ),
    ),
    Ablation(
        mark="R18",
        rule="A purge seals what is open before it drops.",
        within="cassieq_spark/queue/admin.py",
        old="    closed = await seal.finish(lane, bucket, rows[bucket])\n",
        new="    closed = rows[bucket] and await seal.finish(lane, bucket, rows[bucket])\n",
        tests=("tests/node/test_life.py::test_r18_a_purge_drops_all_and_touches_no_open_bucket",),
    ),
    Ablation(
        mark="R20",
        rule="An ack after the lease's end counts if nobody has claimed again.",
        old="        if lease.lease_id not in named:\n",
        new="        if lease.lease_id not in named or is_expired(lease, now_us):\n",
        tests=(
            "tests/unit/test_lease.py::test_r20_a_lease_that_ran_out_and_was_not_claimed_again_still_acks",
            "tests/node/test_claims.py::test_r20_an_ack_after_the_end_counts_if_nobody_claimed_again",
        ),
    ),
    Ablation(
        mark="R20",
        rule="A claim leaves expired leases that it does not take to their holders.",
        old="    if len(row.leases) + len(leases) > PREFERRED_LEASES:\n",
        new="    if True:\n",
        tests=(
            "tests/unit/test_lease.py::test_r20_a_claim_leaves_expired_leases_that_it_does_not_take_to_their_holders",
        ),
    ),
    Ablation(
        mark="R21",
        rule="A lease lasts at least four of the client's own CAS times.",
        old="now_us + max(self.holder.visibility_us, self.lane.store.sender.spare_us)",
        new="now_us + self.holder.visibility_us",
        tests=(
            "tests/node/test_claims.py::test_r21_a_lease_lasts_some_of_the_clients_own_cas_times",
        ),
    ),
    Ablation(
        mark="R21",
        rule="A CAS in which the process stood still makes no lease longer.",
        old="        if seconds > REQUEST_TIMEOUT_S:\n",
        new="        if False:\n",
        tests=(
            "tests/unit/test_memory.py::test_r21_a_client_that_stood_still_in_its_first_cas_leases_for_no_longer",
        ),
    ),
    Ablation(
        mark="R22",
        rule="Without a dead-letter queue nothing dies.",
        old="return settings.max_deliveries if settings.dead_letter_queue is not None else None",
        new="return settings.max_deliveries",
        tests=("tests/node/test_claims.py::test_r22_without_a_dead_letter_queue_nothing_dies",),
    ),
    Ablation(
        mark="R23",
        rule="`bootstrap` finds out whether the cluster lets the largest timestamp through.",
        old="    for stamp in (1, session.clock.now_us() + _DAY_US, DELETED):\n",
        new="    for stamp in (1, session.clock.now_us() + _DAY_US):\n",
        tests=(
            "tests/node/test_pointers.py::test_r23_bootstrap_proves_small_far_and_largest_timestamps",
        ),
    ),
    Ablation(
        mark="R24",
        rule="A sink id belongs to one queue.",
        old="    if row.lane != who.lane:\n",
        new="    if False:\n",
        tests=(
            "tests/unit/test_sink_txn.py::test_r24_a_row_that_nobody_has_committed_under_still_belongs_to_its_queue",
            "tests/node/test_transaction.py::test_r24_one_sink_id_serves_one_queue",
        ),
    ),
    Ablation(
        mark="R24",
        rule="A long bucket list has rows of its own: Paxos would carry it twice per CAS.",
        old="        if len(encoded) <= LIST_IN_ROW_BYTES:\n",
        new="        if True:\n",
        tests=(
            "tests/node/test_transaction.py::test_r24_a_long_list_is_kept_beside_the_row_and_read_back_whole",
        ),
    ),
    Ablation(
        mark="R24",
        rule="A sink is forgotten only by its own queue's name, while that queue is alive.",
        old="        elif not (await lane.store.lane(stored.value.lane).pointers.read()).is_deleted:\n",
        new="        elif False:\n",
        tests=("tests/node/test_transaction.py::test_r24_one_sink_id_serves_one_queue",),
    ),
    Ablation(
        mark="R25",
        rule="A lane that is marked deleted says so to everybody.",
        old="""                if self.due is None:
                    raise self.deleted()
                await self.first.read_pointers()
""",
        new="                pass\n",
        tests=("tests/node/test_pointers.py::test_r25_a_lane_marked_deleted_says_so_to_everybody",),
    ),
    Ablation(
        mark="R26",
        rule="A second write of one run in one batch is refused where Spark cannot have retried.",
        old=(
            "        if refuse_second_write:\n            _check_second_write(row, who, batch_id)\n"
        ),
        new="",
        tests=(
            "tests/unit/test_sink_txn.py::test_r26_a_second_write_of_one_run_in_one_batch_is_refused_where_asked",
            "tests/node/test_transaction.py::test_r26_the_second_write_of_a_batch_is_refused",
        ),
    ),
    Ablation(
        mark="T2",
        rule="A claim is refused for no size of its row: what is visible is to be had.",
        within="cassieq_spark/queue/get/claim.py",
        old="        available = claimable(row.value, now_us=now_us, below=below, max_deliveries=limit)\n",
        new=(
            "        if size_of(row.value) > 256 * 1024:\n"
            "            continue\n"
            "        available = claimable(row.value, now_us=now_us, below=below, max_deliveries=limit)\n"
        ),
        tests=(
            "tests/node/test_row_limits.py::test_t2_many_updated_messages_that_were_given_back_hide_nothing",
        ),
    ),
    Ablation(
        mark="T2",
        rule="Reasons of the dead have a budget in a row: further ones are joined.",
        old="    if reason in known or _bytes_of({*known, reason}) <= REASONS_BYTES:\n",
        new="    if reason not in known or _bytes_of({*known, reason}) <= REASONS_BYTES:\n",
        tests=("tests/unit/test_dead.py::test_t2_reasons_above_the_budget_of_a_row_are_joined",),
    ),
    Ablation(
        mark="T2",
        rule="Names of holders have a budget in a row: further ones go by one name.",
        old="    if owner in known or sum(len(one.encode()) for one in known) < OWNERS_BYTES:\n",
        new="    if owner:\n",
        tests=(
            "tests/unit/test_lease.py::test_t2_names_of_holders_have_a_limit_and_their_leases_none",
        ),
    ),
    Ablation(
        mark="T2",
        rule="Any number of delivery counts among delayed messages has an end of widening.",
        old="    limit = max(DELAYED_GROUPS_LIMIT, GROUPS_PER_COUNT * counts)\n",
        new="    limit = max(DELAYED_GROUPS_LIMIT, counts)\n",
        tests=(
            "tests/unit/test_bucket.py::test_t2_many_delivery_counts_make_no_delay_late_by_hours",
        ),
    ),
    Ablation(
        mark="T2",
        rule="Not more closed dead sets than 16 wait in a row; what dies then gathers in the open one.",
        old="    return len(waiting) < CLOSED_SETS and any(part.is_open for part in dead)\n",
        new="    return any(part.is_open for part in dead)\n",
        tests=("tests/unit/test_dead.py::test_t2_closed_sets_that_cannot_move_do_not_become_more",),
    ),
    Ablation(
        mark="T11",
        rule="A row full of leases of single messages hides nothing of the rest.",
        old="    if row.status is not Status.SEALED:\n        return 0\n",
        new="    if row.status is not Status.SEALED or len(row.leases) >= CROWDED_LEASES:\n        return 0\n",
        tests=("tests/unit/test_lease.py::test_t11_many_live_leases_hide_nothing_of_the_rest",),
    ),
    Ablation(
        mark="T5",
        rule="What a look has not read blocks the time pointer, whatever is remembered when it ends.",
        old="        unread = wanted - rows.keys()\n",
        new="        unread = self.away.keys()\n",
        tests=(
            "tests/node/test_slow_replica.py::test_t5_the_time_pointer_stays_at_a_bucket_that_was_passed_over",
        ),
    ),
    Ablation(
        mark="T5",
        rule="A get does not say none of what its look has passed over, though that is forgotten since.",
        old="        if away := self._scanner.passed_over:\n",
        new="        if away := self._scanner.away:\n",
        tests=(
            "tests/node/test_slow_replica.py::test_t5_a_get_says_none_of_nothing_that_it_has_passed_over",
        ),
    ),
    Ablation(
        mark="T5",
        rule="A producer leaves a bucket that does not answer.",
        old="            found, _ = await lane.buckets.read_some([block.bucket])\n",
        new="            found = {block.bucket: await lane.buckets.read(block.bucket)}\n",
        tests=(
            "tests/node/test_slow_replica.py::test_t5_a_producer_whose_bucket_does_not_answer_takes_another",
        ),
    ),
    Ablation(
        mark="T22",
        rule="A pointer that cannot be written fails no get.",
        old='        event(_logger, "pointer_not_advanced", **lane.as_fields(), error=str(error))\n',
        new="        raise\n",
        tests=(
            "tests/node/test_slow_replica.py::test_t22_what_was_claimed_is_handed_out_though_a_pointer_cannot_be_written",
        ),
    ),
    Ablation(
        mark="T4",
        rule="Delays that a change moves are hinted where they are then, whosever they are.",
        old="    return return_times_us(new, moved) + shifted\n",
        new="    return return_times_us(new, moved)\n",
        tests=(
            "tests/node/test_late_hints.py::test_t4_delays_that_a_release_moves_are_hinted_where_they_are_now",
        ),
    ),
    Ablation(
        mark="T5",
        rule="What is done for many buckets is done for all of them before one's failure is told.",
        old="    for bucket, result in zip(todo, await lane.store.session.each(work, todo), strict=True):\n",
        new="    for bucket, result in zip(todo, await lane.store.session.map(work, todo), strict=True):\n",
        tests=(
            "tests/node/test_slow_replica.py::test_t5_what_is_done_with_other_buckets_is_done_before_one_is_told_to_have_failed",
        ),
    ),
    Ablation(
        mark="T5",
        rule="Who waits for a key that does not answer gives its place to the next item.",
        old="        while self._taken and now - self._taken[0].since_s >= SLOW_S:\n",
        new="        while self._taken and now - self._taken[0].since_s >= 1e9:\n",
        tests=(
            "tests/node/test_slow_replica.py::test_t5_more_stuck_buckets_than_threads_at_once_hold_up_no_other",
        ),
    ),
    Ablation(
        mark="T5",
        rule="A bucket that was not read is passed over by a look, which goes on behind it.",
        old="            self.pass_over(bucket, named(error, lane, bucket))\n",
        new="            raise named(error, lane, bucket)\n",
        within="cassieq_spark/queue/get/scan.py",
        tests=(
            "tests/node/test_slow_replica.py::test_t5_a_get_hands_out_what_lies_behind_a_bucket_that_does_not_answer",
        ),
    ),
    Ablation(
        mark="T5",
        rule="The time pointer does not pass the minute of a hint whose bucket was not read.",
        old="            return bucket in unread or still_due(rows.get(bucket), minute)\n",
        new="            return still_due(rows.get(bucket), minute)\n",
        tests=(
            "tests/node/test_slow_replica.py::test_t5_the_time_pointer_does_not_pass_a_minute_of_a_bucket_that_was_not_read",
        ),
    ),
    Ablation(
        mark="T5",
        rule="Each row has a writer of its own: nobody waits for a bucket of others.",
        old="        with self._session.call() as call, self._using(key, port) as row:\n",
        new=(
            '        one = self.__dict__.setdefault("_one", threading.Lock())\n'
            "        with self._session.call() as call, one, self._using(key, port) as row:\n"
        ),
        tests=(
            "tests/node/test_slow_replica.py::test_t5_nobody_waits_for_another_threads_ack_of_another_bucket",
        ),
    ),
    Ablation(
        mark="T5",
        rule="A renewal of one bucket is begun, and not waited for before the next.",
        old="                for place in by_place:\n                    session.begin(one_bucket, place)\n",
        new=(
            "                async def all_of(_: object) -> None:\n"
            "                    for place in by_place:\n"
            "                        await one_bucket(place)\n"
            "                session.begin(all_of, None)\n"
        ),
        tests=(
            "tests/node/test_slow_replica.py::test_t5_a_consumer_renews_and_acks_other_buckets_while_one_stands_still",
        ),
    ),
    Ablation(
        mark="T5",
        rule="A batch's leases are renewed bucket by bucket, none waiting for another's round.",
        old="self._session.begin(lambda at: self._round(*at), (place, held))\n",
        new="await self._session.begin(lambda at: self._round(*at), (place, held))\n",
        tests=(
            "tests/spark/test_renewal.py::test_t5_other_leases_are_renewed_while_one_bucket_does_not_answer",
        ),
    ),
    Ablation(
        mark="T5",
        rule="What a replay has taken over is renewed before its other buckets have answered.",
        old="                self._hold([(place, lease) for lease in ours])\n",
        new="                pass\n",
        tests=(
            "tests/spark/test_planner.py::test_t5_leases_that_were_taken_over_are_held_while_another_bucket_does_not_answer",
        ),
    ),
    Ablation(
        mark="T5",
        rule="A CAS waits for another one of the same client on its row as long as for an answer, and no longer.",
        old="async with within(min(at_most_s, LONGEST_WAIT_S), clock):",
        new="async with within(LONGEST_WAIT_S, clock):",
        tests=(
            "tests/node/test_slow_replica.py::test_t5_what_waits_for_another_cas_of_the_same_row_waits_for_one_deadline",
        ),
    ),
    Ablation(
        mark="T16",
        rule="A consumer that is closed takes no ack: what its `ack` returned for is stored.",
        old="            if self._is_closing:\n                raise ClientClosed",
        new="            if False:\n                raise ClientClosed",
        tests=(
            "tests/node/test_slow_replica.py::test_t16_an_ack_that_close_comes_between_is_stored_or_refused",
        ),
    ),
    Ablation(
        mark="T22",
        rule="An ambiguous claim takes no lease with it that another bucket granted.",
        old="        except StoreError as error:\n            # An ambiguous claim",
        new="        except ZeroDivisionError as error:\n            # An ambiguous claim",
        tests=(
            "tests/node/test_slow_replica.py::test_t22_a_seal_that_is_not_answered_takes_no_lease_with_it",
        ),
    ),
    Ablation(
        mark="T22",
        rule="A claim that is answered when its caller has gone is given back, uncounted.",
        old="        flight.add_done_callback(partial(_give_back, lane, bucket), context=Context())\n",
        new="",
        tests=(
            "tests/node/test_slow_replica.py::test_t22_a_claim_that_is_answered_when_nobody_waits_any_more_is_given_back_uncounted",
        ),
    ),
    Ablation(
        mark="T22",
        rule="What cannot be confirmed is given back, uncounted.",
        old="            await give_back(claimed)  # no consumer gets to see them [T22]\n",
        new="            pass\n",
        tests=(
            "tests/node/test_slow_replica.py::test_t22_what_is_claimed_is_given_back_uncounted_where_it_cannot_be_confirmed",
        ),
        within="cassieq_spark/queue/get/claim.py",
    ),
    Ablation(
        mark="T22",
        rule="A planner hands out what it has claimed where it cannot have more.",
        old=("            if not claimed:\n                raise\n"),
        new="            raise\n",
        tests=(
            "tests/spark/test_planner.py::test_t22_what_was_claimed_is_handed_out_though_more_cannot_be_had",
        ),
    ),
    Ablation(
        mark="T22",
        rule="What a planner has claimed beside an ack that failed is given back.",
        within="cassieq_spark/spark/source/planner.py",
        old="                await self._claiming.give_back(claimed)\n                raise failure\n",
        new="                raise failure\n",
        tests=(
            "tests/spark/test_planner.py::test_t22_what_was_claimed_beside_an_ack_that_failed_is_given_back_uncounted",
        ),
    ),
    Ablation(
        mark="T23",
        rule="A CAS that was sent again is ambiguous until its row was read.",
        old=(
            "            except (StoreError, ClientClosed) as error:\n"
            "                if answer.was_sent_once:\n"
            "                    raise\n"
        ),
        new=(
            "            except (StoreError, ClientClosed) as error:\n"
            "                if error:\n"
            "                    raise\n"
        ),
        tests=(
            "tests/node/test_slow_replica.py::test_t23_a_cas_whose_row_cannot_be_read_after_a_refused_resend_is_ambiguous",
        ),
    ),
    Ablation(
        mark="T23",
        rule="A refusal of a statement that was sent again says nothing about its first sending.",
        old=(
            "                    if is_first:\n                        raise refused from error\n"
        ),
        new=("                    if error:\n                        raise refused from error\n"),
        tests=(
            "tests/node/test_slow_replica.py::test_t23_a_resend_that_the_server_will_not_run_is_ambiguous",
        ),
    ),
    Ablation(
        mark="T24",
        rule="A consumer that closes waits for its look after its acks are stored, and not for long.",
        old=(
            "                await self.acks.flush(until=until)\n"
            "            finally:\n"
            "                if self._looking is not None:\n"
            "                    left_s = max(0.0, until - self._clock.monotonic())\n"
            "                    await asyncio.wait([self._looking], timeout=left_s)\n"
        ),
        new=(
            "                if self._looking is not None:\n"
            "                    await asyncio.wait([self._looking])\n"
            "            finally:\n"
            "                await self.acks.flush()\n"
        ),
        tests=(
            "tests/node/test_slow_replica.py::test_t24_close_stores_acks_first_and_waits_for_no_get_for_long",
        ),
    ),
    Ablation(
        mark="T14",
        rule="A queue row that is active over a dead lane counts as deleting (ADR 23).",
        old="    if found is not None and await _is_born_again(store, found.value):\n",
        new="    if False:\n",
        tests=(
            "tests/node/test_born_again.py::test_t14_a_queue_row_that_is_born_again_is_no_queue",
            "tests/node/test_born_again.py::test_t14_repair_removes_a_queue_row_that_was_born_again",
        ),
    ),
    Ablation(
        mark="T14",
        rule="A list of queues takes one whose lane is dead for what it is (ADR 23).",
        old="        if not await _is_born_again(store, row):\n",
        new="        if True:\n",
        tests=(
            "tests/node/test_born_again.py::test_t14_a_queue_row_that_is_born_again_is_no_queue",
            "tests/node/test_born_again.py::test_t14_a_view_shows_a_queue_row_that_is_born_again_as_one_being_deleted",
            "tests/node/test_born_again.py::test_t14_repair_removes_a_queue_row_that_was_born_again",
        ),
    ),
    Ablation(
        mark="T14",
        rule="A queue is created again where nobody can be given an id of the one that is there (ADR 23).",
        old="            if not await _is_usable(store, found.value):\n",
        new="            if found.value.status is QueueStatus.DELETING:\n",
        tests=(
            "tests/node/test_born_again.py::test_t14_a_creator_that_dies_while_it_gives_its_lane_up_leaves_no_queue_that_nobody_can_use",
        ),
    ),
    Ablation(
        mark="T14",
        rule="Who has lost a name to another's queue ends its own lane: its INSERT may land later (ADR 23).",
        old="            await give_up(store, dict(zip(lanes, unused, strict=True)))\n",
        new="            pass\n",
        tests=(
            "tests/node/test_born_again.py::test_t14_a_create_that_lost_its_name_to_another_has_no_effect_later",
        ),
    ),
    Ablation(
        mark="T14",
        rule="It ends its lane only if nobody was given an id of it (ADR 23).",
        old="    if not isinstance(closed, Applied):\n",
        new="    if closed.now is None:\n",
        tests=(
            "tests/node/test_born_again.py::test_t14_a_queue_that_is_in_use_is_not_ended_by_the_creator_who_lost_its_name",
        ),
    ),
    Ablation(
        mark="T14",
        rule="The first lane's row changes before another lane hands out an id (ADR 24).",
        old="        if not lane.is_first:\n            await begin_queue(lane.first)\n",
        new="",
        tests=(
            "tests/node/test_fixed_lanes.py::test_t14_a_queue_in_use_by_its_second_lane_alone_is_not_given_up",
            "tests/node/test_fixed_lanes.py::test_t14_a_queue_that_was_given_up_takes_no_put_into_any_lane",
        ),
    ),
    Ablation(
        mark="T14",
        rule="L of the first lane is read after that row, which may have been born again (ADR 24).",
        old="""            await first.read_pointers()
            seen.is_begun = True
""",
        new="            seen.is_begun = True\n",
        tests=(
            "tests/node/test_fixed_lanes.py::test_t14_the_first_lanes_row_may_be_that_of_a_lane_that_has_ended",
        ),
    ),
    Ablation(
        mark="T14",
        rule="Who gives a queue up closes other lanes only if the first was unused (ADR 24).",
        old="""    if row is None or not await close_unused(store, first, row):
        return
""",
        new="""    if row is not None:
        await close_unused(store, first, row)
""",
        tests=(
            "tests/node/test_fixed_lanes.py::test_t14_a_queue_in_use_by_its_first_lane_keeps_its_others",
        ),
    ),
    Ablation(
        mark="lanes",
        rule="All monoton rows of a queue exist before its row does.",
        old="monotons.insert(begin), lanes)",
        new="monotons.insert(begin), lanes[:1])",
        tests=(
            "tests/node/test_fixed_lanes.py::test_a_queue_has_a_lane_for_each_priority_and_shard",
        ),
    ),
    Ablation(
        mark="lanes",
        rule="A deletion marks all lanes before it removes anything of one.",
        old="""    for lane in row.lanes:
        await _raise(store, lane)
""",
        new="",
        tests=(
            "tests/node/test_fixed_lanes.py::test_nothing_of_a_deleted_queue_goes_before_all_its_lanes_are_marked",
        ),
    ),
    Ablation(
        mark="lanes",
        rule="A key has its shard for ever, in every client.",
        old="    return crc32(key.encode()) % shards\n",
        new="    return hash(key) % shards\n",
        tests=("tests/unit/test_lanes.py::test_the_shard_of_a_key_never_changes",),
    ),
    Ablation(
        mark="lanes",
        rule="Messages without a key keep to one shard of their client.",
        old="        shard = self.shard % settings.shards\n",
        new="        shard = self.shard = (self.shard + 1) % settings.shards\n",
        tests=(
            "tests/node/test_fixed_lanes.py::test_a_producer_keeps_to_one_shard_so_that_a_trickle_fills_one_bucket",
        ),
    ),
    Ablation(
        mark="lanes",
        rule="The limit of what is under way is a task's, not a lane's.",
        old="                self._chunks,\n",
        new="                self._lane.store.chunk_writer(writes_in_flight=4),\n",
        tests=(
            "tests/node/test_bulk.py::test_a_task_writes_no_more_at_once_into_many_lanes_than_into_one",
        ),
    ),
    Ablation(
        mark="lanes",
        rule="The buckets of a connector's batch are opened in all lanes side by side.",
        old="        blocks = await session.map(partial(_reserve_some, todo, most), lanes)",
        new="        blocks = [await _reserve_some(todo, most, lane) for lane in lanes]",
        tests=(
            "tests/node/test_bulk_buckets.py::test_buckets_of_all_lanes_are_opened_side_by_side",
        ),
    ),
    Ablation(
        mark="U6",
        rule="A verdict goes to the lane that its receipt names.",
        old="settle_bucket(its_lane, place.bucket, leases, tells_acked=tells_acked)",
        new="settle_bucket(lane, place.bucket, leases, tells_acked=tells_acked)",
        tests=(
            "tests/node/test_fixed_lanes.py::test_receipts_of_the_same_bucket_and_offsets_in_two_lanes_settle_their_own",
        ),
    ),
    Ablation(
        mark="U18",
        rule="An offset names the lane of each of its leases.",
        old="[at[leased.place.lane], leased.place.bucket,",
        new="[0, leased.place.bucket,",
        tests=(
            "tests/spark/test_fixed_lanes.py::test_a_batch_over_lanes_is_replayed_from_its_offset_alone",
        ),
    ),
    Ablation(
        mark="U18",
        rule="A redrive by ids takes those of the lane that they name.",
        within="cassieq_spark/repair/redrive.py",
        old=" if place.lane == lane.lane_id}\n",
        new=" if place.bucket >= 0}\n",
        tests=(
            "tests/node/test_lane_moves.py::test_a_redrive_takes_messages_of_the_lanes_they_are_in_and_no_others",
        ),
    ),
    Ablation(
        mark="U18",
        rule="Whoever finds a decision in one lane publishes the batch in all.",
        old="    lane, bucket = lane.sibling(place.lane), place.bucket\n",
        new="    bucket = place.bucket\n",
        tests=(
            "tests/spark/test_fixed_lanes.py::test_a_transaction_over_lanes_is_visible_in_all_or_none",
        ),
    ),
    Ablation(
        mark="U12",
        rule="The id of a due lane follows from the queue's.",
        old="        digest = blake2b(queue.bytes + said.to_bytes(16), digest_size=11).digest()\n",
        new="        digest = blake2b(said.to_bytes(16), digest_size=11).digest()\n",
        tests=(
            "tests/unit/test_lanes.py::test_u12_the_id_of_a_due_lane_follows_from_the_queue_and_is_every_ones",
        ),
    ),
    Ablation(
        mark="U16",
        rule="The time pointer of a due lane starts just before its period.",
        old="        return self.begins_us(period_us) - NOT_BEGUN_US\n",
        new="        return 0\n",
        tests=(
            "tests/unit/test_lanes.py::test_u16_the_time_pointer_of_a_due_lane_starts_just_before_its_period",
        ),
    ),
    Ablation(
        mark="U2",
        rule="Whoever has named a due lane reads afterwards whether its period is closed.",
        old="        and due.period >= first_open(lane, pointers)\n",
        new="",
        tests=(
            "tests/node/test_due_births.py::test_u2_a_birth_in_a_closed_period_is_undone_and_the_message_goes_elsewhere",
        ),
    ),
    Ablation(
        mark="U9",
        rule="A schedule that was not read blocks what is inferred from absence.",
        old="                healed.has_missed = True  # its due lanes, with their messages\n",
        new="",
        tests=(
            "tests/node/test_due_lanes.py::test_u9_a_move_is_ended_only_if_the_schedule_was_read",
        ),
    ),
    Ablation(
        mark="U15",
        rule="A coin decides whether a small claim is offered to a lower class.",
        old="    return int(whole) + (coin < rest)\n",
        new="    return int(whole)\n",
        tests=(
            "tests/unit/test_lanes.py::test_u15_a_claim_for_one_message_offers_it_with_the_probability_of_fairness",
            "tests/node/test_fixed_lanes.py::test_a_low_priority_is_slow_and_never_stuck",
        ),
    ),
    Ablation(
        mark="U15",
        rule="Each get begins with the next shard.",
        old="        self._first_shard = (self._first_shard + 1) % self.lane.settings.shards\n",
        new="",
        tests=("tests/node/test_fixed_lanes.py::test_one_consumer_serves_all_shards_in_turn",),
    ),
    Ablation(
        mark="U15",
        rule="A quiet lane rests for a second, as long as others fill a program's gets.",
        old="        self._rests_for_s = RESTS_FOR_S if holder.is_program else 0.0\n",
        new="        self._rests_for_s = 0.0\n",
        tests=(
            "tests/node/test_resting_lanes.py::test_u15_gets_from_one_lane_do_not_ask_the_quiet_ones_each_time",
        ),
    ),
    Ablation(
        mark="U15",
        rule="A get that finds too little asks the lanes that rest, before those of a lower class.",
        old="            if budget.is_full or not await self._go_through(await self._wake(tier), budget):\n",
        new="            if budget.is_full:\n",
        tests=(
            "tests/node/test_resting_lanes.py::test_a_get_that_finds_too_little_asks_all_lanes",
            "tests/node/test_resting_lanes.py::test_no_lower_class_fills_a_get_before_what_rests_in_a_higher_one",
        ),
    ),
    Ablation(
        mark="U15",
        rule="No lane rests if all are quiet.",
        old="            has_some = has_some or any(self.readers[at].since is None for at in tier)\n",
        new="            has_some = True\n",
        tests=(
            "tests/node/test_resting_lanes.py::test_if_all_lanes_were_quiet_each_get_asks_them_all",
        ),
    ),
    Ablation(
        mark="U15",
        rule="A lane that was found to have news does not rest until it was read.",
        old="""        if await self._scanner.first_reads.has_news(since):
            return True
        self._asked_at = now
""",
        new="""        self._asked_at = now
        if await self._scanner.first_reads.has_news(since):
            return True
""",
        tests=(
            "tests/node/test_resting_lanes.py::test_u15_a_lane_with_news_does_not_rest_until_it_was_read",
        ),
    ),
    Ablation(
        mark="P28",
        rule="With rivals, a program goes on in the lane of its own bucket.",
        old="        self._go_on(at_most)\n",
        new="",
        tests=(
            "tests/node/test_resting_lanes.py::test_p28_with_rivals_a_program_goes_on_in_the_lane_of_its_own_bucket",
        ),
    ),
    Ablation(
        mark="U7",
        rule="Retention counts from the latest put and the latest due time of a bucket.",
        old="    return None if retention_us is None else max([put_us, *due_us]) + retention_us\n",
        new="    return None if retention_us is None else put_us + retention_us\n",
        tests=(
            "tests/unit/test_expiry.py::test_u7_retention_counts_from_the_latest_put_and_the_latest_due_time",
        ),
    ),
    Ablation(
        mark="U7",
        rule="A seal takes the latest put, not the first.",
        old="    put_us = max((chunk.enqueued_us for chunk in chunks), default=0)\n",
        new="    put_us = min((chunk.enqueued_us for chunk in chunks), default=0)\n",
        tests=("tests/node/test_expiry.py::test_u7_retention_ends_for_a_bucket_that_nobody_reads",),
    ),
    Ablation(
        mark="U14",
        rule="What somebody was given once is not cancelled.",
        old="            *(part.runs for part in row.returned if not part.deliveries),\n",
        new="            *(part.runs for part in row.returned),\n",
        tests=("tests/node/test_cancel.py::test_what_was_given_to_somebody_is_not_cancelled",),
    ),
    Ablation(
        mark="U14",
        rule="The row remembers what was cancelled, for whoever lost the answer.",
        old="            cancelled=row.cancelled | gone,\n",
        new="",
        tests=("tests/node/test_cancel.py::test_u14_a_lost_answer_changes_nothing",),
    ),
    Ablation(
        mark="U3",
        rule="Of what a key names, the message is read before the row of its bucket.",
        old="""        is_stored = await its_lane.messages.has_row(entry.bucket, entry.offset)
        stored = await its_lane.buckets.read(entry.bucket)
""",
        new="""        stored = await its_lane.buckets.read(entry.bucket)
        is_stored = await its_lane.messages.has_row(entry.bucket, entry.offset)
""",
        tests=(
            "tests/node/test_dedup.py::test_u3_a_message_that_comes_after_its_bucket_was_sealed_is_no_duplicate",
        ),
    ),
    Ablation(
        mark="U3",
        rule="An entry is one's own only if it names this put, whatever became of the CAS.",
        old="            if known.value.place == mine.place:\n",
        new="            if outcome.__class__.__name__ == 'Applied' or known.value.place == mine.place:\n",
        tests=(
            "tests/node/test_dedup.py::test_u3_an_entry_that_others_took_behind_a_lost_answer_is_settled",
        ),
    ),
    Ablation(
        mark="U4",
        rule="Who puts a key again under a new id makes its entry name that id first.",
        old="        known = self._mine.get(key)\n",
        new="        known = self._mine.get(key)\n        if known is not None:\n            return None\n",
        tests=(
            "tests/node/test_dedup.py::test_u4_a_producer_whose_bucket_was_closed_moves_its_entry_first",
        ),
    ),
    Ablation(
        mark="U5",
        rule="The manifest of a bucket with keys is kept before L passes it.",
        old="            await lane.kept.write(bucket, to_keep[bucket])\n",
        new="            pass\n",
        tests=(
            "tests/node/test_dedup.py::test_u5_below_the_repair_pointer_only_what_was_kept_is_believed",
            "tests/node/test_dedup.py::test_u5_a_repair_that_dies_at_any_statement_keeps_it",
        ),
    ),
    Ablation(
        mark="U5",
        rule="Below L, a key's entry is settled by what was kept, and by no row.",
        old="    if entry.bucket < low:\n",
        new="    if False:\n",
        tests=(
            "tests/node/test_dedup.py::test_u5_below_the_repair_pointer_only_what_was_kept_is_believed",
        ),
    ),
    Ablation(
        mark="U13",
        rule="An entry is settled, and only then its age counts.",
        old="            if await happened(lane, known.value, young_us=young_us):\n",
        new="            if await True:\n",
        tests=(
            "tests/node/test_dedup.py::test_u13_what_never_happened_is_no_duplicate_however_young_it_is",
            "tests/node/test_dedup.py::test_a_put_that_dies_at_any_statement_is_put_again_once",
        ),
    ),
    Ablation(
        mark="U8",
        rule="Steps of due and expiry times are widened until a row is below 128 KiB.",
        old="    while len(groups) > 1 and (_at_least(groups) > limit or size_of(groups) > limit):\n",
        new="    while False:\n",
        tests=(
            "tests/unit/test_expiry.py::test_u8_a_sealed_row_stays_below_128_kib_whatever_its_times",
        ),
    ),
    Ablation(
        mark="U8",
        rule="A message whose due time was rounded up lives as long from there on.",
        old="minute_after(end_us + late.get(offset, 0))",
        new="minute_after(end_us)",
        tests=(
            "tests/unit/test_expiry.py::test_u8_nothing_falls_due_or_expires_early_and_each_lives_its_time",
        ),
    ),
    Ablation(
        mark="lanes",
        rule="The highest class is asked first.",
        old="            for priority in reversed(range(at_least, self.priorities))\n",
        new="            for priority in range(at_least, self.priorities)\n",
        tests=(
            "tests/unit/test_lanes.py::test_each_lane_is_read_once_in_a_turn_and_no_lower_class_before_a_higher",
            "tests/node/test_fixed_lanes.py::test_the_highest_priority_is_handed_out_first",
        ),
    ),
    Ablation(
        mark="lanes",
        rule="Lower classes are held back for what is young in a higher one.",
        old="    return max((at for at in more_at if at <= until), default=None)\n",
        new="    return None\n",
        tests=(
            "tests/node/test_classes_in_order.py::test_the_first_get_of_a_consumer_keeps_the_order_of_classes",
        ),
    ),
    Ablation(
        mark="U15",
        rule="At its first look at a lane, a consumer keeps the offer free for what is young there.",
        old="                self._owed += [lane_id] if lane_id in self._new else []\n",
        new="",
        tests=(
            "tests/node/test_classes_in_order.py::test_u15_the_first_get_of_a_consumer_waits_for_what_it_offers",
        ),
    ),
    Ablation(
        mark="lanes",
        rule="What a full offer, or a rest beside it, leaves in a lane comes before lower classes.",
        old="            self._asked.discard(lane_id)\n",
        new="            pass\n",
        tests=(
            "tests/node/test_classes_in_order.py::test_what_an_offer_leaves_comes_before_lower_classes",
            "tests/node/test_classes_in_order.py::test_a_get_that_kept_an_offer_free_goes_on_where_it_had_stopped",
        ),
    ),
    Ablation(
        mark="lanes",
        rule="The first message of a higher class is given however large, beside an offer too.",
        old="        budget.is_untouched = whole.is_untouched and len(self._claimed) == self._of_offer\n",
        new="",
        tests=(
            "tests/node/test_classes_in_order.py::test_a_large_message_of_a_higher_class_is_not_kept_out_by_small_ones",
        ),
    ),
    Ablation(
        mark="lanes",
        rule="Of a limit in bytes a lower class is offered its share.",
        old="            offered.size_bytes = budget.size_bytes * fairness\n",
        new="            pass\n",
        tests=(
            "tests/node/test_lanes_away.py::test_a_batch_limited_by_bytes_is_mostly_of_the_highest_priority",
        ),
    ),
    Ablation(
        mark="lanes",
        rule="Of a claim for everything a lower class is offered nothing.",
        old="        if not fairness or not is_part:\n",
        new="        if not fairness:\n",
        tests=(
            "tests/node/test_lanes_away.py::test_a_claim_of_everything_begins_with_the_highest_priority",
        ),
    ),
    Ablation(
        mark="lanes",
        rule="A get of the higher classes is quiet by those alone.",
        old="        self.looked_at = [at for tier in tiers for at in tier]\n",
        new="",
        tests=(
            "tests/node/test_lanes_away.py::test_a_get_of_higher_priorities_is_quiet_by_those_alone",
        ),
    ),
    Ablation(
        mark="lanes",
        rule="A lane that does not answer is passed over.",
        old="            search.fail(error)\n",
        new="            raise\n",
        tests=("tests/node/test_lanes_away.py::test_a_lane_that_takes_no_hint_holds_up_no_other",),
    ),
    Ablation(
        mark="lanes",
        rule="A round waits for nothing: a young bucket of one lane is left to the next round.",
        old="go_round(search, budget, waits=False)",
        new="go_round(search, budget, waits=True)",
        tests=(
            "tests/node/test_lanes_away.py::test_what_is_ready_in_one_lane_does_not_wait_for_what_is_young_in_another",
        ),
    ),
    Ablation(
        mark="lanes",
        rule="While a lane does not answer, quiet ones are asked for news again.",
        old="                woken = await self._readers.news(lanes) if failures else []\n",
        new="                woken = await []\n",
        tests=(
            "tests/node/test_lanes_away.py::test_what_comes_into_one_lane_while_a_get_waits_for_another_is_found",
        ),
    ),
    Ablation(
        mark="lanes",
        rule="Once something is claimed, a get ends at the first lane that does not answer.",
        old="""            if not await self._step(lane_id, budget) and self._claimed:
                return False  # leases run: they do not wait for a lane that does not answer""",
        new="""            if not await self._step(lane_id, budget) and self._order is None:
                return False  # leases run: they do not wait for a lane that does not answer""",
        tests=(
            "tests/node/test_lanes_away.py::test_what_was_claimed_does_not_wait_for_lanes_that_do_not_answer",
        ),
    ),
    Ablation(
        mark="lanes",
        rule="A message that dies keeps its class and shard.",
        old="    return fixed.lane(min(priority, fixed.priorities - 1), shard % fixed.shards)\n",
        new="    return target.lane_id\n",
        tests=(
            "tests/node/test_lane_moves.py::test_dead_letters_keep_their_priority_as_far_as_there_are_such",
        ),
    ),
    Ablation(
        mark="lanes",
        rule="A redrive puts it back there.",
        old="        priority = priority if before.priority is None else before.priority\n",
        new="",
        tests=(
            "tests/node/test_lane_moves.py::test_a_redrive_puts_messages_back_into_their_priority_and_shard",
        ),
    ),
    Ablation(
        mark="T15",
        rule="A deletion notes L before it raises it: another begins there, not at bucket 0 (ADR 23).",
        old="    await _note(store, lane, Pointer.DROPPED, step.dropped)\n",
        new="",
        tests=(
            "tests/node/test_born_again.py::test_t15_a_deletion_that_was_cut_off_goes_over_no_dropped_bucket_again",
            "tests/node/test_born_again.py::test_t15_a_deletion_beside_another_goes_over_no_dropped_bucket",
        ),
    ),
    Ablation(
        mark="T15",
        rule="A deletion notes how far it has come, some buckets at a time (ADR 23).",
        old="at_most=WINDOW",
        new="at_most=DELETED",
        tests=(
            "tests/node/test_born_again.py::test_t15_a_long_deletion_goes_on_where_it_was_cut_off",
        ),
    ),
    Ablation(
        mark="T15",
        rule="A deletion notes where the ids end before the row goes that says so (ADR 23).",
        old="                await _note(store, lane, Pointer.END, end)\n",
        new="",
        tests=(
            "tests/node/test_born_again.py::test_t15_a_deletion_that_was_cut_off_goes_over_no_dropped_bucket_again",
        ),
    ),
    Ablation(
        mark="T15",
        rule="The monoton row goes as it was read: what was reserved since would be left behind.",
        within="cassieq_spark/store/tables/lanes.py",
        old="DELETE_MONOTON, (self._lane,), before=old.version)\n",
        new="DELETE_MONOTON, (self._lane,), before=(await self.find() or old).version)\n",
        tests=(
            "tests/node/test_born_again.py::test_t15_what_is_reserved_beside_a_deletion_goes_with_it",
        ),
    ),
    Ablation(
        mark="T15",
        rule="The end of the data is read after the monoton row: whoever removes the row has noted it before.",
        old=(
            """        monoton = await store.lane(lane).monotons.find()
        ids_end = None
        if monoton is not None:
            ids_end = BucketNo(max(0, -(-monoton.value.next_id // bucket_size)))
        match next_step(ids_end, await store.lane(lane).pointers.read(), at_most=WINDOW):
"""
        ),
        new=(
            """        pointers = await store.lane(lane).pointers.read()
        monoton = await store.lane(lane).monotons.find()
        ids_end = None
        if monoton is not None:
            ids_end = BucketNo(max(0, -(-monoton.value.next_id // bucket_size)))
        match next_step(ids_end, pointers, at_most=WINDOW):
"""
        ),
        tests=(
            "tests/node/test_born_again.py::test_t15_two_that_delete_at_once_leave_nothing_between_them",
        ),
    ),
    Ablation(
        mark="T15",
        rule="A full repair removes what has landed in lanes that are gone.",
        old="            self.report.swept_lanes += await sweep_lanes(self._store, rows, messages)\n",
        new="            pass\n",
        tests=(
            "tests/node/test_born_again.py::test_t15_a_full_repair_removes_what_lands_in_a_lane_that_is_gone",
        ),
    ),
    Ablation(
        mark="T15",
        rule="A lane that a queue row names is left to its deletion.",
        old="sorted(found - named)",
        new="sorted(found)",
        tests=(
            "tests/node/test_born_again.py::test_t15_a_full_repair_leaves_a_lane_to_its_deletion",
        ),
    ),
    Ablation(
        mark="T15",
        rule="A lane whose creator died while it gave it up is ended before its row goes.",
        within="cassieq_spark/repair/cleanup.py",
        old="        await store.lane(lane).pointers.advance(Pointer.REPAIR, DELETED)\n",
        new="        pass\n",
        tests=(
            "tests/node/test_born_again.py::test_t15_a_full_repair_ends_a_lane_that_was_half_given_up",
        ),
    ),
    Ablation(
        mark="T3",
        rule="A transaction whose row is for it alone is committed on the version that began it, and tried on no other.",
        old="""        if once is not None and (stored is None or stored.version.writer != once.writer):
            raise _ended(who)
""",
        new="",
        tests=(
            "tests/node/test_sink_life.py::test_t3_a_dead_set_is_moved_once_though_its_row_is_born_again",
            "tests/node/test_sink_life.py::test_t3_a_late_copy_of_anothers_insert_lets_nobody_commit_twice",
        ),
    ),
    Ablation(
        mark="T3",
        rule="A mover commits on no version that a late copy of its own CAS may bring back.",
        old="        if isinstance(outcome, Applied) and outcome.was_sent_once:\n",
        new="        if isinstance(outcome, Applied):\n",
        tests=(
            "tests/node/test_sink_life.py::test_t3_a_late_copy_of_a_movers_own_insert_lets_it_commit_nothing",
        ),
    ),
    Ablation(
        mark="T3",
        rule="Nor does a write without an id.",
        old="        if outcome.was_sent_once:\n",
        new="        if True:\n",
        tests=(
            "tests/node/test_sink_life.py::test_t3_a_write_that_was_ended_is_not_committed_on_its_row_as_it_is_born_again",
        ),
    ),
    Ablation(
        mark="T6",
        rule="What was written to a queue that was deleted is not committed to one that has its name now.",
        old="    if any(who.lane != lane.first.lane_id for who in whos):\n",
        new="    if False:\n",
        tests=(
            "tests/node/test_sink_life.py::test_t6_a_batch_of_a_queue_that_was_created_again_is_refused",
        ),
    ),
    Ablation(
        mark="T6",
        rule="The repair pointer is read after a commit: a deletion meanwhile is no success.",
        old="""        await lane.read_pointers()
        await roll_forward(lane, who.sink_id, row.listed)""",
        new="        await roll_forward(lane, who.sink_id, row.listed)",
        tests=(
            "tests/node/test_sink_life.py::test_t6_a_batch_whose_queue_is_deleted_around_its_commit_is_no_success",
        ),
    ),
    Ablation(
        mark="T8",
        rule="A write without an id has an hour from its beginning, whenever its first task starts.",
        old="        timeout_s = LONGEST_PATIENCE_S\n",
        new="        pass\n",
        tests=(
            "tests/node/test_sink_life.py::test_t8_a_write_whose_first_task_starts_late_is_left_alone",
        ),
    ),
    Ablation(
        mark="T9",
        rule="The row of a transaction that is over rests for a day.",
        old="REST_S: Final = 86_400.0\n",
        new="REST_S: Final = 0.0\n",
        tests=(
            "tests/node/test_sink_life.py::test_t9_a_commit_that_was_not_heard_finds_its_row_resting",
        ),
    ),
    Ablation(
        mark="T9",
        rule="A commit that was not answered, and whose row is gone, is known by its buckets or is ambiguous.",
        old="""        case Refused(now=None, was_sent_once=False):
            return await _is_visible(lane, who, row)
""",
        new="",
        tests=(
            "tests/node/test_sink_life.py::test_t9_a_commit_that_was_not_heard_is_known_by_its_buckets",
            "tests/node/test_sink_life.py::test_t9_a_commit_that_nobody_can_tell_of_is_ambiguous_and_not_called_void",
        ),
    ),
    Ablation(
        mark="T10",
        rule="The scan of the sink rows asks one replica, so that no read repair writes a part of a row.",
        old="LIST_SINKS: Final = _glance(\n",
        new="LIST_SINKS: Final = _read(\n",
        tests=(
            "tests/node/test_statements.py::test_t10_a_quorum_read_of_a_row_that_decides_selects_all_of_it",
        ),
    ),
    Ablation(
        mark="T10",
        rule="A pass looks through a part of the sink rows.",
        old="at_most=SINKS_TOGETHER",
        new="at_most=ALL",
        tests=(
            "tests/node/test_sink_life.py::test_t10_a_pass_looks_through_a_part_of_the_sink_rows_and_a_full_one_through_all",
        ),
    ),
    Ablation(
        mark="T10",
        rule="A row that rests is not read by itself.",
        old="            if may_be_over(seen, now_us=now_us):\n",
        new="            if True:\n",
        tests=(
            "tests/node/test_sink_life.py::test_t10_a_row_that_rests_costs_a_pass_no_read_of_its_own",
        ),
    ),
    Ablation(
        mark="T15",
        rule="Rows of single transactions of deleted queues are removed.",
        old="            await self._end_sinks_of_deleted()\n",
        new="            pass\n",
        tests=(
            "tests/node/test_sink_life.py::test_t15_rows_of_single_transactions_of_deleted_queues_are_swept",
        ),
    ),
    Ablation(
        mark="T18",
        rule="A mover says that it is at work while it copies.",
        old="        async with heartbeat(target, begun.who.sink_id, is_row_fresh=True):\n",
        new="        if True:\n",
        tests=(
            "tests/node/test_sink_life.py::test_t18_a_move_that_takes_longer_than_the_timeout_is_neither_aborted_nor_taken_over",
        ),
    ),
    Ablation(
        mark="T18",
        rule="A mover leaves a set to another that is at work.",
        old="    return None if await is_silent(target, sink_id, row, row.changed_us) else Standing.AT_WORK\n",
        new="    return None\n",
        tests=("tests/node/test_sink_life.py::test_a_mover_leaves_a_set_to_one_that_is_at_work",),
    ),
    Ablation(
        mark="T18",
        rule="A move that was ended is taken for done only if the set is gone.",
        old="""        if not await _is_there(lane, bucket, dead[0].set_id):
            return 0
""",
        new="        return 0\n",
        tests=(
            "tests/node/test_sink_life.py::test_t18_a_move_that_was_aborted_is_reported_and_done_by_the_next_pass",
            "tests/node/test_sink_life.py::test_t18_a_redrive_that_was_aborted_says_so_and_the_messages_wait",
        ),
    ),
    Ablation(
        mark="T19",
        rule="A list goes when its row names another.",
        old="""            await self._drop_list(sink_id, former)
        elif isinstance(outcome, Refused):""",
        new="""            pass
        elif isinstance(outcome, Refused):""",
        tests=("tests/node/test_sink_life.py::test_t19_a_list_goes_when_its_row_names_another",),
    ),
    Ablation(
        mark="T19",
        rule="A list goes when its commit was refused.",
        old="            await self._drop_list(sink_id, ref.list_id)\n",
        new="            pass\n",
        tests=(
            "tests/node/test_sink_life.py::test_t19_a_list_goes_when_its_commit_was_refused_or_its_row_is_gone",
        ),
    ),
    Ablation(
        mark="T19",
        rule="Before a list that nobody names is swept, the row is made another: who was about to name it is refused.",
        old="""            if not isinstance(await self.update(sink_id, stored, stored.value), Applied):
                return 0
""",
        new="",
        tests=(
            "tests/node/test_sink_life.py::test_t19_a_full_pass_sweeps_a_list_whose_writer_died_and_never_one_that_may_be_named_yet",
        ),
    ),
    Ablation(
        mark="T19",
        rule="A reader whose list is gone reads the row again, until it finds the list or no row.",
        old="                if again is not None and again.writer == row.writer:\n                    raise\n",
        new="                raise\n",
        tests=(
            "tests/node/test_sink_life.py::test_t19_a_slow_reader_takes_a_list_that_is_gone_for_no_list",
        ),
    ),
    Ablation(
        mark="T5",
        rule="A look at many buckets goes on beside one that does not answer.",
        old="                unread[bucket] = row\n            elif",
        new="                raise row\n            elif",
        tests=(
            "tests/node/test_looks_away.py::test_t5_a_redrive_moves_what_it_can_reach_and_names_the_bucket_that_is_away",
            "tests/node/test_looks_away.py::test_t5_peek_shows_what_it_can_reach",
            "tests/node/test_looks_away.py::test_t5_browse_yields_all_it_can_reach_before_its_error",
            "tests/node/test_looks_away.py::test_t5_verify_looks_at_all_it_can_reach_and_says_what_it_could_not",
            "tests/node/test_looks_away.py::test_t5_a_dry_run_foresees_what_it_can_reach",
        ),
    ),
    Ablation(
        mark="T5",
        rule='Peek says "nothing" of no bucket that did not answer.',
        old="    if away and not plan:\n        raise first_of(away)\n",
        new="",
        tests=(
            "tests/node/test_looks_away.py::test_t5_peek_says_none_of_nothing_that_did_not_answer",
        ),
    ),
    Ablation(
        mark="T5",
        rule="A redrive goes on where one bucket's CAS is not answered.",
        old="                away[bucket] = named(error, lane, bucket)\n",
        new="                raise\n",
        tests=(
            "tests/node/test_looks_away.py::test_t5_a_redrive_goes_on_where_a_buckets_cas_is_not_answered",
        ),
    ),
    Ablation(
        mark="T5",
        rule='A redrive says "gone" of nothing that did not answer.',
        old="known = ids.keys() - away.keys()\n",
        new="known = ids.keys()\n",
        tests=(
            "tests/node/test_looks_away.py::test_t5_a_redrive_by_ids_does_not_say_gone_of_what_did_not_answer",
        ),
    ),
    Ablation(
        mark="T5",
        rule="Messages of finished buckets are dropped beside one that does not answer.",
        old="    freed, failed = await per_bucket(lane, one, finished)\n",
        new="    freed, failed = await each_bucket(lane, one, finished), {}\n",
        tests=(
            "tests/node/test_looks_away.py::test_t5_messages_of_finished_buckets_are_dropped_beside_one_that_is_away",
        ),
    ),
    Ablation(
        mark="T5",
        rule="A lease that was taken over too late is taken over again before it is delivered.",
        old="TAKE_OVERS_AT_MOST: Final = 3\n",
        new="TAKE_OVERS_AT_MOST: Final = 1\n",
        tests=(
            "tests/node/test_late_ends.py::test_t5_a_lease_that_was_taken_over_too_late_is_taken_over_again",
        ),
    ),
    Ablation(
        mark="T5",
        rule="What was granted late is renewed before it runs out.",
        old="min(held.period_s, left_s / 2)\n",
        new="held.period_s\n",
        tests=(
            "tests/spark/test_renewal.py::test_t5_leases_that_were_granted_late_are_renewed_before_they_run_out",
        ),
    ),
    Ablation(
        mark="T22",
        rule="What was claimed of a query's other queues is given back where no offset will name it.",
        old="            await self.give_back(claimed)  # no offset will name it [T22]\n",
        new="",
        tests=(
            "tests/spark/test_many_queues.py::test_what_was_claimed_beside_a_queue_that_is_gone_is_given_back_uncounted",
        ),
    ),
    Ablation(
        mark="U18",
        rule="A replay reads the queues that its offset names, whatever the options say.",
        old="                queue = await self._former(name)\n",
        new="                pass\n",
        tests=(
            "tests/spark/test_many_queues.py::test_u18_a_replay_reads_what_its_offset_names_whatever_the_options_say",
        ),
    ),
    Ablation(
        mark="T22",
        rule="What was claimed is given back where the rest of the call fails.",
        old="            await give_back(round_.claimed)  # no consumer gets to see them [T22]\n",
        new="",
        tests=(
            "tests/node/test_slow_replica.py::test_t22_what_was_claimed_is_given_back_uncounted_where_the_rest_of_the_call_fails",
        ),
        within="cassieq_spark/queue/get/reader.py",
    ),
    Ablation(
        mark="T24",
        rule="A consumer that is closed waits for no ack that was under way for long.",
        old="await self.acks.flush(until=until)\n",
        new="await self.acks.flush()\n",
        tests=(
            "tests/node/test_slow_replica.py::test_t24_close_waits_for_no_ack_that_was_under_way_before_it_for_long",
        ),
    ),
    Ablation(
        mark="T2",
        rule="The body that an update replaces goes with it.",
        old="        _drop_body(lane, receipt, dict(outcome.before.revisions).get(receipt.first))\n",
        new="        pass\n",
        tests=("tests/node/test_bodies.py::test_an_update_leaves_nothing_of_the_one_before",),
    ),
    Ablation(
        mark="T2",
        rule="So does the body of an update that was refused.",
        old="        _drop_body(lane, receipt, revision)\n",
        new="",
        tests=("tests/node/test_bodies.py::test_a_body_whose_update_was_refused_does_not_stay",),
    ),
    Ablation(
        mark="T2",
        rule="Updated bodies go out before all of a read's are there.",
        old="        if size >= BODIES_BYTES and at + 1 < end:\n",
        new="        if False:\n",
        tests=(
            "tests/node/test_bodies.py::test_a_chunk_goes_out_in_pieces_where_updated_bodies_are_large",
        ),
    ),
    Ablation(
        mark="T2",
        rule="As many updated bodies are asked for at once as fit.",
        old="            self._at_once = max(1, min(2 * len(some), BODIES_AT_ONCE, fitting))\n",
        new="            self._at_once = BODIES_AT_ONCE\n",
        tests=("tests/node/test_bodies.py::test_so_many_bodies_are_asked_for_at_once_as_fit",),
    ),
    Ablation(
        mark="T2",
        rule="One call takes so many runs of ids that an offset can name them.",
        old="        self.runs -= runs\n",
        new="",
        tests=(
            "tests/node/test_reader.py::test_one_call_takes_so_many_runs_of_ids_that_an_offset_can_name_them",
        ),
    ),
    Ablation(
        mark="T5",
        rule="Acks of a bucket that answers are sent at the end beside those of one that does not.",
        old="            await asyncio.wait([flight])\n",
        new="            await asyncio.wait([*self._flying.values()])\n",
        tests=(
            "tests/node/test_slow_replica.py::test_t5_close_sends_the_acks_of_a_bucket_that_answers_beside_one_that_does_not",
        ),
    ),
    Ablation(
        mark="T5",
        rule="A look waits once for a sink that does not answer.",
        old="        if sink_id not in self._known:\n",
        new="        if True:\n",
        tests=(
            "tests/node/test_looks_away.py::test_t5_a_look_waits_once_for_a_sink_that_does_not_answer",
        ),
    ),
    Ablation(
        mark="T5",
        rule="A look waits once, though a bucket is away in each of its windows.",
        old="each_s=LATER_S if away else inf",
        new="each_s=inf",
        tests=(
            "tests/node/test_looks_away.py::test_t5_a_look_waits_once_though_each_of_its_windows_has_a_bucket_that_is_away",
        ),
    ),
    Ablation(
        mark="T5",
        rule="A redrive takes others in place of what it could not take.",
        old="                    self.left = left  # other messages may go instead\n",
        new="                    pass\n",
        tests=(
            "tests/node/test_looks_away.py::test_t5_a_redrive_takes_others_in_place_of_what_it_could_not_take",
        ),
    ),
    Ablation(
        mark="T22",
        rule="What was granted is handed out though no more hints can be written.",
        old="                    if not round_.claimed:\n                        raise  # no hint",
        new="                    if True:\n                        raise  # no hint",
        tests=(
            "tests/node/test_slow_replica.py::test_t22_what_was_claimed_is_handed_out_though_no_more_hints_can_be_written",
        ),
    ),
    Ablation(
        mark="T2",
        rule="Updated bodies of single rows are asked for side by side.",
        old="            some = self._planned.revisions[at : at + self._at_once]\n",
        new="            some = self._planned.revisions[at : at + 1]\n",
        tests=("tests/node/test_bodies.py::test_bodies_of_single_rows_are_asked_for_side_by_side",),
    ),
    Ablation(
        mark="T2",
        rule="A bucket counts for as many runs as one claim takes there.",
        old="min(RUNS_PER_LEASE, runs)",
        new="runs",
        tests=(
            "tests/node/test_reader.py::test_a_bucket_counts_for_as_many_runs_as_one_claim_takes_there",
        ),
    ),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Take them away one by one; 1 if one was not missed by each of its tests."""
    parser = argparse.ArgumentParser(prog="python -m tests.ablations", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("marks", nargs="*", metavar="MARK", help="P1 ... U18, lanes; none: all")
    parser.add_argument("--table", action="store_true", help="print the table of docs/marks.md")
    asked = parser.parse_args(arguments)
    if asked.table:
        print(table())
        return 0
    if unknown := sorted(set(asked.marks) - {one.mark for one in ABLATIONS}):
        parser.error(f"no ablation of {', '.join(unknown)}")
    chosen = [one for one in ABLATIONS if not asked.marks or one.mark in asked.marks]
    with tempfile.TemporaryDirectory(prefix="cassieq-ablation-") as directory:
        copy = Path(directory)
        _copy_to(copy)
        tests = sorted({test for one in chosen for test in one.tests})
        print(f"{len(chosen)} rules; first their {len(tests)} tests as they are", flush=True)
        broken = {test: why for test, why in _run(copy, tests).items() if why != PASSED}
        for test, why in broken.items():
            print(f"NOT PASSING  {test}  {why}", flush=True)
        if broken:
            return 1
        caught = sum([_is_caught(copy, one) for one in chosen])
    print(f"{caught} of {len(chosen)} rules are caught when they are taken away")
    return 0 if caught == len(chosen) else 1


def table() -> str:
    """What is built, for readers."""
    lines = ["| Mark | Rule | Where | Tests |", "| --- | --- | --- | --- |"]
    for one in ABLATIONS:
        where = one.path.removeprefix("cassieq_spark/")
        tests = ", ".join(
            f"[{test.partition('::test_')[2]}](../{test.partition('::')[0]})" for test in one.tests
        )
        lines.append(f"| {one.mark} | {one.rule} | [{where}](../{one.path}) | {tests} |")
    return "\n".join(lines)


def pytest_sessionstart(session: pytest.Session) -> None:
    """As a plugin of its own runs: what is imported must be the copy, not what is installed."""
    for module in (__file__, cassieq_spark.__file__):
        if not Path(module).resolve().is_relative_to(session.config.rootpath.resolve()):
            raise RuntimeError(f"{module} is not in {session.config.rootpath}")


def _copy_to(copy: Path) -> None:
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy / name)


def _is_caught(copy: Path, one: Ablation) -> bool:
    module = copy / one.path
    source = module.read_text(encoding="utf-8")
    module.write_text(one.applied_to(source), encoding="utf-8")
    try:
        ended = _run(copy, one.tests)
    finally:
        module.write_text(source, encoding="utf-8")
    is_caught = all(
        why not in (PASSED, NOT_RUN) and not why.startswith(NOT_A_PROOF) for why in ended.values()
    )
    verdict = "caught    " if is_caught else "NOT CAUGHT"
    print(f"{one.mark:<4} {verdict}  {one.rule}", flush=True)
    for test, why in ended.items():
        print(f"         {test.partition('::')[2]}: {why or 'passed'}"[:160], flush=True)
    return is_caught


def _run(copy: Path, tests: Iterable[str]) -> dict[str, str]:
    """How each of these tests ended in the copy: `PASSED`, or the first line of its failure.

    A fixture that breaks, or a module that cannot be imported, is `NOT_RUN`.
    """
    report = copy / "report.xml"
    report.unlink(missing_ok=True)
    wanted = list(tests)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "tests.ablations"),
            *("-p", "no:cacheprovider", "--timeout", str(LONGEST_TEST_S)),
            *("--junitxml", str(report), *wanted),
        ],
        cwd=copy,
        # No bytecode: two versions of a module may have one size and one second.
        env={**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    ended = _ended(report) if report.exists() else {}
    if missing := [test for test in wanted if ended.get(test, NOT_RUN) == NOT_RUN]:
        print(*missing, done.stdout[-3_000:], done.stderr[-3_000:], sep="\n", file=sys.stderr)
    return {test: ended.get(test, NOT_RUN) for test in wanted}


def _ended(report: Path) -> dict[str, str]:
    """By test; of one with parameters, a failure if any of them failed."""
    ended: dict[str, str] = {}
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - pytest wrote it just now
        name = re.sub(r"\[.*", "", case.attrib["name"])
        test = f"{case.attrib['classname'].replace('.', '/')}.py::{name}"
        why = PASSED if len(case) == 0 else NOT_RUN
        failure = case.find("failure")
        if failure is not None:
            why = failure.attrib["message"].partition("\n")[0] or "failed"
        if ended.get(test, PASSED) in (PASSED, NOT_RUN):
            ended[test] = why or ended.get(test, PASSED)
    return ended


if __name__ == "__main__":
    sys.exit(main())
