"""The schedules of deployments: an option wins, and without one the server's stay as people have set them."""

import uuid
from contextlib import contextmanager
from datetime import timedelta
from types import SimpleNamespace

import pytest
from prefect.client.schemas.objects import DeploymentSchedule
from prefect.client.schemas.schedules import CronSchedule, IntervalSchedule
from prefect.exceptions import ObjectNotFound

from pipelines.flows import deployments


class Server:
    """Has the schedules of one deployment, or does not know it."""

    def __init__(self, *crons, timezone="UTC", **more):
        self.id = uuid.uuid4()
        self.schedules = [
            DeploymentSchedule(id=uuid.uuid4(), schedule=CronSchedule(cron=cron, timezone=timezone), **more)
            for cron in crons
        ]

    def read_deployment_by_name(self, name):
        if not self.schedules:
            raise ObjectNotFound(http_exc=None)
        return SimpleNamespace(id=self.id, schedules=list(self.schedules))

    def delete_deployment_schedule(self, deployment, schedule):
        assert deployment == self.id
        self.schedules = [one for one in self.schedules if one.id != schedule]


@pytest.fixture
def at(monkeypatch):
    def use(server, cron=None, timezone=None, first="0 2 * * *"):
        @contextmanager
        def client(sync_client):
            assert sync_client
            yield server

        monkeypatch.setattr(deployments, "get_client", client)
        return [deployments._shown(one) for one in deployments._schedules("f/d", cron, first, timezone)]

    return use


def test_a_new_deployment_has_the_first_schedule_or_the_given_one(at):
    assert at(Server()) == ["0 2 * * * UTC"]
    assert at(Server(), "0 3 * * *", "Asia/Tokyo") == ["0 3 * * * Asia/Tokyo"]
    assert at(Server(), first=None) == []


def test_what_was_changed_at_the_server_stays(at):
    assert at(Server("30 1 * * *", "0 12 * * *", timezone="Europe/Berlin", slug="mine")) == [
        "30 1 * * * Europe/Berlin",
        "0 12 * * * Europe/Berlin",
    ]
    assert at(Server("30 1 * * *", active=False)) == ["30 1 * * * UTC (paused)"]


def test_an_option_replaces_what_the_server_has(at):
    server = Server("30 1 * * *", timezone="Europe/Berlin", slug="mine")
    assert at(server, "0 3 * * *") == ["0 3 * * * Europe/Berlin"] and server.schedules == []
    assert at(Server("30 1 * * *", timezone="Europe/Berlin"), timezone="Asia/Tokyo") == ["30 1 * * * Asia/Tokyo"]


def test_a_time_zone_alone_keeps_all_else_of_the_servers_schedules(at):
    server = Server("30 1 * * *", active=False)
    every = IntervalSchedule(interval=timedelta(hours=48))
    server.schedules.append(DeploymentSchedule(id=uuid.uuid4(), schedule=every))
    paused, other = at(server, timezone="Asia/Tokyo")
    assert paused == "30 1 * * * Asia/Tokyo (paused)" and "interval" in other and len(server.schedules) == 2
