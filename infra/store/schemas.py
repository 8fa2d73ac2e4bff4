"""The tables' columns. Times are UTC microseconds; `corpus` partitions every Delta table."""

from typing import NamedTuple

import pyarrow as pa

_TIME = pa.timestamp("us", tz="UTC")
_TEXT = pa.large_string()
"""Of texts that a model or a person wrote. Offsets of 32 bits end at 2 GiB of a column, where a run's texts do not."""
_IDS = pa.large_list(pa.int32())
"""Token ids, for the same reason."""

DOCUMENTS = pa.schema(
    [
        ("corpus", pa.string()),
        ("doc_id", pa.string()),  # its path under the source that it was found under; of a table's row <file>#<row>
        ("content_hash", pa.string()),  # of the text
        ("title", pa.string()),  # of the document itself, or its file name
        ("source", pa.string()),  # where it was read from
        ("source_stamp", pa.string()),  # size and time, or ETag: an unchanged one is not opened again
        ("media_type", pa.string()),
        ("encoding", pa.string()),  # that the text was decoded from
        ("size_bytes", pa.int64()),  # of the source
        ("chars", pa.int64()),  # of the text
        ("state", pa.string()),  # present | superseded (by another version of the document) | deleted
        ("seen_at", _TIME),  # when this row's state was noted
        ("first_seen", _TIME),  # when the document was first there
        ("page_starts", pa.list_(pa.int64())),  # offsets in the text; null: no pages
        ("warnings", pa.list_(pa.string())),  # parts not read, or read by OCR; null: none
    ]
)
"""Append-only: the newest row of a (doc_id, content_hash) is its present state."""

TEXTS = pa.schema(
    [
        ("corpus", pa.string()),
        ("content_hash", pa.string()),  # of the text
        ("text", _TEXT),
    ]
)
"""Append-only, apart from the documents: no read of metadata opens a file that holds texts."""

SOURCES = pa.schema(
    [
        ("corpus", pa.string()),
        ("source", pa.string()),
        ("doc_id", pa.string()),  # of the file; its rows have <doc_id>#<row>
        ("source_stamp", pa.string()),
        ("state", pa.string()),  # read | failed | deleted
        ("documents", pa.int64()),
        ("run_id", pa.string()),
        ("seen_at", _TIME),
    ]
)
"""Append-only: the newest row of a source. Written after its documents, it is their commit record."""

SEGMENTED = pa.schema(
    [
        ("corpus", pa.string()),
        ("segment_key", pa.string()),
        ("content_hash", pa.string()),
        ("tokenizer", pa.string()),
        ("segment_tokens", pa.int32()),
        ("boundary", pa.string()),
        ("cutting_version", pa.int32()),  # of the rules by which the text was cut
        ("part", pa.string()),  # path relative to the store
        ("first_row", pa.int64()),
        ("segments", pa.int32()),
        ("tokens", pa.int64()),
        ("written_at", _TIME),
    ]
)
"""Where the segments of a document stand: the commit record of the segment parts."""

SEGMENTS = pa.schema(
    [
        ("content_hash", pa.string()),
        ("index", pa.int32()),  # from 0
        ("char_start", pa.int64()),  # in the document's text
        ("char_end", pa.int64()),
        ("segment_hash", pa.string()),
        ("text", _TEXT),
        ("token_ids", pa.list_(pa.int32())),
    ]
)

TURNS = pa.schema(
    [
        ("reading_id", pa.string()),
        ("span", pa.int32()),
        ("step", pa.int32()),
        ("kind", pa.string()),  # update | merge | answer | carried
        ("content_hash", pa.string()),
        ("segment_index", pa.int32()),
        ("response_ids", _IDS),
        ("response", _TEXT),
        ("memory_ids", _IDS),
        ("memory", _TEXT),  # after the turn
        ("changed", pa.bool_()),  # whether it changed the memory
        ("prompt_tokens", pa.int32()),
        ("cached_tokens", pa.int32()),
        ("finish_reason", pa.string()),
        ("seconds", pa.float64()),
        ("logprobs", pa.large_list(pa.float32())),  # of each response token; null: not kept
        ("confidence", pa.float32()),  # of the least sure conversation of its span so far; the answer's: of all spans
        ("weight_version", pa.string()),
        ("carried_from", pa.string()),
        ("policy_id", pa.string()),
        ("run_id", pa.string()),
        ("written_at", _TIME),
    ]
)
"""The turn log. Key: reading_id, span, step."""

EVIDENCE = pa.struct(
    [
        ("content_hash", pa.string()),
        ("segment_index", pa.int32()),
        ("char_start", pa.int64()),
        ("char_end", pa.int64()),
        ("quote", pa.string()),
        ("quote_start", pa.int64()),
        ("quote_end", pa.int64()),
        ("verbatim", pa.bool_()),  # the quote says the answer word for word; else it supports it
    ]
)

ANSWERS = pa.schema(
    [
        ("corpus", pa.string()),
        ("reading_id", pa.string()),  # hash of texts, question, the model's version and the reading configuration
        ("question_id", pa.string()),  # as the questions file has it
        ("question", _TEXT),
        ("scope", pa.string()),  # document | archive
        ("content_hash", pa.string()),  # of the document; of the list of documents for an archive
        ("stream", pa.list_(pa.string())),  # content hashes in reading order; empty: see `infra.store.segments`
        ("policy_id", pa.string()),  # the model's version
        ("config_hash", pa.string()),  # of the reading configuration
        ("answer", _TEXT),  # empty: not found
        ("found", pa.bool_()),  # whether the documents say it
        ("confidence", pa.float32()),  # the lowest of its conversations' mean probabilities; null: not known
        ("evidence", pa.list_(EVIDENCE)),  # places that the answer came from
        ("segments", pa.int32()),  # read for it
        ("conversations", pa.int32()),  # with the model
        ("prompt_tokens", pa.int64()),
        ("cached_tokens", pa.int64()),
        ("output_tokens", pa.int64()),
        ("seconds", pa.float64()),  # from its first conversation to its answer
        ("engine_seconds", pa.float64()),  # its share of the engine's time (`infra.cluster.reading_worker`)
        ("carried_from", pa.string()),  # the reading whose memory this one went on from, if any
        ("carried_segments", pa.int32()),
        ("run_id", pa.string()),  # that answered
        ("answered_at", _TIME),  # when
        ("memories_cut", pa.int32()),  # updates by its segments: at `reading.memory_tokens`, repetitions, empty ones
        ("memory_empty", pa.bool_()),  # whether it answered from an empty memory
        ("confidence_level", pa.string()),  # low | medium | high; null: the reader declares none
        ("warnings", pa.list_(pa.string())),  # what speaks against the answer
    ]
)

QUARANTINE = pa.schema(
    [
        ("corpus", pa.string()),
        ("stage", pa.string()),  # ingest | segment | plan | read
        ("item", pa.string()),
        ("reason", pa.string()),  # a short stable word
        ("detail", pa.string()),
        ("run_id", pa.string()),
        ("at", _TIME),
    ]
)

RUNS = pa.schema(
    [
        ("corpus", pa.string()),
        ("run_id", pa.string()),
        ("kind", pa.string()),  # ingest | ask | digest | backfill | evaluate | agreement | harvest | train
        ("status", pa.string()),  # running, stopped (broken off), completed, completed with warnings, failed or paused
        ("started_at", _TIME),
        ("ended_at", _TIME),
        ("config", pa.string()),  # JSON, without secrets
        ("summary", pa.string()),  # JSON
        ("withheld", pa.bool_()),  # whether its answers are hidden (`infra.store.runs`)
    ]
)

PLAN = pa.schema(
    [
        ("reading_id", pa.string()),
        ("doc_id", pa.string()),  # empty for an archive
        ("title", pa.string()),
        ("content_hash", pa.string()),
        ("stream", pa.list_(pa.string())),  # as in `ANSWERS`
        ("documents", pa.int64()),
        ("question_id", pa.string()),
        ("question", _TEXT),
        ("gold", pa.list_(pa.string())),  # null: not known; [""]: the documents do not say
        ("scope", pa.string()),
        ("state", pa.string()),  # answered (before this run) | continued | new
        ("segments", pa.int32()),
        ("tokens", pa.int64()),
        ("answered_by", pa.string()),  # reading_id of the answer that counts, for state answered
        ("carried_from", pa.string()),
        ("carried_segments", pa.int32()),
    ]
)
"""``runs/<run_id>/plan/<bucket>.parquet``: which readings a run is about."""

PLACES = pa.schema(
    [("content_hash", pa.string()), ("part", pa.string()), ("first_row", pa.int64()), ("segments", pa.int32())]
)
"""Where the segments of documents are."""

WORK = pa.schema(
    [
        ("reading_id", pa.string()),
        ("question_id", pa.string()),
        ("question", _TEXT),
        ("scope", pa.string()),
        ("content_hash", pa.string()),
        ("item", pa.string()),
        ("documents", pa.int64()),
        ("places", pa.list_(pa.struct(list(PLACES)))),  # empty for an archive
        ("stream", pa.string()),  # file of the places of an archive (`infra.store.segments`)
        ("past", _TEXT),
        ("left", pa.int32()),
        ("carried_from", pa.string()),
        ("carried_segments", pa.int32()),
    ]
)
"""``runs/<run_id>/work/<bucket>.parquet``: what is left to read (`infra.store.plans`)."""

SCORES = pa.schema(
    [
        ("corpus", pa.string()),
        ("score_id", pa.string()),
        ("run_id", pa.string()),
        ("suite", pa.string()),
        ("task", pa.string()),  # "all" for the mean over the tasks of a length
        ("length", pa.int64()),  # tokens asked for; 0 where texts are as long as they are
        ("policy_id", pa.string()),
        ("method", pa.string()),
        ("control", pa.string()),  # empty: none
        ("metric", pa.string()),
        ("value", pa.float64()),
        ("low", pa.float64()),  # 95% interval
        ("high", pa.float64()),
        ("n", pa.int64()),
        ("failed", pa.int64()),  # of n; each counts 0
        ("seed", pa.int64()),
        ("samples", pa.string()),  # JSON: the suite
        ("scored_at", _TIME),
    ]
)

POLICIES = pa.schema(
    [
        ("corpus", pa.string()),  # always POLICIES_OF: policies belong to the store, not to a corpus
        ("policy_id", pa.string()),
        ("name", pa.string()),  # the lineage, for example nano
        ("path", pa.string()),  # folder relative to the store; empty: the lineage's base model
        ("parent", pa.string()),  # policy_id
        ("status", pa.string()),  # candidate | promoted | refused | retired
        ("reason", pa.string()),  # of the last change of status
        ("data_version", pa.int64()),  # Delta version of the qa table that it learnt from
        ("run_id", pa.string()),  # of the training
        ("config", pa.string()),  # JSON: the recipe
        ("metrics", pa.string()),  # JSON: of the training's best step
        ("promotion", pa.string()),  # JSON: what was compared, and how it came out
        ("commit", pa.string()),  # version of the code
        ("made_at", _TIME),
        ("changed_at", _TIME),
    ]
)
"""Model versions and what became of them."""

POLICIES_OF = "*"

RESULTS = pa.schema(
    [
        ("sample_id", pa.string()),
        ("task", pa.string()),
        ("length", pa.int64()),
        ("depth", pa.float64()),
        ("question", pa.string()),
        ("gold", pa.list_(pa.string())),
        ("answer", pa.string()),  # empty: not found; null: the reading failed
        ("score", pa.float64()),
        ("exact", pa.float64()),
        ("reading_id", pa.string()),
        ("tokens", pa.int64()),
        ("seconds", pa.float64()),  # its share of the engine's time
        ("segments", pa.int64()),
        ("confidence", pa.float32()),  # as of its answer
        ("failure", pa.string()),  # why a wrong answer is wrong (`memagent.evaluation.grading`); empty: it is right
        ("lost_step", pa.int64()),  # where the memory lost what it had noted
        ("lost_segment", pa.int64()),
    ]
)
"""``runs/<run_id>/results.parquet``: an evaluation's samples, judged."""


_SPAN = pa.struct([("content_hash", pa.string()), ("char_start", pa.int64()), ("char_end", pa.int64())])
QA = pa.schema(
    [
        ("corpus", pa.string()),
        ("qa_id", pa.string()),
        ("question", pa.string()),
        ("answers", pa.list_(pa.string())),  # [""]: the stream does not say
        ("stream", pa.list_(pa.string())),  # content hashes in reading order
        ("documents", pa.list_(pa.string())),  # doc_ids; the split goes by them
        ("source", pa.string()),  # feedback | gold | agreement | generated
        ("reading_id", pa.string()),
        ("policy_id", pa.string()),
        ("share", pa.float64()),  # of sampled readings, those that agreed
        ("pass_rate", pa.float64()),  # of readings, those that were right
        ("evidence", pa.list_(pa.struct([("content_hash", pa.string()), ("segment_index", pa.int32())]))),
        ("tags", pa.list_(pa.string())),
        ("split", pa.string()),  # train | validation | promotion | test
        ("split_version", pa.int32()),  # of the rule that the split is by
        ("run_id", pa.string()),  # of the harvest
        ("harvested_at", _TIME),
        ("spans", pa.list_(_SPAN)),  # where the documents say the answer; null where unknown
    ]
)
"""Questions that may teach, with their provenance (`memagent.quality.curation.Qa`)."""

FEEDBACK = pa.schema(
    [
        ("corpus", pa.string()),
        ("reading_id", pa.string()),
        ("verdict", pa.string()),  # accepted | rejected | corrected | withdrawn | comment
        ("answer", pa.string()),  # what is right, where it was corrected; empty: the documents do not say
        ("given_at", _TIME),
        (
            "reviewer",
            pa.string(),
        ),  # who; empty: a file of verdicts
        ("comment", _TEXT),
        ("spans", pa.list_(_SPAN)),  # where the documents say the answer
        ("decides", pa.bool_()),  # settles a disagreement: what others said before no longer counts
    ]
)
"""What people said about answers; which rows count, `memagent.quality.verdicts` says."""


class TableSpec(NamedTuple):
    """A Delta table."""

    schema: pa.Schema
    key: tuple[str, ...]
    """What a row is known by, beside its corpus."""


TABLES = {
    "documents": TableSpec(DOCUMENTS, ("doc_id", "content_hash", "seen_at")),
    "texts": TableSpec(TEXTS, ("content_hash",)),
    "sources": TableSpec(SOURCES, ("source", "seen_at")),
    "segmented": TableSpec(SEGMENTED, ("segment_key",)),
    "answers": TableSpec(ANSWERS, ("reading_id",)),
    "quarantine": TableSpec(QUARANTINE, ("stage", "item", "reason")),
    "runs": TableSpec(RUNS, ("run_id",)),
    "scores": TableSpec(SCORES, ("score_id",)),
    "qa": TableSpec(QA, ("qa_id",)),
    "feedback": TableSpec(FEEDBACK, ("reading_id", "given_at")),
    "policies": TableSpec(POLICIES, ("policy_id",)),
}
"""By name."""
