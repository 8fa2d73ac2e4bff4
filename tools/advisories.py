"""What `make audit` says of a lock: known vulnerabilities that nobody has judged yet.

    python tools/advisories.py LOCK IGNORED <(pip-audit --format json ...)
    python tools/advisories.py LOCK IGNORED --dump all.zip

The dump is OSV's of PyPI, for machines without a network:
https://osv-vulnerabilities.storage.googleapis.com/PyPI/all.zip
A line of IGNORED is an id and the reason why it does not apply here. Exit status: 1 where there is a vulnerability
that is not ignored, 3 where nothing could be looked up (the service is away, or knows no advisories), else 0.

Runs in the environment of `infra/tools.sh supply`: imports nothing of the product.
"""

import argparse
import json
import re
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

VULNERABLE, NOT_LOOKED_UP = 1, 3


@dataclass(frozen=True)
class Finding:
    """A known vulnerability of a pinned package."""

    package: str
    version: str
    ids: tuple[str, ...]
    """Its own id, and those that it has elsewhere."""
    fixed: tuple[str, ...] = ()
    """Versions without it."""


@dataclass
class Lookup:
    """What was found out about a lock."""

    looked_up: int = 0
    unknown: list[str] = field(default_factory=list)
    """Packages of which the service knows nothing."""
    findings: list[Finding] = field(default_factory=list)


def pinned(lock: Path) -> dict[str, str]:
    """Return the versions that a lock pins, by name."""
    pins = re.findall(r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^ ;\\\n]+)", lock.read_text(), re.M)
    return {canonicalize_name(name): version for name, version in pins}


def ignored(file: Path) -> dict[str, str]:
    """Return reasons by id.

    Raises:
        SystemExit: a line has no reason.
    """
    reasons = {}
    for number, line in enumerate(file.read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, reason = line.strip().partition(" ")
        if not reason.strip():
            raise SystemExit(f"{file}, line {number}: {name} has no reason: write why it does not apply here")
        reasons[name] = reason.strip()
    return reasons


def of_pip_audit(text: str) -> Lookup:
    """Read the JSON of pip-audit; nothing is looked up where it ended without one."""
    lookup = Lookup()
    try:
        packages = json.loads(text)["dependencies"]
    except (ValueError, KeyError):
        return lookup
    for package in packages:
        if "skip_reason" in package:
            lookup.unknown.append(package["name"])
            continue
        lookup.looked_up += 1
        for known in package["vulns"]:
            ids, fixed = (known["id"], *known.get("aliases", ())), tuple(known.get("fix_versions", ()))
            lookup.findings.append(Finding(package["name"], package["version"], ids, fixed))
    return lookup


def of_dump(dump: Path, pins: dict[str, str]) -> Lookup:
    """Look pinned versions up in a dump of OSV; it is of all packages, so all count as looked up."""
    lookup = Lookup(looked_up=len(pins))
    with zipfile.ZipFile(dump) as archive:
        for name in archive.namelist():
            lookup.findings += _of_advisory(json.loads(archive.read(name)), pins)
    return lookup


def _of_advisory(advisory: dict[str, Any], pins: dict[str, str]) -> Iterator[Finding]:
    if "withdrawn" in advisory:
        return
    for affected in advisory.get("affected", ()):
        about = affected.get("package", {})
        package = canonicalize_name(about.get("name", ""))
        if about.get("ecosystem") != "PyPI" or package not in pins:
            continue
        version = pins[package]
        ranges = [each for each in affected.get("ranges", ()) if each["type"] == "ECOSYSTEM"]
        if version in affected.get("versions", ()) or any(_within(version, each["events"]) for each in ranges):
            fixed = tuple(event["fixed"] for each in ranges for event in each["events"] if "fixed" in event)
            yield Finding(package, version, (advisory["id"], *advisory.get("aliases", ())), fixed)


def _within(version: str, events: list[dict[str, str]]) -> bool:
    """Tell whether a version is in a range of OSV: its events say where the vulnerability comes and goes."""
    inside = False
    try:
        for event in events:
            ((kind, bound),) = event.items()
            reached = bound == "0" or Version(version) >= Version(bound)
            if kind == "introduced" and reached:
                inside = True
            elif (kind == "fixed" and reached) or (kind == "last_affected" and Version(version) > Version(bound)):
                inside = False
    except InvalidVersion:
        return True  # somebody has to look
    return inside


def judge(name: str, lookup: Lookup, reasons: dict[str, str]) -> int:
    """Print what was found; return the exit status."""
    open_findings = [each for each in lookup.findings if not set(each.ids) & set(reasons)]
    for finding in open_findings:
        advice = f"fixed in {', '.join(finding.fixed)}" if finding.fixed else "no version is fixed yet"
        print(f"{name}: {finding.package} {finding.version}: {', '.join(finding.ids)}; {advice}")
    passed_over = len(lookup.findings) - len(open_findings)
    print(
        f"{name}: {lookup.looked_up} packages looked up, {len(open_findings)} vulnerabilities, {passed_over} ignored; "
        f"{len(lookup.unknown)} packages that the service does not know"
    )
    if open_findings:
        return VULNERABLE
    if not lookup.looked_up:
        print(f"{name}: NOT AUDITED: the service is away, or knows no advisories", file=sys.stderr)
        return NOT_LOOKED_UP
    return 0


def main() -> int:
    """Judge a lock."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lock", type=Path)
    parser.add_argument("ignored", type=Path)
    parser.add_argument("audit", nargs="?", type=Path)
    parser.add_argument("--dump", type=Path)
    given = parser.parse_args()
    reasons = ignored(given.ignored)
    if given.dump:
        lookup = of_dump(given.dump, pinned(given.lock))
    else:
        lookup = of_pip_audit(given.audit.read_text() if given.audit else sys.stdin.read())
    return judge(given.lock.stem, lookup, reasons)


if __name__ == "__main__":
    sys.exit(main())
