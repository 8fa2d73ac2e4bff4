"""A page of an attacker's origin in a real browser, and what it tries on a server of this machine."""

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from playwright.sync_api import Browser, Page

from tests.support.browsing import FLAGS, PATIENCE

_ATTACK = """
async ({ api, start, socket }) => {
  const body = JSON.stringify({ parameters: { corpus: "stolen" } });
  const told = {};
  const attempt = async (name, address, options) => {
    try {
      const answer = await fetch(address, { credentials: "include", ...options });
      told[name] = answer.type === "opaque" ? "opaque" : `read ${answer.status}`;
    } catch (error) { told[name] = "refused"; }
  };
  const text = { "Content-Type": "text/plain" }, json = { "Content-Type": "application/json" };
  const forged = { ...json, "Prefect-Csrf-Token": "x", "Prefect-Csrf-Client": "x" };
  await attempt("simple post", start, { method: "POST", body, mode: "no-cors", headers: text });
  await attempt("simple post, read", start, { method: "POST", body, headers: text });
  await attempt("post of json", start, { method: "POST", body, headers: json });
  await attempt("post with a token", start, { method: "POST", body, headers: forged });
  await attempt("csrf token", `${api}/csrf-token?client=x`, {});
  await attempt("list", `${api}/deployments/filter`, { method: "POST", body: "{}", headers: json });
  await attempt("settings", `${api}/admin/settings`, {});

  const listen = (path, protocols) => new Promise((done) => {
    const link = new WebSocket(`${socket}/${path}`, protocols);
    let heard = "";
    link.onopen = () => {
      link.send(JSON.stringify({ type: "auth", token: "memagent:guess" }));
      link.send(JSON.stringify({ type: "filter", filter: {} }));
    };
    link.onmessage = (message) => { heard += message.data; };
    link.onclose = () => done(/auth_success|"event"/.test(heard) ? `heard ${heard}` : "refused");
  });
  for (const [path, protocols] of [["events/in", []], ["events/in", ["prefect"]], ["events/out", ["prefect"]],
                                   ["logs/out", ["prefect"]]]) {
    told[`socket ${path} ${protocols}`] = await listen(path, protocols);
  }

  for (const type of ["application/x-www-form-urlencoded", "text/plain", "multipart/form-data"]) {
    const frame = document.createElement("iframe"), form = document.createElement("form");
    frame.name = `frame of ${type}`;
    Object.assign(form, { action: start, method: "POST", enctype: type, target: frame.name });
    const field = document.createElement("input");  // as text/plain this is JSON
    field.name = '{"parameters": {"corpus": "stolen", "a'; field.value = '": 1}}';
    form.append(field);
    document.body.append(frame, form);
    await new Promise((done) => { frame.onload = done; form.submit(); setTimeout(done, 10000); });
    told[`form ${type}`] = "sent";
  }
  return told;
}
"""


@contextmanager
def hostile_page(browser: Browser) -> Iterator[Page]:
    """Open a page whose name and server are an attacker's, in a browser of its own."""

    class Hostile(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>You have won</title>")

        def log_message(self, *_: object) -> None:
            pass

    installed = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    flags = [*FLAGS, "--host-resolver-rules=MAP evil.example 127.0.0.1"]
    with ThreadingHTTPServer(("127.0.0.1", 0), Hostile) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        theirs = browser.browser_type.launch(executable_path=installed, args=flags, timeout=PATIENCE)
        try:
            page = theirs.new_context().new_page()
            page.set_default_timeout(PATIENCE)
            page.goto(f"http://evil.example:{server.server_port}/")
            yield page
        finally:
            theirs.close()
            server.shutdown()


def attack(page: Page, api: str, start: str) -> dict[str, str]:
    """Try to start a flow, to read, and to listen; return what came of each attempt, by its name.

    Args:
        page: of another origin.
        api: address of Prefect's API.
        start: path in it that starts a flow run.
    """
    given = {"api": api, "start": f"{api}/{start}", "socket": api.replace("http", "ws", 1)}
    told: dict[str, str] = page.evaluate(_ATTACK, given)
    return told
