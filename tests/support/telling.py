"""Who is told of scheduled runs that went wrong: blocks and automations of a Prefect server, and a webhook."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

BLOCK = """
import sys
from prefect.blocks.notifications import CustomWebhookNotificationBlock
json_data = {"subject": "{{subject}}", "body": "{{body}}"}
CustomWebhookNotificationBlock(name="nights", url=sys.argv[1], json_data=json_data).save("nights", overwrite=True)
"""
"""Makes the block custom-webhook/nights; its argument is the address."""
MAIL_BLOCK = """
import sys
from prefect.blocks.notifications import SlackWebhook
SlackWebhook(url=sys.argv[1]).save("mail", overwrite=True)
"""
"""Makes the block slack-webhook/mail; its argument is an address of Apprise."""
OLDER = """
from prefect.automations import AutomationCore, EventTrigger, Posture
from prefect.client.orchestration import get_client
with get_client(sync_client=True) as client:
    (known,) = client.read_automations_by_name("memagent: scheduled runs that went wrong")
    trigger = EventTrigger(expect={"memagent.quality.schedule.late"}, posture=Posture.Reactive, threshold=1)
    client.update_automation(known.id, AutomationCore(name=known.name, trigger=trigger, actions=known.actions))
"""
"""Makes the automation one of a version that knew of late runs alone."""


@contextmanager
def webhook() -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Listen on 127.0.0.1; gives the address, and what is posted there as it comes."""
    told: list[dict[str, str]] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Hook) as hook:
        threading.Thread(target=hook.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{hook.server_port}/", told
        hook.shutdown()
