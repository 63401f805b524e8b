"""Errors planted in copies of the ring's sources, each with the test program that must fail on it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PlantedEdit:
    name: str
    file: str
    old: str  # occurs exactly once
    new: str
    program: str


EDITS = (
    PlantedEdit(
        "a take forgets EVICTED", "consumer.c", "word & UC_ENTRY_EVICTED, hand)", "0, hand)", program="crash_points"
    ),
    PlantedEdit("EVICTED is never set", "ring.c", "? UC_ENTRY_EVICTED : 0", "? 0 : 0", program="crash_points"),
    PlantedEdit(
        "progress is not stored",
        "ring.c",
        "uc_store_release(&ring->block->progress,",
        "(void)(",
        program="crash_points",
    ),
    PlantedEdit(
        "lost records are not counted",
        "ring.c",
        "uc_store_relaxed(&ring->block->lost, ring->lost);",
        "",
        program="crash_points",
    ),
    PlantedEdit(
        "a copy is kept although the swap failed",
        "consumer.c",
        "if (!uc_cas_take(next_entry(ring), &word, word & ~UC_ENTRY_FULL))\n            continue;",
        "(void)uc_cas_take(next_entry(ring), &word, word & ~UC_ENTRY_FULL);",
        program="test_interleavings",
    ),
    PlantedEdit(
        "a record is taken although the swap failed",
        "consumer.c",
        "if (!uc_cas_take(next_entry(ring), &word, left)) {",
        "if (!uc_cas_take(next_entry(ring), &word, left) && false) {",
        program="test_interleavings",
    ),
    PlantedEdit(
        "a word is stored into although it is full",
        "ring.c",
        "        if (!is_full)\n            uc_store_publish",
        "        if (true)\n            uc_store_publish",
        program="test_interleavings",
    ),
    PlantedEdit(
        "the end is believed at the first look",
        "consumer.c",
        "is_ending = true; /* look once more",
        "return UC_END_OF_STREAM; /* look once more",
        program="test_interleavings",
    ),
    PlantedEdit(
        "a new consumer begins at the tail",
        "consumer.c",
        ".next = tail - queue_depth,",
        ".next = tail,",
        program="test_ring",
    ),
    PlantedEdit(
        "the producer believes any slot",
        "ring.c",
        "|| class_index == UC_CLASS_COUNT || (attempt",
        "|| (attempt",
        program="fuzz",
    ),
    PlantedEdit(
        "the consumer believes any header",
        "consumer.c",
        "if (header->sequence != ring->next || header->generation != ring->generation",
        "if (header->sequence != ring->next",
        program="fuzz",
    ),
    PlantedEdit(
        "any answer is taken for one's own",
        "answer.c",
        "if (uc_load_acquire(&cell->sequence) != sequence) /* SYNC answer */",
        "if (uc_load_acquire(&cell->sequence) == 0)",
        program="test_answers",
    ),
    PlantedEdit(
        "an earlier ring's answer is taken",
        "answer.c",
        "if (uc_load_relaxed(&cell->generation) != ring->generation)",
        "if (0)",
        program="test_answers",
    ),
    PlantedEdit(
        "an answer of any length is read",
        "answer.c",
        "if (length > UC_ANSWER_BYTES_MAX)\n        return UC_CORRUPT;",
        "",
        program="test_answers",
    ),
    PlantedEdit(
        "a last word is said before the consumer has let go",
        "answer.c",
        "    uc_consumer_detach(ring); /* SYNC reader: who sees the answer may take the ring's memory back */\n"
        "    publish(ring, UC_SEQUENCE_END);",
        "    publish(ring, UC_SEQUENCE_END);\n    uc_consumer_detach(ring);",
        program="test_answers",
    ),
    PlantedEdit(
        "a waiter's bell does not ring",
        "answer.c",
        '    uc_fetch_add_release(&cell->bell, 1u); /* SYNC bell */\n    UC_STEP("answer.grown");',
        '    UC_STEP("answer.grown");',
        program="test_answers",
    ),
)
