"""Plans of runs."""

import pytest

from infra.store.buckets import Bucket
from infra.store.location import Corpus, Store
from infra.store.plans import plan_parts, read_plan


@pytest.mark.parametrize("bucket", [None, Bucket(0, 2)])
def test_a_run_without_a_plan_is_told_from_one_whose_plan_is_empty(tmp_path, bucket):
    corpus = Corpus(Store(str(tmp_path)), "c")
    with pytest.raises(FileNotFoundError):
        read_plan(corpus, "none", bucket=bucket)
    with pytest.raises(FileNotFoundError):
        list(plan_parts(corpus, "none"))
