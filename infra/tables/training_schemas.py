"""The columns of what teaches: training questions, and people's verdicts on answers (`infra.tables.schemas`)."""

import pyarrow as pa

_TIME = pa.timestamp("us", tz="UTC")
_TEXT = pa.large_string()
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
"""Questions that may teach, with their provenance (`memagent.curation.Qa`)."""

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
"""What people said about answers; which rows count, `memagent.reviews` says."""
