"""Both kinds of installation list the roles, start them, and carry every file. Needs no network."""

import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parent.parent
PACKAGED = ("dsched", "twisted")
LEFT_BEHIND = ("__pycache__", "dropin.cache")
OFFLINE = ("--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check")
LIMIT_S = 180


def run(*command: str | Path, cwd: Path = Path("/")) -> str:
    """Run a command, by default where nothing can be found by luck, and return what it printed."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@dataclass(frozen=True, slots=True)
class Installation:
    """A fresh virtual environment that borrows the libraries of this one, and should import dsched from `home`."""

    python: Path
    home: Path

    def twistd(self, *arguments: str) -> str:
        return run(self.python, "-c", "from twisted.scripts.twistd import run; run()", *arguments)

    def file_of(self, module: str) -> Path:
        printed = run(self.python, "-c", f"import {module}; print({module}.__file__)")
        return Path(printed.strip())


def new_installation(folder: Path, what: Path, *options: str, home: Path | None = None) -> Installation:
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    own = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    # A plain path line: the editable dsched of this environment hangs on a .pth file, which is not read from there.
    (own / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    run(sys.executable, "-m", "pip", f"--python={python}", "install", "--ignore-installed", *OFFLINE, *options, what)
    return Installation(python, home or own)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what is packaged, with the litter that Twisted and Python leave in a tree."""
    copy = tmp_path_factory.mktemp("tree")
    for name in ("setup.cfg", "pyproject.toml", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for name in PACKAGED:
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns(*LEFT_BEHIND))
    (copy / "twisted" / "plugins" / "dropin.cache").touch()
    for folder in (copy / "dsched", copy / "twisted" / "plugins"):
        (folder / "__pycache__").mkdir()
        (folder / "__pycache__" / "left.cpython-311.pyc").touch()
    return copy


@pytest.fixture(scope="module")
def wheel(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that is built from the source distribution, as a release is."""
    out = tmp_path_factory.mktemp("dist")
    source = tmp_path_factory.mktemp("source") / "tree"
    shutil.copytree(tree, source)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, source)
    assert len(list(out.glob("dsched-*.tar.gz"))) == 1
    [built] = out.glob("dsched-*.whl")
    return built


@pytest.fixture(scope="module", params=["wheel", "editable"])
def installation(request: pytest.FixtureRequest, tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    folder = tmp_path_factory.mktemp(request.param) / "venv"
    if request.param == "wheel":
        return new_installation(folder, request.getfixturevalue("wheel"))
    return new_installation(folder, tree, "--editable", home=tree)


def test_the_wheel_holds_every_file_and_no_litter(tree: Path, wheel: Path) -> None:
    expected = {
        path.relative_to(tree).as_posix()
        for name in PACKAGED
        for path in (tree / name).rglob("*")
        if path.is_file() and not set(LEFT_BEHIND) & set(path.parts)
    }
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert held == expected
    assert {"dsched/py.typed", "twisted/plugins/dsched_plugins.py"} <= held


def test_the_installation_is_the_one_under_test(installation: Installation) -> None:
    for module in ("dsched", "twisted.plugins.dsched_plugins"):
        assert installation.file_of(module).is_relative_to(installation.home)


def test_twistd_lists_both_roles(installation: Installation) -> None:
    listed = [line.split()[0] for line in installation.twistd("--help").splitlines() if line.strip()]
    assert [name for name in listed if name.startswith("dsched")] == ["dsched-core", "dsched-worker"]


@pytest.mark.parametrize("role", ["dsched-core", "dsched-worker"])
def test_a_role_explains_its_options(installation: Installation, role: str) -> None:
    assert role in installation.twistd(role, "--help")


def test_the_command_line_starts(installation: Installation) -> None:
    assert "demo" in run(installation.python.parent / "dsched", "--help")
