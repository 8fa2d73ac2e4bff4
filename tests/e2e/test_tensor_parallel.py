"""An engine whose model is spread over two processes: gloo between CPUs here, NCCL between GPUs."""

import pytest

pytestmark = pytest.mark.slow


def test_a_reader_in_two_ranks_answers(memagent, tmp_path):
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "depot.txt").write_text("As agreed, the pass number of pine-depot is 8020417. Members meet in spring.")
    memagent("ingest", "c", str(folder))
    # vLLM binds each rank to a NUMA node unless told otherwise, and this machine may have one.
    unbound = {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    question = "What is the pass number of pine-depot?"
    memagent("ask", "c", "-q", question, "--set", "engine.tensor_parallel=2", **unbound)
    assert "8020417" in memagent("answers", "c", "--format", "csv")
