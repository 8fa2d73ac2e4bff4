import asyncio

import pytest
from ray.exceptions import ActorDiedError

from memagent.errors import TrainingError
from pipelines.training.loop import WeightSync


class Learner:
    def __init__(self):
        self.sent = []

    async def call(self, method, *args):
        return [await getattr(self, method.__name__)(*args)]

    async def weights(self):
        return {"model": "reference"}

    async def meeting(self, engines):
        await asyncio.sleep(0)
        return ("meeting", engines)

    async def send(self, meeting):
        self.sent.append(meeting)


class Pool:
    places = range(3)

    def __init__(self, lost=False):
        self.lost, self.renew, self.given = lost, None, []

    def processes(self, places):
        return 2 * len(places)

    async def update(self, weights):
        self.given.append(weights)

    async def receive(self, meeting, version, places):
        if self.lost:
            raise ActorDiedError
        self.given.append((meeting, version, list(places)))


async def synced(sync):
    await sync.give(await sync.collect())


async def test_files_go_to_all_engines():
    learner, pool = Learner(), Pool()
    await synced(WeightSync(learner, pool, "files", lambda: "run:1"))
    (weights,) = pool.given
    assert (weights.version, weights.files, pool.renew, learner.sent) == ("run:1", {"model": "reference"}, None, [])


async def test_a_broadcast_meets_all_engines_and_later_one_that_was_replaced():
    learner, pool = Learner(), Pool()
    steps = iter(("run:1", "run:2"))
    await synced(WeightSync(learner, pool, "broadcast", lambda: next(steps)))
    await pool.renew(1)
    assert learner.sent == [("meeting", 6), ("meeting", 2)]
    assert pool.given == [(("meeting", 6), "run:1", [0, 1, 2]), (("meeting", 2), "run:2", [1])]


async def test_the_version_is_that_of_the_weights_once_a_step_that_is_learnt_is_done():
    learner, pool = Learner(), Pool()
    step = {"now": 1}

    async def meeting(engines):
        step["now"] = 2  # the learner answers when its step is done
        return engines

    learner.meeting = meeting
    await synced(WeightSync(learner, pool, "broadcast", lambda: f"run:{step['now']}"))
    assert pool.given[0][1] == "run:2"


async def test_an_engine_that_is_lost_meanwhile_ends_the_run_with_what_to_do():
    with pytest.raises(TrainingError, match=r"run:1 did not reach .* last checkpoint"):
        await synced(WeightSync(Learner(), Pool(lost=True), "broadcast", lambda: "run:1"))


async def test_a_learner_that_cannot_send_ends_the_run_with_what_to_do():
    async def send(meeting):
        raise TrainingError("no engine came")

    learner = Learner()
    learner.send = send
    with pytest.raises(TrainingError, match=r"run:1 did not reach .*no engine came.* last checkpoint"):
        await synced(WeightSync(learner, Pool(), "broadcast", lambda: "run:1"))
