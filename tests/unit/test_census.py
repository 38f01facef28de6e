"""The sample job: its shards add up to one direct pass, whatever the files are like."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from dsched.jobs import Cancelled, JobContext, declaration_of

pytestmark = pytest.mark.filterwarnings("ignore")


def load() -> ModuleType:
    path = Path(__file__).resolve().parents[2] / "examples" / "census.py"
    spec = importlib.util.spec_from_file_location("census_under_test", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


census = load()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "package" / "site-packages").mkdir(parents=True)
    (tmp_path / "empty.py").write_bytes(b"")
    (tmp_path / "package" / "a.py").write_text("class A:\n    def f(self): ...\n    async def g(self): ...\n")
    (tmp_path / "package" / "broken.py").write_text("def f(:\n    pass\n")
    (tmp_path / "package" / "latin.py").write_bytes(b"x = '\xe9'\n")
    (tmp_path / "package" / "declared.py").write_bytes(b"# coding: latin-1\nx = '\xe9'\ndef f(): ...")
    (tmp_path / "package" / "nul.py").write_bytes(b"x = 1\n\x00\n")
    (tmp_path / "package" / "ünicode.py").write_text("lambda: 1\n")
    (tmp_path / "package" / "readme.txt").write_text("class B: ...\n")
    (tmp_path / "package" / "site-packages" / "other.py").write_text("class C: ...\n")
    return tmp_path


def test_it_counts_what_is_there(tree: Path) -> None:
    counts = census.count_directly(tree)
    assert counts == {"files": 7, "lines": 0 + 3 + 2 + 1 + 3 + 2 + 1, "functions": 3, "classes": 1, "unparsed": 3}


@pytest.mark.parametrize("total", [1, 2, 3, 10, 50])
def test_shards_add_up_to_the_direct_count(tree: Path, total: int) -> None:
    sums = census.nothing()
    for item in range(total):
        census.add(sums, census.census(JobContext({"path": str(tree)}, item, total)))
    assert sums == census.count_directly(tree)


def test_a_shard_of_the_standard_library_is_a_part_of_it() -> None:
    files = list(census.python_files(census.standard_library()))
    assert "os.py" in files
    assert not [name for name in files if "site-packages" in name]
    assert len({census.shard_of(name, 10) for name in files}) == 10


def test_it_stops_when_it_is_no_longer_wanted(tree: Path) -> None:
    ctx = JobContext({"path": str(tree)})
    ctx.cancel()
    with pytest.raises(Cancelled):
        census.census(ctx)


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotADirectoryError):
        census.census(JobContext({"path": str(tmp_path / "nowhere")}))


def test_its_declaration() -> None:
    declaration = declaration_of(census.census)
    assert declaration is not None
    assert (declaration.name, declaration.sharding_total, declaration.timeout_s) == ("census", 10, 60)
