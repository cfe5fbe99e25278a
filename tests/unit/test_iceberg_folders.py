"""Do clients that make no folders find those of a table that they are about to create?"""

from pathlib import Path

from consumers.partition.files.iceberg_files import IcebergFiles


def test_a_new_tables_folders_are_made_below_the_root_alone(tmp_path: Path) -> None:
    root, outside = tmp_path / "tables", tmp_path / "outside"
    root.mkdir()
    files = IcebergFiles(str(root))
    files.make_folders(f"{root}/ns/t-1")
    assert sorted(path.name for path in (root / "ns" / "t-1").iterdir()) == ["data", "metadata"]
    files.make_folders(f"{root}/ns/t-1")
    files.make_folders(str(outside))
    (root / "link").symlink_to(outside)
    files.make_folders(f"{root}/link/t-2")
    files.make_folders("s3://bucket/t-3")
    assert not outside.exists()
