"""Tags of sources."""

import pytest

from infra.store.corpora import remember, sources_of, tag, tagger
from infra.store.location import Corpus, Store
from memagent.errors import UsageError


@pytest.mark.parametrize(
    ("given", "source", "lies_under"),
    [
        ("/data/hr", "/data/hr/a.txt", True),
        ("/data/hr/", "/data/hr/deep/a.txt", True),
        ("/data/hr", "/data/hr-public/a.txt", False),
        ("/data/x/../hr", "/data/hr/a.txt", True),
        ("/data/hr/a.txt", "/data/hr/a.txt", True),
        ("/data/*.txt", "/data/a.txt", True),
        ("/data/*.txt", "/data/deep/a.txt", False),
        ("/data/**/hr/*", "/data/one/two/hr/a.txt", True),
        ("/data/a#b", "/data/a%23b/c.txt", True),
        ("s3://bucket/hr", "s3://bucket/hr/a.txt", True),
        ("s3://bucket/hr", "s3://bucket/hr2/a.txt", False),
    ],
)
def test_a_document_has_the_tags_of_what_it_lies_under(tmp_path, given, source, lies_under):
    store = Store(str(tmp_path))
    tag(Corpus(store, "c"), [given], ["sensitive"])
    assert tagger(Corpus(store, "c"))(source) == (("sensitive",) if lies_under else ())


def test_tags_add_up_and_stay(tmp_path):
    store = Store(str(tmp_path))
    tag(Corpus(store, "c"), ["/data"], ["draft"])
    tag(Corpus(store, "c"), ["/data/hr"], ["sensitive", "draft"])
    remember(Corpus(store, "c"), sources=["/data"])
    assert tagger(Corpus(store, "c"))("/data/hr/a.txt") == ("draft", "sensitive")
    assert tagger(Corpus(store, "c"))("/data/b.txt") == ("draft",)
    assert tagger(Corpus(store, "other"))("/data/b.txt") == ()
    assert sources_of(Corpus(store, "c")) == ["/data"], "a tagged source is not thereby one to ingest"


def test_a_tag_is_a_plain_word(tmp_path):
    with pytest.raises(UsageError, match="'very secret'"):
        tag(Corpus(Store(str(tmp_path)), "c"), ["/data"], ["very secret"])
