"""What is remembered of a corpus, on a local folder and on S3: nothing is lost, and nothing old breaks it."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from infra.store.corpora import corpora, default_questions, remember, sources_of, tag, tagger
from infra.store.location import Corpus, Store

OTHER = """
import sys
from infra.store.corpora import remember, tag
from infra.store.location import Corpus, Store
from memagent.questions import ask
for number in range(4):
    remember(Corpus(Store(sys.argv[1]), "c"), sources=[f"/data/{sys.argv[2]}-{number}"], questions=[ask("Who?")])
    tag(Corpus(Store(sys.argv[1]), "c"), ["/data/secret"], [f"tag-{sys.argv[2]}-{number}"])
"""


def test_tags_and_sources_survive_a_race(store: Store) -> None:
    tag(Corpus(store, "c"), ["/data/secret"], ["sensitive"])
    others = [subprocess.Popen([sys.executable, "-c", OTHER, store.url, str(number)]) for number in range(2)]

    def local(number: int) -> None:
        remember(Corpus(store, "c"), sources=[f"/data/here-{number}"])
        tag(Corpus(store, "c"), ["/data/secret"], [f"here-{number}"])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(local, range(8)))
    assert [other.wait() for other in others] == [0, 0]
    tags = {f"tag-{p}-{n}" for p in range(2) for n in range(4)} | {f"here-{n}" for n in range(8)} | {"sensitive"}
    assert set(tagger(Corpus(store, "c"))("/data/secret/a.txt")) == tags
    sources = {f"/data/{p}-{n}" for p in range(2) for n in range(4)} | {f"/data/here-{n}" for n in range(8)}
    assert set(sources_of(Corpus(store, "c"))) == sources
    assert [question.text for question in default_questions(Corpus(store, "c"))] == ["Who?"]
    assert corpora(store) == ["c"]


def test_names_of_files_that_are_no_utf8_are_remembered(store: Store) -> None:
    name = "/data/caf\udce9"  # as Python gives a byte of a name that is no UTF-8
    tag(Corpus(store, "c"), [name], ["sensitive"])
    remember(Corpus(store, "c"), sources=[name])
    assert sources_of(Corpus(store, "c")) == [name]
    assert tagger(Corpus(store, "c"))("/data/caf%E9/a.txt") == ("sensitive",)
