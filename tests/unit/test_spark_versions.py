"""Which PySparks `commitlog.spark` runs on."""

import importlib
import sys

import pyspark
import pytest

from commitlog.spark import pyspark_api
from commitlog.spark.pyspark_api import check_version


@pytest.mark.parametrize("version", ["4.1.0", "4.1.4", "4.2.0.dev1", "4.3.0", "4.3.1rc1"])
def test_supported_versions_are_accepted(version: str) -> None:
    assert "{}.{}".format(*check_version(version)) == version[:3]


@pytest.mark.parametrize("version", ["3.5.8", "4.0.2", "4.4.0", "5.0.0", "strange"])
def test_others_are_refused_in_one_sentence(version: str) -> None:
    with pytest.raises(ImportError) as caught:
        check_version(version)
    said = str(caught.value)
    assert f"PySpark {version} is installed" in said
    assert "pip install 'pyspark>=4.1,<4.4'" in said
    assert "\n" not in said


def test_the_refusal_comes_before_anything_that_an_old_version_lacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [name for name in sys.modules if name.startswith("commitlog.spark")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(pyspark, "__version__", "4.0.1")
    monkeypatch.setitem(sys.modules, "pyspark.sql.datasource", None)
    with pytest.raises(ImportError, match=r"PySpark 4\.0\.1 is installed"):
        importlib.import_module("commitlog.spark")
    assert pyspark_api.RELEASE >= (4, 1)


def test_without_pyspark_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("commitlog.spark")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(ModuleNotFoundError, match=r"install 'lance-commitlog\[spark\]'") as caught:
        importlib.import_module("commitlog.spark")
    assert caught.value.name == "pyspark"
