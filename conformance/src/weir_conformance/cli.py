"""The command line."""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from weir_conformance import report
from weir_conformance.outcome import Result, Verdict
from weir_conformance.process import StartError
from weir_conformance.profiles import PROFILES
from weir_conformance.requirement import Requirement, all_requirements
from weir_conformance.runner import TargetReport, run
from weir_conformance.target import Target, TargetError, load


def main(arguments: list[str] | None = None) -> int:
    """Returns 0 if all results are as expected, 1 after a failure, 2 after a usage error."""
    options = _parser().parse_args(arguments)
    try:
        if options.command == "list":
            return _list()
        if options.command == "prepare":
            return _prepare([load(file) for file in options.target])
        return _run(options)
    except (TargetError, StartError) as error:
        print(error, file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="weir-conformance", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="run requirements against targets")
    running.add_argument("--target", type=Path, nargs="+", required=True, help="target files")
    running.add_argument("--profile", nargs="+", choices=[*PROFILES, "all"], default=["all"])
    running.add_argument("--only", nargs="+", default=[], help="identifiers of requirements, such as CORE-2")
    running.add_argument("--report", type=Path, help="folder for report.json, report.md, report.html and badges")
    running.add_argument("--scale", type=float, default=1.0, help="factor of the sizes of long requirements")
    running.add_argument("--jobs", type=int, default=1, help="targets that run at the same time, each in a process of its own")
    running.add_argument("--allow-failures", action="store_true", help="exit with 0 after failures, too")
    commands.add_parser("list", help="list the requirements")
    preparing = commands.add_parser("prepare", help="build and install what targets need")
    preparing.add_argument("--target", type=Path, nargs="+", required=True)
    return parser


def _selected(profiles: list[str], only: list[str]) -> list[Requirement]:
    known = all_requirements()
    for identifier in only:
        if all(one.identifier != identifier for one in known):
            raise TargetError(f"--only: unknown requirement {identifier!r}; `weir-conformance list` shows them")
    wanted = [one for one in known if "all" in profiles or one.profile in profiles]
    return [one for one in wanted if not only or one.identifier in only]


def _run(options: argparse.Namespace) -> int:
    requirements = _selected(options.profile, options.only)
    targets = [load(file) for file in options.target]
    for target in targets:
        # Before hours are spent on the others.
        target.installed_version()
    identifiers = [one.identifier for one in requirements]
    reports: list[TargetReport] = []
    with ProcessPoolExecutor(options.jobs) as pool:
        for one in pool.map(_run_target, targets, [identifiers] * len(targets), [options.scale] * len(targets)):
            reports.append(one)
            print(f"== {one.target.name} {one.version}: {one.seconds:.1f} s", flush=True)
            for result in one.results:
                _print(result)
            if options.report is not None:
                report.write(options.report, reports, requirements)
    failed = any(one.of(Verdict.FAIL) for one in reports)
    return 1 if failed and not options.allow_failures else 0


def _run_target(target: Target, identifiers: list[str], scale: float) -> TargetReport:
    """Runs in a process of its own, where requirements are found by their identifiers."""
    wanted = set(identifiers)
    return run(target, [one for one in all_requirements() if one.identifier in wanted], scale=scale)


def _print(result: Result) -> None:
    detail = f": {result.detail}" if result.detail else ""
    print(f"   {result.requirement:14} {result.verdict.value}{detail} ({result.seconds:.1f} s)", flush=True)


def _list() -> int:
    for one in all_requirements():
        print(f"{one.identifier:14} {one.severity.value:6} {one.title} [{one.source}]")
    return 0


def _prepare(targets: list[Target]) -> int:
    import subprocess

    for target in targets:
        for command in target.prepare:
            print(f"== {target.name}: {' '.join(command.arguments)}", flush=True)
            done = subprocess.run(list(command.arguments), cwd=target.file.parent, check=False)
            if done.returncode != 0:
                print(f"{target.file}: prepare: `{' '.join(command.arguments)}` has failed", file=sys.stderr)
                return 2
    return 0
