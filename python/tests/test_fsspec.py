"""The file system of fsspec: its own suite for every file system, and the libraries above it."""

import json
import os
import shutil

import pytest

import kedgefs

fsspec = pytest.importorskip("fsspec")

from fsspec.tests.abstract import AbstractFixtures  # noqa: E402
from fsspec.tests.abstract.copy import AbstractCopyTests  # noqa: E402
from fsspec.tests.abstract.get import AbstractGetTests  # noqa: E402
from fsspec.tests.abstract.open import AbstractOpenTests  # noqa: E402
from fsspec.tests.abstract.pipe import AbstractPipeTests  # noqa: E402
from fsspec.tests.abstract.put import AbstractPutTests  # noqa: E402

from kedgefs.fsspec import KedgeFileSystem  # noqa: E402


class KedgeFixtures(AbstractFixtures):
    @pytest.fixture(scope="class")
    def fs(self, tmp_path_factory):
        fs = KedgeFileSystem(tmp_path_factory.mktemp("image") / "disk.kedge", create="128M")
        yield fs
        fs.close()

    @pytest.fixture
    def fs_path(self):
        return "/tests"


class TestCopy(KedgeFixtures, AbstractCopyTests):
    pass


class TestGet(KedgeFixtures, AbstractGetTests):
    pass


class TestOpen(KedgeFixtures, AbstractOpenTests):
    pass


class TestPipe(KedgeFixtures, AbstractPipeTests):
    pass


class TestPut(KedgeFixtures, AbstractPutTests):
    pass


@pytest.fixture
def where(tmp_path):
    path = tmp_path / "disk.kedge"
    kedgefs.mkfs(path, "128M")
    yield path
    KedgeFileSystem.clear_instance_cache()
    for shared in list(kedgefs.fsspec._Shared.images.values()):
        shared.fs.close()
    kedgefs.fsspec._Shared.images.clear()


def test_the_protocol_is_registered(where):
    fs, path = fsspec.core.url_to_fs(f"kedgefs://a/b::{where}")
    assert isinstance(fs, KedgeFileSystem) and path == "/a/b"
    with fsspec.open(f"kedgefs://a/b.txt::file://{where}", "w") as f:
        f.write("text")
    with fsspec.open("kedgefs://a/b.txt", fo=str(where)) as f:
        assert f.read() == b"text"
    assert fs.cat("kedgefs://a/b.txt") == b"text"
    assert fs.unstrip_protocol("/a/b.txt") == "kedgefs://a/b.txt"
    again = fsspec.filesystem("kedgefs", fo=str(where))
    assert again.image is fs.image and fs.fsid.startswith("kedgefs:")


def test_arguments_are_checked(where, tmp_path):
    with pytest.raises(ValueError, match="needs an image"):
        fsspec.filesystem("kedgefs")
    with pytest.raises(ValueError, match="not of memory"):
        fsspec.open("kedgefs://a::memory://disk.kedge").open()
    with pytest.raises(FileNotFoundError):
        KedgeFileSystem(tmp_path / "none")
    fs = KedgeFileSystem(where)
    with pytest.raises(ValueError, match="other options"):
        KedgeFileSystem(where, readonly=True)
    fs.close()
    with pytest.raises(ValueError, match="closed"):
        fs.ls("/")
    assert KedgeFileSystem(where, readonly=True).ls("/") == []


def test_operations(where):
    fs = KedgeFileSystem(where)
    fs.pipe({"/d/a": b"0123456789", "/d/b": b"b"})
    fs.symlink("/d/a", "/d/link")
    fs.symlink("/none", "/d/broken")
    fs.link("/d/b", "/d/hard")
    assert fs.ls("/d", detail=False) == fs.ls("d/", detail=False)
    info = {each["name"]: each for each in fs.ls("/d")}
    assert {name: (each["type"], each["size"], each["islink"]) for name, each in info.items()} == {
        "/d/a": ("file", 10, False),
        "/d/b": ("file", 1, False),
        "/d/hard": ("file", 1, False),
        "/d/link": ("file", 10, True),
        "/d/broken": ("other", 0, True),
    }
    assert info["/d/link"]["destination"] == "/d/a" and fs.islink("/d/link") and not fs.islink("/d/a")
    assert fs.ls("/d/a", detail=False) == ["/d/a"]
    with pytest.raises(FileNotFoundError):
        fs.ls("/none")
    assert fs.cat_file("/d/a", 2, 5) == b"234" and fs.cat_file("/d/a", -3) == b"789" and fs.cat_file("/d/a", 8, 2) == b""
    assert fs.cat_ranges(["/d/a", "/d/b"], 0, 1) == [b"0", b"b"]
    assert fs.head("/d/a", 3) == b"012" and fs.tail("/d/a", 3) == b"789" and fs.du("/d/a") == 10
    assert sorted(fs.glob("/d/*")) == sorted(info) and "/d/a" in fs.find("/")
    fs.touch("/d/a", truncate=False)
    assert fs.size("/d/a") == 10
    fs.touch("/d/new/er")
    assert fs.exists("/d/new/er") and fs.isdir("/d/new") and fs.isfile("/d/new/er")
    fs.chmod("/d/a", 0o600)
    assert fs.info("/d/a")["mode"] & 0o777 == 0o600
    assert fs.modified("/d/a").year > 2000
    with pytest.raises(NotImplementedError):
        fs.created("/d/a")
    fs.mv("/d/a", "/d/moved")
    fs.mv("/d/new", "/d/newer", recursive=True)
    assert fs.isfile("/d/newer/er") and not fs.exists("/d/a")
    fs.cp_file("/d/newer", "/d/dir")
    fs.copy("/d/b", "/e/f/b")
    with pytest.raises(FileExistsError):
        fs.mkdir("/d")
    with pytest.raises(FileExistsError):
        fs.makedirs("/d")
    fs.makedirs("/d", exist_ok=True)
    with pytest.raises(FileNotFoundError):
        fs.mkdir("/x/y", create_parents=False)
    fs.mkdir("/x/y")
    fs.rmdir("/x/y")
    with pytest.raises(IsADirectoryError):
        fs.rm("/d")
    with pytest.raises(ValueError, match="root"):
        fs.rm("/", recursive=True)
    with pytest.raises(FileExistsError):
        fs.pipe_file("/d/b", b"", mode="create")
    fs.rm_file("/d/b")
    fs.fork("/", "/fork", readonly=True)
    fs.rm(["/d", "/e"], recursive=True)
    assert sorted(fs.ls("/", detail=False)) == ["/fork", "/x"] and fs.isdir("/fork/d")
    fs.sync()
    back = fsspec.AbstractFileSystem.from_json(fs.to_json())
    assert back.image is fs.image


def test_a_file_is_not_copied_to_itself(where):
    fs = KedgeFileSystem(where)
    fs.pipe("/a", b"precious")
    fs.link("/a", "/hard")
    fs.symlink("/a", "/soft")
    for target in ["/a", "/hard", "/soft"]:
        with pytest.raises(shutil.SameFileError):
            fs.cp_file("/a", target)
        assert fs.cat(target) == b"precious"


def test_an_object_closed_twice_leaves_the_next_one_registered(where):
    old = KedgeFileSystem(where)
    old.close()
    new = KedgeFileSystem(where)
    old.close()
    assert KedgeFileSystem(where, sync_on_close=True).image is new.image


def test_a_transaction_has_what_is_piped(where):
    fs = KedgeFileSystem(where)
    fs.pipe("/a", b"old")
    with pytest.raises(RuntimeError):
        with fs.transaction:
            fs.pipe({"/a": b"new", "/b": b"new"})
            fs.pipe_file("/c", b"new", mode="create")
            raise RuntimeError
    assert fs.ls("/", detail=False) == ["/a"] and fs.cat("/a") == b"old"
    with fs.transaction:
        fs.pipe({"/a": b"new", "/b": b"new"})
        assert fs.cat("/a") == b"old"
    assert (fs.cat("/a"), fs.cat("/b")) == (b"new", b"new")


def test_a_transaction_has_what_is_overwritten_in_place(where):
    fs = KedgeFileSystem(where)
    fs.pipe("/a", b"old")
    with fs.transaction:
        with fs.open("/a", "r+b") as f:
            f.write(b"N")
        assert fs.cat("/a") == b"old"
        with pytest.raises(FileNotFoundError):
            fs.open("/none", "r+b")
    assert fs.ls("/", detail=False) == ["/a"] and fs.cat("/a") == b"Nld"


def test_a_transaction_is_all_or_nothing(where):
    fs = KedgeFileSystem(where, sync_on_close=True)
    fs.pipe("/a", b"old")
    with fs.transaction:
        with fs.open("/a", "wb") as f:
            f.write(b"new")
        with fs.open("/b", "wb") as f:
            f.write(b"new")
        assert fs.cat("/a") == b"old" and not fs.exists("/b")
    assert (fs.cat("/a"), fs.cat("/b")) == (b"new", b"new")
    with pytest.raises(RuntimeError):
        with fs.transaction:
            with fs.open("/a", "ab") as f:
                f.write(b" more")
            raise RuntimeError
    assert sorted(fs.ls("/", detail=False)) == ["/a", "/b"] and fs.cat("/a") == b"new"
    with fs.transaction:
        with fs.open("/a", "ab") as f:
            f.write(b" more")
        with pytest.raises(FileExistsError):
            fs.open("/b", "xb")
    assert fs.cat("/a") == b"new more"


def test_pandas_and_parquet(where):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    options = {"fo": str(where)}
    table = pandas.DataFrame({"n": range(10_000), "text": [f"row {n}" for n in range(10_000)]})
    table.to_parquet("kedgefs://data/t.parquet", storage_options=options)
    table.to_csv("kedgefs://data/t.csv", index=False, storage_options=options)
    assert pandas.read_parquet("kedgefs://data/t.parquet", storage_options=options).equals(table)
    assert pandas.read_csv(f"kedgefs://data/t.csv::{where}").equals(table)
    table["part"] = table["n"] % 3
    table.to_parquet("kedgefs://parts", partition_cols=["part"], storage_options=options)
    back = pandas.read_parquet("kedgefs://parts", storage_options=options)
    assert sorted(back["n"]) == list(range(10_000))


def test_pyarrow(where):
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.dataset
    import pyarrow.parquet

    fs = KedgeFileSystem(where)
    table = arrow.table({"n": list(range(1000))})
    pyarrow.parquet.write_table(table, "/t.parquet", filesystem=fs)
    assert pyarrow.parquet.read_table("/t.parquet", filesystem=fs).equals(table)
    pyarrow.dataset.write_dataset(table, "/set", format="parquet", filesystem=fs)
    assert pyarrow.dataset.dataset("/set", filesystem=fs).to_table().equals(table)


def test_zarr(where):
    zarr = pytest.importorskip("zarr")
    numpy = pytest.importorskip("numpy")
    store = zarr.storage.FsspecStore.from_url(
        "kedgefs://array.zarr", storage_options={"fo": str(where)}
    )
    array = zarr.create_array(store, shape=(300, 300), chunks=(100, 100), dtype="f8")
    values = numpy.random.default_rng(1).random((300, 300))
    array[:] = values
    assert (zarr.open_array(store, mode="r")[:] == values).all()


def test_dask(where):
    bag = pytest.importorskip("dask.bag")
    import dask

    options = {"fo": str(where)}
    lines = bag.from_sequence(range(100), npartitions=4).map(json.dumps)
    with dask.config.set(scheduler="threads"):
        lines.to_textfiles("kedgefs://lines/*.json", storage_options=options)
        read = bag.read_text("kedgefs://lines/*.json", storage_options=options).map(json.loads)
        assert sorted(read.compute()) == list(range(100))
