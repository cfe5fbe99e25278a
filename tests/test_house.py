"""Is it still the same house? Layers, purity, sizes, words that must not appear, a true README."""

import ast
import importlib
import re
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests import core_map
from tests.child import ended
from tests.trees import ROOT, is_for_types, kept_for_now, nodes, said_of, statements_of, tree

PACKAGES = ("commitlog", "consumers")
GENERATED = "commitlog/lancepb/"

# A module imports its own layer or a lower one; the first prefix that fits counts.
LAYERS = (
    ("commitlog.errors", 0),
    *((f"commitlog.{part}", 1) for part in ("java", "lancepb", "model", "newest", "words")),
    ("commitlog.core", 2),
    *((f"commitlog.{part}", 3) for part in ("messages", "wire", "protocol", "ports")),
    *(("commitlog.codecs.lanes", 1), ("commitlog.codecs._native", 1), ("commitlog.codecs", 3)),
    ("commitlog.adapters", 4),
    *(("commitlog.client.leader", 5), ("commitlog.client.rows", 6)),
    *(("commitlog.client.accepted", 7), ("commitlog.client.commits", 8)),
    *(("commitlog.client.history", 9), ("commitlog.client", 10)),
    ("commitlog.spark", 11),
    ("commitlog", 11),
    ("consumers.runtime", 12),
    ("consumers.broker", 13),
    *(("consumers.partition.files", 13), ("consumers.partition.checkpoints", 14)),
    ("consumers.partition", 15),
    ("consumers.socket", 16),
    ("consumers.views", 16),
    ("consumers.history", 16),
    ("consumers.servers", 17),
    ("consumers.tools", 17),
    ("consumers.commands", 18),
    ("consumers.cli", 19),
    ("consumers", 0),
)
# Packages of one layer that know nothing of each other.
STRANGERS = (
    ("consumers.broker", "consumers.partition"),
    ("consumers.socket", "consumers.views"),
    ("consumers.socket", "consumers.history"),
    ("consumers.servers", "consumers.tools"),
)

# The rooms of the core, lowest first: a room imports lower ones only. Those of one floor don't know
# each other.
CORE_FLOORS = (
    ("iceberg", "manifest"),
    ("conflicts", "decisions"),
    ("log",),
    ("tables",),
    ("draft", "refusals"),
    ("rebase", "schema_check"),
    ("operations",),
    ("lance",),
    ("catalogue", "rows"),
    ("partition",),
)

ERRORS_CARRY_OUTCOMES = ("commitlog/errors.py", "commitlog.model.records")
# Modules that still import each other in a circle; may only shrink.
CIRCLES_LEFT = {
    *("commitlog.errors", "commitlog.model.operations", "commitlog.model.records"),
    "commitlog.model.table",
    *("commitlog.adapters.storage", "commitlog.adapters.storage_remote"),
}

# A library is imported where it is adapted, and nowhere else.
ONLY_IN = {
    "confluent_kafka": (
        "commitlog/adapters/kafka",
        "consumers/broker/readiness.py",
        "consumers/tools/bench/",
    ),
    "fastavro": ("commitlog/codecs/avro",),
    "lance": (
        "commitlog/codecs/lance_",
        "commitlog/adapters/lance_",
        "commitlog/client/",
        "commitlog/spark/",
        "consumers/tools/maintenance/table_acts.py",
        "consumers/servers/namespace/",
        "consumers/tools/bench/",
        "consumers/tools/demo/",
    ),
    "duckdb": (
        "consumers/views/version_index/",
        "consumers/history.py",
        "consumers/servers/page/",
        "consumers/tools/demo/",
        "commitlog/client/",
    ),
    "obstore": ("commitlog/adapters/storage_remote.py",),
    "pyspark": (
        "commitlog/spark/",
        "consumers/tools/demo/",
        "consumers/tools/bench/spark.py",
        "consumers/tools/rows/stream.py",
    ),
    "jwt": ("consumers/servers/security/tokens.py",),
    "cryptography": ("consumers/servers/security/tokens.py", "consumers/runtime/certificate.py"),
    "prometheus_client": ("consumers/servers/metrics.py",),
    "opentelemetry": ("commitlog/adapters/tracing.py", "consumers/servers/observing.py"),
    "starlette": (
        *("consumers/servers/server", "consumers/servers/namespace/", "consumers/servers/iceberg/"),
        *("consumers/servers/security/", "consumers/servers/openapi/", "consumers/servers/page/"),
        *("consumers/servers/observing.py", "consumers/servers/feed.py"),
    ),
    "uvicorn": ("consumers/servers/server",),
    "cyclopts": ("consumers/cli.py", "consumers/commands/"),
    "rich": (
        *("consumers/commands/columns.py", "consumers/commands/output.py"),
        *("consumers/tools/demo/", "consumers/tools/bench/"),
    ),
}

PURE = ("commitlog/model/", "commitlog/words/", "commitlog/core/")
PURE_MAY_IMPORT = {
    *("__future__", "abc", "bisect", "collections", "copy", "dataclasses", "enum", "functools"),
    # gzip: of bytes in memory, with mtime=0.
    *("gzip", "hashlib", "heapq", "itertools", "json", "math", "operator", "re", "string"),
    *("struct", "html", "textwrap", "types", "typing", "uuid", "zlib"),
    *("commitlog", "google", "pyroaring"),
}
# What a pure module must not ask for, and what it does instead.
BANNED = {
    "time.": "take the time from the record",
    "random.": "take what is random from the record",
    "secrets.": "take what is random from the record",
    "uuid.uuid1": "take ids from the record",
    "uuid.uuid4": "take ids from the record",
    "datetime.now": "take the time from the record",
    "os.environ": "take settings as arguments",
    "open": "ask for bytes by `prefetch`",
    "print": "return what there is to say",
}

# What the core has come to; may shrink freely.
CORE_ROOMS_MAX = 15
CORE_ARROWS_MAX = 68
CORE_ROOMS_ENTERED_MAX = 10
NAMING_PLACES_MAX = 15

MODULE_LINES_MAX = 400
TEST_MODULE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
BY_POSITION_MAX = 4
# Written below each other as a table, where a column's place says what it is.
ROWS_OF_TABLES = ("Entry", "Aim")
README_LINES_MAX = 200
# path, or path:function -> why it may be longer. May shrink freely; grows only in review.
EXCEPTIONS: dict[str, str] = {
    "commitlog/model/records.py": "the log's whole vocabulary, read as one list",
}

# Folders of one machine, and where packages come from: neither belongs in a tracked file.
MACHINE_PATH = re.compile(r"(?<![\w.~])/(?:work|root|farm|home/\w+|Users/\w+)/")
REGISTRY_HOST = re.compile(
    r"(?i)\b(?:files\.pythonhosted\.org|(?:test\.)?pypi\.org/simple|repo\d?\.maven(?:\.apache)?\.org"
    r"|registry\.npmjs\.org|proxy\.golang\.org|index-url|extra-index|find-links)\b"
)
# What each text that fits has a part of; these are found quickly.
MACHINE_PARTS = tuple(f"/{name}/" for name in ("work", "root", "farm", "home", "users"))
REGISTRY_PARTS = (
    *("files.pythonhosted", "pypi.org/", ".maven", "registry.npmjs", "proxy.golang"),
    *("index-url", "extra-index", "find-links"),
)
HOST_EXCEPTIONS = ("tests/test_house.py", "infra/set-up.sh")


@cache
def tracked() -> tuple[str, ...]:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = ended(command, cwd=ROOT)
    if done.returncode == 0 and done.stdout:
        names = done.stdout.split("\0")
    else:  # an unpacked archive
        names = [str(p.relative_to(ROOT)) for p in ROOT.rglob("*") if ".venv" not in p.parts]
    return tuple(sorted(name for name in names if name and (ROOT / name).is_file()))


def modules(*prefixes: str) -> list[str]:
    wanted = prefixes or tuple(f"{package}/" for package in PACKAGES)
    return [
        name
        for name in tracked()
        if name.endswith(".py") and name.startswith(wanted) and not name.startswith(GENERATED)
    ]


@pytest.fixture(autouse=True, scope="module")
def _trees() -> Iterator[None]:
    with kept_for_now():
        yield


def module_name(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@cache
def imports(name: str, *, for_types: bool = False) -> tuple[tuple[str, int], ...]:
    """Names of imported modules, with their lines; those for type checkers alone if asked for."""
    return tuple(_imports(name, for_types))


def _imports(name: str, for_types: bool) -> Iterator[tuple[str, int]]:
    for node in statements_of(name) if for_types else _running(statements_of(name)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}:{node.lineno}: a relative import"
            base = node.module or ""
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield inner if inner in known_modules() else base, node.lineno


@cache
def known_modules() -> frozenset[str]:
    return frozenset(module_name(name) for name in tracked() if name.endswith(".py"))


def _running(all_statements: tuple[ast.stmt, ...]) -> Iterator[ast.stmt]:
    conditions = [node for node in all_statements if isinstance(node, ast.If)]
    typed = [node for node in conditions if is_for_types(node.test)]
    for_types = {id(inner) for node in typed for inner in ast.walk(node)}
    return (node for node in all_statements if id(node) not in for_types)


def layer(module: str) -> int:
    return next(
        level for prefix, level in LAYERS if module == prefix or module.startswith(f"{prefix}.")
    )


def test_imports_point_down() -> None:
    """Those for type checkers, too."""
    wrong = [
        f"{name}:{line}: {module_name(name)} (layer {layer(module_name(name))}) imports"
        f" {imported} (layer {layer(imported)})"
        for name in modules()
        for imported, line in imports(name, for_types=True)
        if imported.split(".")[0] in PACKAGES and layer(imported) > layer(module_name(name))
        if (name, imported) != ERRORS_CARRY_OUTCOMES
    ]
    assert not wrong, "\n".join(wrong)


def test_neighbours_know_nothing_of_each_other() -> None:
    """Those for type checkers, too."""
    wrong = [
        f"{name}:{line}: {module_name(name)} imports {imported}: both are of layer"
        f" {layer(imported)}, and neither knows the other"
        for pair in STRANGERS
        for one, other in (pair, pair[::-1])
        for name in modules(one.replace(".", "/"))
        for imported, line in imports(name, for_types=True)
        if imported == other or imported.startswith(f"{other}.")
    ]
    assert not wrong, "\n".join(wrong)


def test_imports_form_no_circles() -> None:
    """Those for type checkers count: who must know each other are one module in several files."""
    known = {module_name(name): name for name in modules()}
    edges = {
        module: {
            imported
            for imported, _ in imports(name, for_types=True)
            if imported in known and imported != module
        }
        for module, name in known.items()
    }
    circling = {module for module in edges if module in _reached(edges, module)}
    new = {f"{module} imports {to}" for module in circling for to in edges[module] & circling}
    assert circling <= CIRCLES_LEFT, "\n".join(sorted(new))
    assert circling >= CIRCLES_LEFT, f"no circle any more: {sorted(CIRCLES_LEFT - circling)}"


def test_rooms_of_the_core_import_lower_ones() -> None:
    """Imports for type checkers count, too."""
    floors = {room: floor for floor, rooms in enumerate(CORE_FLOORS) for room in rooms}
    wrong = [
        f"{name}:{line}: {here} (floor {floors[here]}) imports {there} (floor {floors[there]})"
        for name in modules("commitlog/core/")
        if (here := core_map.room_of(module_name(name)))
        for imported, line in imports(name, for_types=True)
        if (there := core_map.room_of(imported)) and there != here
        if floors[there] >= floors[here]
    ]
    assert not wrong, "\n".join(wrong)


def test_the_core_stays_as_small_as_it_is() -> None:
    """`python -m tests.core_map` prints what is counted."""
    arrows = core_map.arrows()
    assert len(arrows) <= CORE_ROOMS_MAX
    assert sum(map(len, arrows.values())) <= CORE_ARROWS_MAX
    assert core_map.floors() <= len(CORE_FLOORS)
    for decision in core_map.deciding():
        entered = core_map.rooms_entered(decision)
        assert len(entered) <= CORE_ROOMS_ENTERED_MAX, sorted(entered)
    places = core_map.naming_places()
    assert len(places) <= NAMING_PLACES_MAX, "\n".join(places)


def test_no_two_modules_of_the_core_share_a_name() -> None:
    stems = [Path(name).stem for name in modules("commitlog/core/")]
    assert [stem for stem, times in Counter(stems).items() if times > 1] == ["__init__"]


def test_no_two_classes_share_a_name() -> None:
    found = (n for name in modules("commitlog/", "consumers/") for n in statements_of(name))
    names = [n.name for n in found if isinstance(n, ast.ClassDef) and n.name[0] != "_"]
    assert not [name for name, times in Counter(names).items() if times > 1]


def test_the_glossary_is_true() -> None:
    text = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if "/" in line]
    rows = [row for row in rows if len(row) >= 3]
    assert len(rows) > 20
    for word, _, where, *_ in rows:
        assert (ROOT / where.strip("` |")).exists(), f"{word}: {where} isn't there"
    lost = {w.strip(" |") for row in rows if len(row) > 3 for w in row[3].split(",")} - {""}
    assert "asking" in lost
    wrong = []
    for name in modules("commitlog/core/"):
        named = [Path(name).stem]
        defined = (ast.ClassDef, ast.FunctionDef)
        named += [n.name for n in statements_of(name) if isinstance(n, defined)]
        for one in named:
            words = re.findall(r"[A-Z]?[a-z]+", one)
            wrong += [f"{name}: {one}" for word in words if word.lower() in lost]
    assert not wrong, "\n".join(wrong)


def test_the_worked_example_is_true() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    module = (ROOT / "commitlog/core/operations/reserve_fragments.py").read_text(encoding="utf-8")
    registry = (ROOT / "commitlog/core/operations/registry.py").read_text(encoding="utf-8")
    scenario = (ROOT / "tests/scenarios/overwrite.txt").read_text(encoding="utf-8")
    grid = (ROOT / "commitlog/core/conflicts/grid.py").read_text(encoding="utf-8")
    example = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    row = re.search(r"```\n +(ReserveFragments .*)\n", text)
    assert example is not None
    assert example[1] in module
    assert row is not None
    assert row[1] in grid
    assert "    ReserveFragmentsOperation(),\n" in registry
    for line in re.findall(r"`(reserve t g [^`]*|g incompatible [^`]*)`", text):
        assert line in scenario
    for path in re.findall(r"`((?:commitlog|tests|infra)/[\w./]*)`", text):
        assert (ROOT / path).exists(), path


def _reached(edges: dict[str, set[str]], start: str) -> set[str]:
    """Return all that a module imports, directly or not: itself too, if it is in a circle."""
    found: set[str] = set()
    left = [start]
    while left:
        new = edges[left.pop()] - found
        found |= new
        left += new
    return found


def test_libraries_stay_in_their_adapters() -> None:
    wrong = [
        f"{name}:{line}: {imported} belongs in {', '.join(ONLY_IN[imported.split('.')[0]])}"
        for name in modules()
        for imported, line in imports(name)
        if imported.split(".")[0] in ONLY_IN
        and not name.startswith(ONLY_IN[imported.split(".")[0]])
    ]
    assert not wrong, "\n".join(wrong)


def test_pure_modules_import_nothing_that_can_act() -> None:
    wrong = [
        f"{name}:{line}: {imported} may not be imported by a pure module"
        for name in modules(*PURE)
        for imported, line in imports(name)
        if imported.split(".")[0] not in PURE_MAY_IMPORT
    ]
    assert not wrong, "\n".join(wrong)


def test_pure_modules_know_no_clock_chance_or_surroundings() -> None:
    wrong = []
    for name in modules(*PURE):
        for node in nodes(name):
            if not isinstance(node, ast.Attribute | ast.Name):
                continue
            said = said_of(node)
            for banned, instead in BANNED.items():
                hit = said == banned or (banned.endswith(".") and said.startswith(banned))
                if hit or said.endswith(f".{banned}"):
                    wrong.append(f"{name}:{node.lineno}: {said}: {instead}")
    assert not wrong, "\n".join(wrong)


def limit(name: str) -> int:
    return TEST_MODULE_LINES_MAX if name.startswith("tests/") else MODULE_LINES_MAX


def test_no_module_is_too_long() -> None:
    wrong = []
    for name in modules(*PACKAGES, "tests/", "infra/"):
        lines = len((ROOT / name).read_text(encoding="utf-8").splitlines())
        if lines > limit(name) and name not in EXCEPTIONS:
            wrong.append(f"{name}: {lines} lines, at most {limit(name)}")
    assert not wrong, "\n".join(wrong)


# A tree of each test takes as long as all others together; `make check` looks at them.
@pytest.mark.parametrize("folder", [*PACKAGES, pytest.param("tests", marks=pytest.mark.slow)])
def test_no_function_is_too_long(folder: str) -> None:
    wrong = []
    for name in modules(f"{folder}/"):
        for node in statements_of(name):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES_MAX and f"{name}:{node.name}" not in EXCEPTIONS:
                    wrong.append(f"{name}:{node.lineno}: {node.name} has {lines} lines")
    assert not wrong, "\n".join(wrong)


def test_exceptions_are_still_needed() -> None:
    paths = {key.split(":")[0] for key in EXCEPTIONS}
    assert paths <= set(tracked())
    assert all(EXCEPTIONS.values())


def test_records_of_many_fields_are_built_by_keyword() -> None:
    """By its position, the fifth field of a record says nothing to whoever reads the call."""
    sizes: dict[str, int] = {}
    for name in modules():
        for node in tree(name).body:
            if isinstance(node, ast.ClassDef) and any(
                "dataclass" in ast.unparse(decorator) for decorator in node.decorator_list
            ):
                fields = sum(isinstance(part, ast.AnnAssign) for part in node.body)
                sizes[node.name] = max(fields, sizes.get(node.name, 0))
    large = {name for name, size in sizes.items() if size > BY_POSITION_MAX}
    called = re.compile(r"(\w+)\(")
    wrong = [
        f"{name}:{node.lineno}: {node.func.id} takes {len(node.args)} values by position"
        for name in modules()
        if not large.isdisjoint(called.findall((ROOT / name).read_text(encoding="utf-8")))
        for node in nodes(name)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if len(node.args) > BY_POSITION_MAX < sizes.get(node.func.id, 0)
        if node.func.id not in ROWS_OF_TABLES
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("folder", [*PACKAGES, "tests"])
def test_every_module_says_what_it_is(folder: str) -> None:
    silent = [
        name
        for name in modules(f"{folder}/")
        if not (ROOT / name).read_text(encoding="utf-8").startswith('"""')
        if tree(name).body and not ast.get_docstring(tree(name))
    ]
    assert not silent, "\n".join(silent)


def test_all_is_true() -> None:
    """Every name in `__all__` exists, once, and in order."""
    for name in modules():
        for node in tree(name).body:
            is_all = isinstance(node, ast.Assign) and any(
                isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets
            )
            if not is_all:
                continue
            assert isinstance(node, ast.Assign)
            listed = ast.literal_eval(node.value)
            module = importlib.import_module(module_name(name))
            missing = [one for one in listed if not hasattr(module, one)]
            assert not missing, f"{name}: __all__ names {missing}"
            assert sorted(set(listed)) == sorted(listed), f"{name}: __all__ names one twice"


def test_a_writer_needs_no_server() -> None:
    """What a writer imports brings in neither Spark nor the processes."""
    code = (
        "import sys, commitlog; "
        "heavy = {'pyspark', 'consumers', 'duckdb', 'starlette', 'cyclopts', 'rich'}; "
        "sys.exit(', '.join(sorted(heavy & set(sys.modules))) or None)"
    )
    done = ended([sys.executable, "-c", code])
    assert done.returncode == 0, f"`import commitlog` imports {done.stderr.strip()}"


def texts(*parts: str) -> Iterator[tuple[str, int, str]]:
    """Yield the lines of files that hold one of these parts, in any case, with their numbers."""
    for name in tracked():
        path = ROOT / name
        if name == "LICENSE" or path.stat().st_size > 4 * 1024 * 1024:
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        lowered = text.lower()
        if any(part in lowered for part in parts):
            for number, line in enumerate(text.splitlines(), 1):
                yield name, number, line


def test_no_file_names_a_machine_or_a_registry() -> None:
    wrong = [
        f"{name}:{number}: {line.strip()[:120]}"
        for name, number, line in texts(*MACHINE_PARTS, *REGISTRY_PARTS)
        if (MACHINE_PATH.search(line) and name != "tests/test_house.py")
        or (REGISTRY_HOST.search(line) and name not in HOST_EXCEPTIONS)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_lock_holds_versions_and_hashes_only() -> None:
    for line in (ROOT / "requirements.lock").read_text().splitlines():
        assert re.match(
            r"([a-z0-9-]+==\S+( ;.*)? \\|    --hash=sha256:[0-9a-f]{64}( \\)?)$", line
        ), line


def readme() -> str:
    return (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readme_fits_its_limit() -> None:
    assert len(readme().splitlines()) <= README_LINES_MAX


def test_paths_in_the_readme_exist() -> None:
    named = re.findall(
        r"(?<![\w/])((?:commitlog|consumers|schemas|infra|tests)/[\w./-]*[\w/]|Makefile|LICENSE)",
        readme(),
    )
    missing = sorted({path for path in named if not (ROOT / path).exists()})
    assert named
    assert not missing, f"README names {missing}"


def test_commands_in_the_readme_exist() -> None:
    from consumers.commands.app import app

    commands = set(re.findall(r"(?<!from )\bcommitlog ([a-z][a-z-]+)", readme()))
    known = set(app) - {"--help", "--version"}
    assert commands
    assert commands <= known, f"README names {sorted(commands - known)}"
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z]+)", readme())) <= targets


def test_settings_and_exit_codes_in_the_readme_are_true() -> None:
    from consumers.commands.exit_codes import ExitCode
    from consumers.runtime.config import SETTINGS

    # What only one part needs is told on that part's page.
    told = readme() + "".join(page.read_text() for page in (ROOT / "docs").glob("*.md"))
    for setting in SETTINGS:
        assert f"`{setting.variable}`" in told, f"no page tells of {setting.variable}"
    for code in ExitCode:
        assert re.search(rf"\b{int(code)}\b", readme()), f"README doesn't tell of exit code {code}"


def test_the_public_surface_changes_knowingly(request: pytest.FixtureRequest) -> None:
    """Whoever changes what others build on sees it in the diff, and names it in the changelog."""
    from tests import public_surface

    golden = ROOT / "tests/golden/public.txt"
    found = public_surface.listing()
    if request.config.getoption("--rewrite"):
        golden.write_text(found, encoding="utf-8")
    assert found == golden.read_text(encoding="utf-8"), "pytest --rewrite, if it is meant"


def test_the_newest_release_in_the_changelog_is_this_version() -> None:
    version = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    first = re.search(r"^## (\d\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert version is not None
    assert first is not None
    assert first[1].rstrip(",") == version[1]
