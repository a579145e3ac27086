"""Run the package as if it were on Windows: what only POSIX has is missing, and files in use cannot be removed.

`python tests/windows_like.py FOLDER` imports every module and then does what users do. Only the package sees another
system: its imports of `os`, `sys`, `signal` and `mmap` lead to stand-ins, those of other packages to the real modules.
Deleting, replacing and renaming are refused for all, because `pathlib` and `shutil` do them for the package. It needs
Linux, whose /proc says which files this process has open or mapped.
"""

import builtins
import errno
import importlib.util
import mmap
import os
import pkgutil
import re
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

MISSING_MODULES = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "triton", "tty"}
MISSING_NAMES = {
    "os": re.compile(
        r"fork.*|get(e?[ug]id|groups|pg.*|p?sid|priority|loadavg|res[ug]id|xattr)|set(e?[ug]id|groups|pg.*|sid)|killpg|"
        r"mkfifo|mknod|nice|openpty|f?pathconf|pipe2|posix_.*|p?readv|pread|p?writev|pwrite|sched_.*|sendfile|f?statvfs|sync|"
        r"sysconf.*|confstr|uname|wait([34]|id)?|l?chown|fch(own|mod|dir)|chroot|fdatasync|lockf|ttyname|"
        r"register_at_fork|copy_file_range|memfd_create|eventfd.*|splice|mkdev|WIF.*|"
        r"O_(DIRECT|DIRECTORY|DSYNC|NOATIME|NOCTTY|NOFOLLOW|NONBLOCK|PATH|SYNC|TMPFILE|CLOEXEC)"
    ),
    "signal": re.compile(
        r"SIG(ALRM|BUS|CHLD|CONT|HUP|IO|KILL|PIPE|PROF|QUIT|STOP|SYS|TRAP|TSTP|TTIN|TTOU|URG|USR1|USR2|VTALRM|WINCH)|"
        r"alarm|[gs]etitimer|pause|pthread_.*|siginterrupt|sigpending|sigwait.*"
    ),
    "mmap": re.compile(r"MAP_.*|PROT_.*|MADV_.*"),
    "sys": re.compile(r"abiflags|getdlopenflags|setdlopenflags"),
}
SYSTEM_PLACES = ("/proc", "/sys", "/dev/nvidia")
RESERVED = re.compile(r'[<>:"|?*\x00-\x1f]|[ .]$')
# packages of the extras, and what Windows has no wheel of
OPTIONAL = {
    "confluent_kafka",
    "fastapi",
    "huggingface_hub",
    "onnx",
    "onnxruntime",
    "optuna",
    "prometheus_client",
}
OPTIONAL |= {"pydantic", "starlette", "tensorboard", "triton", "uvicorn"}


class WindowsMap(mmap.mmap):
    """A map with the parameters and methods of Windows."""

    def __new__(cls, fileno: int, length: int, tagname: str | None = None, access: int = 0, offset: int = 0):
        """Map a file; there are no flags and no protection."""
        return super().__new__(cls, fileno, length, access=access or mmap.ACCESS_WRITE, offset=offset)

    @property
    def madvise(self) -> None:
        raise AttributeError("madvise")


class StandIn:
    """A module without what Windows lacks; everything else is that of the real one, also what is set."""

    def __init__(self, module: ModuleType, **changes: Any) -> None:
        vars(self).update(changes, real_module=module, missing=MISSING_NAMES.get(module.__name__))

    def __getattr__(self, name: str) -> Any:
        if self.missing is not None and self.missing.fullmatch(name):
            raise AttributeError(f"Windows has no {self.real_module.__name__}.{name}")
        return getattr(self.real_module, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self.real_module, name, value)


def list_files_in_use() -> set[str]:
    """Return the paths of the files that this process has open or mapped."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            found.add(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:
            continue
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        found |= {line.split(maxsplit=5)[5].rstrip("\n") for line in maps if line.count("/")}
    return {path for path in found if path.startswith("/") and not os.path.isdir(path)}


def require_unused(path: Any, folder: int | None = None) -> None:
    """Raise PermissionError if a file, or one below a folder, is open or mapped."""
    name = os.fspath(path)
    if folder is not None:
        name = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), name)
    name = os.path.join(os.path.realpath(os.path.dirname(os.path.abspath(name))), os.path.basename(name))
    if any(used == name or used.startswith(f"{name}/") for used in list_files_in_use()):
        raise PermissionError(errno.EACCES, "the file is being used by another process", str(path))


def require_valid_name(path: Any) -> None:
    """Raise OSError if a name has characters that no file of Windows has."""
    if RESERVED.search(os.path.basename(os.fspath(path))):
        raise OSError(errno.EINVAL, "the name of the file is incorrect", str(path))


def refuse_files_in_use() -> None:
    """Let the functions of `os` that remove, rename, create and flush refuse what Windows refuses."""
    real = {name: getattr(os, name) for name in ("unlink", "remove", "rename", "replace", "mkdir", "fsync")}

    def remove(kind: str) -> Callable[..., None]:
        def refuse_or_remove(path: Any, *, dir_fd: int | None = None) -> None:
            require_unused(path, dir_fd)
            real[kind](path, dir_fd=dir_fd)

        return refuse_or_remove

    def rename(kind: str) -> Callable[..., None]:
        def refuse_or_rename(src: Any, dst: Any, **options: Any) -> None:
            require_valid_name(dst)
            require_unused(src, options.get("src_dir_fd"))
            require_unused(dst, options.get("dst_dir_fd"))
            real[kind](src, dst, **options)

        return refuse_or_rename

    def mkdir(path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        require_valid_name(path)
        real["mkdir"](path, mode, dir_fd=dir_fd)

    def fsync(handle: Any) -> None:
        number = handle if isinstance(handle, int) else handle.fileno()
        flags = re.findall(r"flags:\s+(\d+)", Path(f"/proc/self/fdinfo/{number}").read_text("ascii"))[0]
        if int(flags, 8) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, "the file is not open for writing")
        real["fsync"](number)

    for kind in ("unlink", "remove"):  # a folder with such a file is not empty, so `rmdir` refuses by itself
        setattr(os, kind, remove(kind))
    for kind in ("rename", "replace"):
        setattr(os, kind, rename(kind))
    os.mkdir, os.fsync = mkdir, fsync


def make_stand_ins() -> dict[str, StandIn]:
    """Return the modules that the package gets instead of the real ones."""

    def open_file(path: Any, flags: int, mode: int = 0o777) -> int:
        if os.path.isdir(path):
            raise PermissionError(errno.EACCES, "a folder cannot be opened", str(path))
        if flags & os.O_CREAT:
            require_valid_name(path)
        return os.open(path, flags, mode)

    def readlink(path: Any) -> str:
        if str(path).startswith(SYSTEM_PLACES):
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        return os.readlink(path)

    def exists(path: Any) -> bool:
        return not str(path).startswith(SYSTEM_PLACES) and os.path.exists(path)

    paths = StandIn(os.path, exists=exists)
    return {
        "os": StandIn(os, name="nt", open=open_file, readlink=readlink, path=paths),
        "sys": StandIn(sys, platform="win32"),
        "signal": StandIn(signal),
        "mmap": StandIn(mmap, mmap=WindowsMap),
    }


def is_ours(module: str | None) -> bool:
    return module is not None and module.partition(".")[0] == "dygmamba"


def simulate_windows() -> None:
    """Change the system that the package sees; to be called before its first import."""
    refuse_files_in_use()
    stand_ins, real_import = make_stand_ins(), builtins.__import__

    def import_module(
        name: str, scope: Any = None, local: Any = None, fromlist: Any = (), level: int = 0
    ) -> Any:
        if is_ours((scope or {}).get("__name__")) and not level:
            if name.partition(".")[0] in MISSING_MODULES:
                raise ModuleNotFoundError(f"Windows has no {name}", name=name)
            if name in stand_ins:
                return stand_ins[name]
        return real_import(name, scope, local, fromlist, level)

    def refuse_system_files(event: str, values: tuple) -> None:
        if event != "open" or not str(values[0]).startswith(SYSTEM_PLACES):
            return
        caller = sys._getframe(1)
        while caller.f_back is not None and caller.f_globals.get("__name__") == "pathlib":
            caller = caller.f_back
        if is_ours(caller.f_globals.get("__name__")):
            raise FileNotFoundError(errno.ENOENT, "no such file", str(values[0]))

    builtins.__import__ = import_module
    sys.addaudithook(refuse_system_files)
    warnings.filterwarnings("error", category=EncodingWarning, module=r"dygmamba(\..*)?$")


def import_everything() -> None:
    """Import every module of the package; those of extras and GPU kernels may lack their packages."""
    import dygmamba

    for found in pkgutil.walk_packages(dygmamba.__path__, "dygmamba."):
        if found.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(found.name)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in OPTIONAL:
                raise


def call_command(*words: str) -> None:
    """Run a command in this process; raise if it does not end with 0."""
    from dygmamba.cli import main

    arguments, sys.argv = sys.argv, ["dygmamba", *words]
    try:
        main()
    except SystemExit as ended:
        if ended.code:
            raise RuntimeError(f"dygmamba {' '.join(words)} ended with {ended.code}") from None
    finally:
        sys.argv = arguments


def write_events(path: Path, count: int = 300) -> None:
    """Write a CSV of dated events, the first of them before 1970."""
    lines = [
        f"u{k % 17},v{k * k % 13},19{66 + k // 40}-01-{1 + k % 28:02}T00:00:{k % 60:02}" for k in range(count)
    ]
    path.write_text("\n".join(["src,dst,time", *lines]) + "\n", "utf-8")


def use_commands() -> None:
    """Import, train, resume, predict and share with the command line."""
    write_events(Path("mail.csv"))
    call_command("data", "import", "mail.csv")
    Path("again.csv").write_bytes(Path("mail.csv").read_bytes())
    call_command("data", "import", "again.csv")
    call_command("train", "mail", "--model", "trees", "--epochs", "1", "--set", "rounds=5", "--device", "cpu")
    small = ("--set", "length=8", "--set", "width=8", "--set", "blocks=1", "--device", "cpu")
    call_command("train", "mail", "--model", "dyg-mamba", "--epochs", "2", *small)
    (folder,) = Path("runs/mail").glob("dyg-mamba/*")
    call_command("train", "--resume", str(folder), "--epochs", "3")
    (folder,) = Path("runs/mail").glob("trees/*")
    assert (folder / "report.html").stat().st_size > 10_000
    call_command("predict", str(folder), "--sources", "u1", "--top", "3")
    call_command("explain", str(folder), "--pair", "u1,v1")
    call_command("data", "remove", "again")


def use_library() -> None:
    """Share a run with its data, and let it follow events: snapshots, a backup, a server."""
    import dygmamba as dm

    (folder,) = Path("runs/mail").glob("trees/*")
    run = dm.open(folder)
    pulled = dm.pull(dm.push(run, "shared", data=True), out="elsewhere", data_dir="empty", device="cpu")
    assert pulled.score([("u1", "v1")]) == run.score([("u1", "v1")])
    events = [(f"u{k % 19}", f"v{k % 13}", f"1980-01-01T00:00:{k:02}") for k in range(20)]
    with dm.live(run, "state") as live:
        live.append(events[:10])
        assert live.snapshot() == 10
        score = live.score([("u1", "v1")])
    with dm.live(run, "state") as live:  # maps the snapshot
        assert live.score([("u1", "v1")]) == score
        assert live.snapshot() == 10
        live.append(events[10:])
        assert live.snapshot() == 20
        live.backup("saved.zip")
        score = live.score([("u1", "v1")])
    with dm.live(run, dm.restore("saved.zip", "copy")) as live:
        assert live.sequence == 20
        assert live.score([("u1", "v1")]) == score
    if importlib.util.find_spec("uvicorn") and importlib.util.find_spec("httpx"):
        serve_run(run)


def serve_run(run: Any) -> None:
    """Answer a query over HTTP."""
    import httpx

    import dygmamba as dm
    from live_server import running

    with running(lambda: dm.live(run, "copy")) as url:
        assert httpx.get(f"{url}/v2/health/ready").status_code == 200


def main(folder: Path) -> None:
    """Import everything, then use it in an empty folder."""
    simulate_windows()
    os.chdir(folder)
    os.environ["DYGMAMBA_DATA"] = str(folder / "data")
    import_everything()
    use_commands()
    use_library()


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
