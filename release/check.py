"""Check everything that a release needs, and say what is missing.

`make release-check` builds first and then runs this; `python release/check.py --only wheel` runs one check. With
`--tag` (or the variable TAG) the version must be that of the tag. The exit code is 1 if something is missing.
"""

import argparse
import datetime
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MAX_WHEEL_BYTES = 2_000_000
# systems for which every dependency must have wheels, as uv names them
PLATFORMS = (
    "x86_64-manylinux_2_28",
    "aarch64-manylinux_2_28",
    "aarch64-apple-darwin",
    "x86_64-pc-windows-msvc",
)
MACOS = "14.0"  # the oldest that torch has wheels for


def read(name: str) -> str:
    """Return the text of a file of the repository."""
    return (ROOT / name).read_text("utf-8")


def read_version() -> str:
    """Return the version in the sources."""
    return re.findall(r'__version__ = "(.+)"', read("src/dygmamba/_version.py"))[0]


def read_project() -> dict:
    """Return the table `project` of pyproject.toml."""
    return tomllib.loads(read("pyproject.toml"))["project"]


def check_wheel(tag: str) -> Iterator[str]:
    """One wheel of at most 2 MB with the package and nothing else, and an sdist; both with this version."""
    version = read_version()
    wheels, sdists = list((ROOT / "dist").glob("*.whl")), list((ROOT / "dist").glob("*.tar.gz"))
    if len(wheels) != 1 or len(sdists) != 1:
        yield f"dist/ holds {len(wheels)} wheels and {len(sdists)} sdists, not one of each; run make release-check"
        return
    for path in (*wheels, *sdists):
        if not path.name.startswith(f"dyg_mamba-{version}"):
            yield f"{path.name} is not of version {version}; run make release-check"
    if (size := wheels[0].stat().st_size) > MAX_WHEEL_BYTES:
        yield f"{wheels[0].name} has {size:,} bytes, more than {MAX_WHEEL_BYTES:,}"
    names = set(zipfile.ZipFile(wheels[0]).namelist())
    strange = [name for name in names if not re.match(r"dygmamba/|dyg_mamba-[\d.]+\.dist-info/", name)]
    strange += [name for name in names if re.search(r"(^|/)(tests?|conftest\.py)(/|$)", name)]
    if strange:
        yield f"the wheel holds {', '.join(sorted(strange)[:5])}"
    sources = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src/dygmamba").rglob("*")
        if path.is_file()
    }
    if missing := sorted(name for name in sources - names if "__pycache__" not in name):
        yield f"the wheel lacks {', '.join(missing[:5])}"


def check_sdist(tag: str) -> Iterator[str]:
    """The sdist has every file of the repository that is needed to build, test and package it."""
    for path in (ROOT / "dist").glob("*.tar.gz"):
        with tarfile.open(path) as archive:
            names = {name.partition("/")[2] for name in archive.getnames()}
        listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout.split(
            "\n"
        )
        needed = {name for name in listed if name and not re.match(r"\.(?!github/|gitignore)", name)}
        if missing := sorted(needed - names):
            yield f"{path.name} lacks {', '.join(missing[:5])}; see only-include in pyproject.toml"


def check_version(tag: str) -> Iterator[str]:
    """Tag, changelog and citation have this version, and the changelog a date."""
    version = read_version()
    if tag and tag != f"v{version}":
        yield f"the tag is {tag}, the version {version}"
    heading = re.search(
        rf"^## \[?{re.escape(version)}\]? - (\d{{4}}-\d\d-\d\d)$", read("CHANGELOG.md"), re.MULTILINE
    )
    if heading is None:
        yield f"CHANGELOG.md has no heading `## [{version}] - YYYY-MM-DD`"
    elif datetime.date.fromisoformat(heading[1]) > datetime.date.today():
        yield f"CHANGELOG.md dates {version} in the future"
    cited = dict(re.findall(r"^(version|date-released): \"?([\d.-]+)", read("CITATION.cff"), re.MULTILINE))
    if cited.get("version") != version:
        yield f"CITATION.cff has version {cited.get('version')}, not {version}"
    if heading is not None and cited.get("date-released") != heading[1]:
        yield f"CITATION.cff is dated {cited.get('date-released')}, CHANGELOG.md {heading[1]}"


def check_addresses(tag: str) -> Iterator[str]:
    """The repository, its issues and the manual are linked from the package index, the site and the citation."""
    if missing := {"Repository", "Issues", "Documentation", "Changelog"} - set(read_project()["urls"]):
        yield f"pyproject.toml has no address for {', '.join(sorted(missing))} in [project.urls]"


def check_platforms(tag: str) -> Iterator[str]:
    """For every Python and system that is claimed: constraints.txt resolves, with wheels only."""
    classifiers = read_project()["classifiers"]
    pythons = re.findall(r"Python :: (3\.\d+)$", "\n".join(classifiers), re.MULTILINE)
    os.environ["MACOSX_DEPLOYMENT_TARGET"] = MACOS
    for python in pythons:
        for platform in PLATFORMS:
            found = run_tool(
                *(
                    "uv",
                    "pip",
                    "compile",
                    "--quiet",
                    "pyproject.toml",
                    "-c",
                    "constraints.txt",
                    "--no-header",
                ),
                *(
                    "--only-binary",
                    ":all:",
                    "--python-version",
                    python,
                    "--python-platform",
                    platform,
                    "-o",
                    os.devnull,
                ),
            )
            if found.returncode:
                yield f"Python {python} on {platform}: {' '.join(found.stderr.split())[:200]}"


def check_workflows(tag: str) -> Iterator[str]:
    """Workflows and Dependabot follow their schemas, zizmor finds nothing, and actions are pinned by commit."""
    workflows = sorted(str(path.relative_to(ROOT)) for path in (ROOT / ".github/workflows").glob("*.yml"))
    for schema, names in (("github-workflows", workflows), ("dependabot", [".github/dependabot.yml"])):
        found = run_tool("check-jsonschema", "--builtin-schema", f"vendor.{schema}", *names)
        if found.returncode:
            yield found.stdout[-300:] + found.stderr[-300:]
    if (found := run_tool("zizmor", "--offline", "--no-progress", ".github")).returncode:
        yield f"zizmor: {found.stdout[-300:]}"
    for name in workflows:
        for action in re.findall(r"uses: (\S+)", read(name)):
            if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action):
                yield f"{name} uses {action}, which is not pinned by commit"


def check_metadata(tag: str) -> Iterator[str]:
    """The package index can render the description; CITATION.cff follows its schema."""
    found = run_tool("twine", "check", "--strict", *map(str, (ROOT / "dist").glob("dyg_mamba-*")))
    if found.returncode:
        yield f"twine: {found.stdout[-300:]}"
    found = run_tool("check-jsonschema", "--builtin-schema", "vendor.citation-file-format", "CITATION.cff")
    if found.returncode:
        yield f"CITATION.cff: {found.stdout[-300:] + found.stderr[-300:]}"


def check_install(tag: str) -> Iterator[str]:
    """The wheel installs into an empty environment outside the checkout and works there."""
    wheels = list((ROOT / "dist").glob("*.whl"))
    if not wheels:
        yield "there is no wheel; run make release-check"
        return
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder) / ("Scripts" if os.name == "nt" else "bin") / "python"
        for step in (
            ["-m", "pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt"), str(wheels[0])],
            [str(ROOT / "release" / "smoke.py")],
        ):
            done = subprocess.run([str(python), *step], cwd=folder, capture_output=True, text=True)
            if done.returncode:
                yield f"{' '.join(step[:3])}: {done.stderr[-500:]}"
                return


def check_tree(tag: str) -> Iterator[str]:
    """Everything is committed, and the tag does not exist yet (unless it is the one being released)."""
    if subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True).stdout:
        yield "there are changes that are not committed"
    name = f"v{read_version()}"
    known = subprocess.run(["git", "tag", "--list", name], cwd=ROOT, capture_output=True, text=True).stdout
    if known.strip() and not tag:
        yield f"the tag {name} exists; raise the version"


CHECKS: dict[str, Callable[[str], Iterator[str]]] = {
    "version": check_version,
    "wheel": check_wheel,
    "sdist": check_sdist,
    "metadata": check_metadata,
    "platforms": check_platforms,
    "workflows": check_workflows,
    "addresses": check_addresses,
    "tree": check_tree,
    "install": check_install,
}


def run_tool(name: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a tool of this environment; a missing one ends the check in one sentence."""
    beside = Path(sys.executable).parent / name
    program = str(beside) if beside.exists() else shutil.which(name)
    if program is None:
        sys.exit(f"{name} is not installed; pip install --group release")
    return subprocess.run([program, *words], cwd=ROOT, capture_output=True, text=True)


def main() -> int:
    """Run the checks and print one line for each, with what is missing below it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=CHECKS, action="append", help="run this check; may be repeated")
    parser.add_argument(
        "--tag", default=os.environ.get("TAG", ""), help="the tag that is released, such as v0.1.0"
    )
    options = parser.parse_args()
    missing = 0
    for name in options.only or CHECKS:
        problems = list(CHECKS[name](options.tag))
        missing += len(problems)
        print(f"{'missing' if problems else 'ok':8}{name}: {CHECKS[name].__doc__}", flush=True)
        for problem in problems:
            print(f"        - {problem}")
    if missing:
        print(f"{missing} missing")
    elif not options.only:
        print(f"ready: git tag v{read_version()} && git push --tags")
    return bool(missing)


if __name__ == "__main__":
    sys.exit(main())
