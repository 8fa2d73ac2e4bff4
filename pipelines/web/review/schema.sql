PRAGMA journal_mode = WAL;
CREATE TABLE corpus (
  id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, digest INTEGER NOT NULL DEFAULT 0,
  -- Of the last digest: whose answers count before others from before it, and then those of the reader's `kin`; to which
  -- questions; and the least id of an answer that is newer.
  reader INTEGER NOT NULL DEFAULT -1, questions TEXT NOT NULL DEFAULT '[]', since INTEGER NOT NULL DEFAULT 0,
  forgettings INTEGER NOT NULL DEFAULT 0  -- that the corpus had when this was begun
);
-- Models with their configurations.
CREATE TABLE reader (
  id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE,
  kin TEXT NOT NULL  -- the same for versions of a policy with the same configuration
);
CREATE TABLE question (
  id INTEGER PRIMARY KEY, corpus INTEGER NOT NULL, text TEXT NOT NULL, question_id TEXT NOT NULL,
  counted INTEGER NOT NULL DEFAULT 0,  -- whether the last digest asks it
  UNIQUE (corpus, text)
);
-- Versions of documents, as the table has them: the newest row of a document and text is its state.
CREATE TABLE version (
  corpus INTEGER NOT NULL, content_hash TEXT NOT NULL, doc_id TEXT NOT NULL, title TEXT NOT NULL, source TEXT NOT NULL,
  media_type TEXT NOT NULL, warnings TEXT NOT NULL, present INTEGER NOT NULL, seen_at INTEGER NOT NULL,
  PRIMARY KEY (corpus, content_hash, doc_id)
) WITHOUT ROWID;
CREATE INDEX version_of ON version (corpus, doc_id);
-- What was read: a text, under the name of one of the documents that have it; or a list of texts.
CREATE TABLE subject (
  id INTEGER PRIMARY KEY, corpus INTEGER NOT NULL, content_hash TEXT NOT NULL, doc_id TEXT NOT NULL, title TEXT NOT NULL,
  copies INTEGER NOT NULL, present INTEGER NOT NULL,
  UNIQUE (corpus, content_hash)
);
-- Answers, in the order in which they came; narrow, so that a scan of a million is quick.
CREATE TABLE item (
  id INTEGER PRIMARY KEY, corpus INTEGER NOT NULL, question INTEGER NOT NULL, subject INTEGER NOT NULL,
  shown INTEGER NOT NULL,
  state INTEGER NOT NULL,  -- whether people are shown an answer: the corrected one, if there is one; 2: it failed
  review INTEGER NOT NULL DEFAULT 0,
  reviewers INTEGER NOT NULL DEFAULT 0, answered_at INTEGER NOT NULL,
  confidence REAL NOT NULL DEFAULT 2,  -- 2: not known, after all that are
  level INTEGER NOT NULL DEFAULT -1,  -- of confidence: 0 low, 1 medium, 2 high; -1: the reader declares none
  reader INTEGER NOT NULL DEFAULT 0  -- 0: a failure, or an answer over all documents
);
CREATE INDEX item_pair ON item (subject, question, reader);
CREATE INDEX item_question ON item (question);
CREATE INDEX item_reviewed ON item (review) WHERE review > 0;
CREATE INDEX item_judged ON item (reviewers) WHERE reviewers > 0;
CREATE INDEX item_confidence ON item (confidence) WHERE shown;
CREATE INDEX item_level ON item (level) WHERE shown;
CREATE INDEX item_failed ON item (corpus) WHERE state = 2;
CREATE TABLE detail (
  id INTEGER PRIMARY KEY, reading_id TEXT NOT NULL, answer TEXT NOT NULL, quote TEXT NOT NULL, run_id TEXT NOT NULL,
  verbatim INTEGER NOT NULL DEFAULT 1,  -- whether the quote says the answer word for word
  warnings TEXT NOT NULL DEFAULT '',  -- what speaks against the answer
  shown_answer TEXT, part TEXT  -- the file that has the answer with its evidence
);
CREATE INDEX detail_reading ON detail (reading_id);
CREATE VIRTUAL TABLE words USING fts5 (answer, content = '', columnsize = 0);
-- How many items there are of each kind, kept by triggers: counts of a million without a scan.
CREATE TABLE tally (
  corpus INTEGER, question INTEGER, state INTEGER, review INTEGER, n INTEGER NOT NULL,
  PRIMARY KEY (corpus, question, state, review)
) WITHOUT ROWID;
CREATE TRIGGER item_added AFTER INSERT ON item WHEN new.shown BEGIN
  INSERT INTO tally VALUES (new.corpus, new.question, new.state, new.review, 1) ON CONFLICT DO UPDATE SET n = n + 1;
END;
CREATE TRIGGER item_removed AFTER DELETE ON item WHEN old.shown BEGIN
  UPDATE tally SET n = n - 1
    WHERE corpus = old.corpus AND question = old.question AND state = old.state AND review = old.review;
END;
CREATE TRIGGER item_changed AFTER UPDATE OF shown, state, review ON item
WHEN old.shown <> new.shown OR old.state <> new.state OR old.review <> new.review BEGIN
  UPDATE tally SET n = n - old.shown
    WHERE corpus = old.corpus AND question = old.question AND state = old.state AND review = old.review;
  INSERT INTO tally VALUES (new.corpus, new.question, new.state, new.review, new.shown)
    ON CONFLICT DO UPDATE SET n = n + new.shown;
END;
-- Verdicts, those of the table and those that are on their way to it.
CREATE TABLE verdict (
  corpus INTEGER NOT NULL, subject INTEGER NOT NULL, question INTEGER NOT NULL, reading_id TEXT NOT NULL,
  given_at INTEGER NOT NULL, reviewer TEXT NOT NULL, kind TEXT NOT NULL, given TEXT NOT NULL, answer TEXT NOT NULL,
  comment TEXT NOT NULL, decides INTEGER NOT NULL, spans TEXT NOT NULL,
  PRIMARY KEY (subject, question, given_at, reviewer, reading_id)
) WITHOUT ROWID;
-- Who has a verdict that counts, by text and question.
CREATE TABLE judge (
  reviewer TEXT NOT NULL, subject INTEGER NOT NULL, question INTEGER NOT NULL, PRIMARY KEY (reviewer, subject, question)
) WITHOUT ROWID;
CREATE INDEX judge_pair ON judge (subject, question);
-- Verdicts on readings that are not indexed yet.
CREATE TABLE waiting (corpus TEXT, reading_id TEXT, given_at INTEGER, row TEXT, PRIMARY KEY (corpus, reading_id, given_at));
-- Files of the tables that have been read.
CREATE TABLE seen (path TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE note (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
-- Files that have answers of withheld digests, to be read again when these are released.
CREATE TABLE kept (path TEXT NOT NULL, corpus TEXT NOT NULL, run_id TEXT NOT NULL, PRIMARY KEY (path, run_id));
