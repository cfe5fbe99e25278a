"""Does what we ship for deployment fit the program: commands, variables, schemas, start script?"""

from __future__ import annotations

import os
import re
import shutil
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml  # type: ignore[import-untyped]

from commitlog import __version__
from commitlog.adapters.kafka_acls import ROLES
from consumers.commands.app import app
from consumers.runtime.config import unknown_variables
from consumers.socket.connections import check_address
from tests.child import ended

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "infra" / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
UNITS = sorted((DEPLOY / "systemd").glob("commitlog*"))
MANIFESTS = [
    (path.name, document)
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text())
]


def check_command(words: list[str]) -> None:
    """Fail if there is no such command of ours, or it doesn't know an option."""
    app.parse_args(words, exit_on_error=False, print_error=False)


def our_services() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, service in COMPOSE["services"].items():
        if not service["image"].startswith("apache/kafka"):
            yield name, service


def test_compose_has_all_parts_and_names_what_there_is() -> None:
    services = COMPOSE["services"]
    parts = [service["command"][0] for _, service in our_services()]
    assert sorted(parts) == sorted(
        ["committer", "committer", "index", "init", "maintain", "rows", "server"]
    )
    assert len(services) - len(parts) == 3, "brokers"
    for name, service in services.items():
        assert set(service.get("depends_on", ())) <= set(services), name
        for volume in service["volumes"]:
            assert volume.split(":")[0] in COMPOSE["volumes"], name
    for name, service in our_services():
        check_command(service["command"])
        environment = service["environment"]
        assert not unknown_variables(environment), name
        if service["command"] == ["committer"]:
            check_address(environment["COMMITLOG_SOCKET_HOST"], environment["COMMITLOG_TOKEN"])
    roots = {name: service["volumes"][1] for name, service in our_services()}
    assert roots["committer-1"] != roots["committer-2"]
    assert roots["index"] == roots["server"], "the server reads the index's files"


def test_brokers_of_compose_keep_three_copies_and_agree_on_each_other() -> None:
    ids = set()
    for number in (1, 2, 3):
        environment: Mapping[str, Any] = COMPOSE["services"][f"kafka-{number}"]["environment"]
        ids.add(environment["CLUSTER_ID"])
        assert environment["KAFKA_NODE_ID"] == number
        assert f"{number}@kafka-{number}:9093" in environment["KAFKA_CONTROLLER_QUORUM_VOTERS"]
        assert environment["KAFKA_ADVERTISED_LISTENERS"].endswith(f"//kafka-{number}:9092")
        assert environment["KAFKA_UNCLEAN_LEADER_ELECTION_ENABLE"] == "false"
    assert len(ids) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("name", "document"), MANIFESTS)
@pytest.mark.parametrize("release", ["1.30", kubernetes_validate.latest_version()])
def test_manifests_fit_the_schemas_of_kubernetes(
    name: str, document: dict[str, Any], release: str
) -> None:
    kubernetes_validate.validate(document, release, strict=True)


def pods() -> Iterator[dict[str, Any]]:
    for _, document in MANIFESTS:
        if "template" in document.get("spec", ()):
            yield document


def test_pods_run_commands_that_exist_as_roles_that_exist() -> None:
    settings = next(found["data"] for _, found in MANIFESTS if found["kind"] == "ConfigMap")
    assert not unknown_variables(settings)
    page = (ROOT / "docs/deployment.md").read_text()
    image, ran, roles = f"localhost/commitlog:{__version__}", [], set()
    assert f"s#{image}#REGISTRY/commitlog:{__version__}#" in page
    for document in pods():
        spec = document["spec"]["template"]["spec"]
        # A Service's name would become variables: COMMITLOG_PORT is ours.
        assert spec["enableServiceLinks"] is False
        volumes = {volume["name"] for volume in spec["volumes"]}
        claims = document["spec"].get("volumeClaimTemplates", ())
        volumes |= {claim["metadata"]["name"] for claim in claims}
        for container in spec["containers"]:
            check_command(container["args"])
            ran.append(container["args"][0])
            assert not unknown_variables({one["name"]: "" for one in container.get("env", ())})
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
            secrets = [
                one["secretRef"]["name"] for one in container["envFrom"] if "secretRef" in one
            ]
            assert secrets[0] == "commitlog"
            assert container["image"] == image
            probes = [container[one] for one in container if one.endswith("Probe")]
            asked = {one["httpGet"]["path"] for one in probes if "httpGet" in one}
            assert asked <= {"/healthz"}, "a table's late files are no reason to serve nobody"
            roles.add(secrets[1].removeprefix("commitlog-"))
    assert sorted(ran) == ["committer", "index", "init", "maintain", "rows", "server"]
    [told] = re.findall("for role in (.*);", page)
    assert {*told.split()} == roles <= ROLES.keys()


def test_services_and_policies_select_pods_that_there_are() -> None:
    there = [document["spec"]["template"]["metadata"]["labels"] for document in pods()]
    for _, document in MANIFESTS:
        spec = document.get("spec", {})
        wanted = spec.get("selector") or spec.get("podSelector")
        if wanted and document["kind"] != "Job":
            labels = wanted.get("matchLabels", wanted)
            assert labels in there, document["metadata"]["name"]


def test_units_are_valid_and_run_commands_that_exist(tmp_path: Path) -> None:
    for path in UNITS:
        for line in re.findall(r"^ExecStart=(.*)$", path.read_text(), re.MULTILINE):
            program, *words = line.replace("%i", "0").split()
            assert program == "/opt/commitlog/bin/commitlog"
            check_command(words)
    # `init` writes into the tables root, to which the parts write later: all are one user's.
    [user] = {user for unit in UNITS for user in re.findall(r"^User=(.*)$", unit.read_text(), re.M)}
    page = (ROOT / "docs/deployment.md").read_text()
    assert re.findall(r"; ([^;]*) /opt/commitlog/bin/commitlog init\)", page) == [
        f"runuser -u {user}"
    ]
    assert f"[objects,otel,server]=={__version__}'\nln -s commitlog-{__version__} /opt" in page
    settings = (DEPLOY / "systemd" / "environment").read_text()
    pairs = dict(line.split("=", 1) for line in settings.splitlines() if not line.startswith("#"))
    assert not unknown_variables(pairs)
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze")
    for path in UNITS:
        # The program isn't installed here.
        text = path.read_text().replace("/opt/commitlog/bin/commitlog", shutil.which("true") or "")
        (tmp_path / path.name.replace("@", "@0")).write_text(text)
    found = ended(
        ["systemd-analyze", "verify", "--man=no", *map(str, sorted(tmp_path.iterdir()))],
        timeout=120,
    )
    # It looks at all units that these name, some of which another machine lacks.
    ours = [line for line in found.stderr.splitlines() if "commitlog" in line]
    assert not ours, found.stderr


def test_the_containerfile_copies_what_there_is_and_starts_the_script() -> None:
    text = (DEPLOY / "Containerfile").read_text().replace("\\\n", " ")
    for line in re.findall(r"^COPY (.*)$", text, re.MULTILINE):
        words = [word for word in line.split() if not word.startswith("--chmod")]
        if words[0].startswith("--from"):
            continue
        for source in words[:-1]:
            assert (ROOT / source).exists(), source
    assert 'ENTRYPOINT ["start.sh"]' in text
    assert set(re.findall(r"^USER (.*)$", text, re.MULTILINE)) == {"10001"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = [*wheel["packages"], *wheel["force-include"], wheel["hooks"]["custom"]["path"]]
    copied = {
        word for line in re.findall(r"^COPY (.*)$", text, re.MULTILINE) for word in line.split()
    }
    assert {*needed, "pyproject.toml", project["project"]["readme"]} <= copied, "the wheel needs it"


SHOW = """#!/bin/sh
echo "$@"
env | grep ^COMMITLOG_ | sort
"""


@pytest.mark.parametrize("given", ["", "committer-1"])
def test_the_start_script_names_an_address_that_others_reach(tmp_path: Path, given: str) -> None:
    shown = tmp_path / "commitlog"
    shown.write_text(SHOW)
    shown.chmod(0o755)
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("COMMITLOG_")
    }
    environment["PATH"] = f"{tmp_path}:{environment['PATH']}"
    if given:
        environment["COMMITLOG_SOCKET_HOST"] = given
    done = ended(
        [str(DEPLOY / "start.sh"), "committer", "--partition", "0"],
        env=environment,
        timeout=60,
        check=True,
    )
    arguments, *variables = done.stdout.splitlines()
    assert arguments == "committer --partition 0"
    found = dict(line.split("=", 1) for line in variables)
    assert found["COMMITLOG_HOST"] == "0.0.0.0"
    assert (found["COMMITLOG_PORT"], found["COMMITLOG_SOCKET_PORT"]) == ("2333", "2334")
    assert not unknown_variables(found)
    if given:
        assert found["COMMITLOG_SOCKET_HOST"] == given
    else:
        assert re.fullmatch(r"[0-9a-f.:]+", found["COMMITLOG_SOCKET_HOST"])
    check_address(found["COMMITLOG_SOCKET_HOST"], token="any")
