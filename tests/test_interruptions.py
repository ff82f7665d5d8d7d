"""A command that is ended from outside leaves nothing half written and says one line at most."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import textwrap

import pytest

COMMAND = [sys.executable, "-m", "onnx_cfad"]
ROOT = pathlib.Path(__file__).parents[1]
MODEL = ROOT / "models" / "heat.onnx"


# A shell that starts the tests in the background has them ignore Ctrl-C, and what they start as well.
LISTENING = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def killed_while_writing(number: int, folder: pathlib.Path) -> subprocess.CompletedProcess[str]:
    """``transform`` that gets a signal when half of the file is written."""
    program = LISTENING + textwrap.dedent(f"""
        import os, sys
        import onnx_cfad.saving as saving
        whole = saving._serialize
        def half(model):
            content = whole(model)
            if any(name.endswith(".tmp") for name in os.listdir({str(folder)!r})):
                os.kill(os.getpid(), {number})
            return content
        saving._serialize = half
        sys.argv = ["onnx-cfad", "transform", {str(MODEL)!r}, "-o", {str(folder / "g.onnx")!r}]
        from onnx_cfad.__main__ import main
        main()
    """)
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment(), check=False, timeout=120
    )


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT"])
def test_a_signal_while_writing_leaves_no_file(name: str, tmp_path: pathlib.Path) -> None:
    number = signal.Signals[name]
    done = killed_while_writing(number, tmp_path)
    assert done.returncode == 128 + number, done.stderr
    assert done.stderr == ("error: interrupted\n" if name == "SIGINT" else "")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("module", ["onnx_cfad.errors", "onnx_cfad.cli", "onnx_cfad.inspection", "sympy"])
def test_an_interruption_while_the_package_is_imported_is_one_line(module: str) -> None:
    program = f"MODEL, MODULE = {str(MODEL)!r}, {module!r}" + textwrap.dedent("""
        import sys
        sys.orig_argv = ["python", "-m", "onnx_cfad", "inspect"]
        class Interrupt:
            def find_spec(self, name, path=None, target=None):
                if name == MODULE:
                    raise KeyboardInterrupt
        sys.meta_path.insert(0, Interrupt())
        sys.argv[1:] = ["inspect", MODEL]
        from onnx_cfad.__main__ import main
        main()
    """)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment(), check=False, timeout=120
    )
    assert done.stderr == "error: interrupted\n"
    assert done.returncode in (130, -signal.SIGINT)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_waits_until_a_module_is_imported(name: str) -> None:
    """An exception in the middle of a module that is written in C++ becomes an ImportError, or ends the process."""
    number = signal.Signals[name]
    program = f"{LISTENING}NUMBER = {int(number)}" + textwrap.dedent("""
        import os, sys, time
        from onnx_cfad.interruptions import leave_on_signals
        class Signal:
            def find_spec(self, name, path=None, target=None):
                if name == "colorsys":
                    try:
                        os.kill(os.getpid(), NUMBER)
                        time.sleep(0.1)
                    except BaseException:
                        raise ImportError("initialization failed")
        sys.meta_path.insert(0, Signal())
        leave_on_signals()
        try:
            import colorsys
            print("imported", flush=True)
            time.sleep(60)
        except KeyboardInterrupt:
            sys.exit(128 + NUMBER)
    """)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment(), check=False, timeout=50
    )
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "imported\n", "")


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_whose_exception_is_ignored_comes_again(name: str) -> None:
    number = signal.Signals[name]
    program = f"{LISTENING}NUMBER = {int(number)}" + textwrap.dedent("""
        import os, time
        from onnx_cfad.interruptions import leave_on_signals
        leave_on_signals()
        class Ignores:
            def __del__(self):
                os.kill(os.getpid(), NUMBER)
                time.sleep(0.01)
        Ignores()
        time.sleep(60)
    """)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment(), check=False, timeout=50
    )
    assert "ignored" not in done.stderr
    assert done.returncode == (-number if name == "SIGINT" else 128 + number)


@pytest.mark.parametrize(("command", "options"), [("inspect", []), ("plan", ["--json"])])
def test_a_reader_that_is_gone_is_no_error(command: str, options: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as output:
        done = subprocess.run(
            [*COMMAND, command, str(MODEL), *options],
            stdout=output, stderr=subprocess.PIPE, text=True, env=environment(), check=False, timeout=120,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (141, "")


def test_output_that_cannot_be_written_is_one_line(tmp_path: pathlib.Path) -> None:
    """A limit of the file size of 0 stands for a disk that is full."""
    program = """if True:
        import os, resource, sys
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        os.execv(sys.argv[1], sys.argv[1:])
    """
    with (tmp_path / "output").open("wb") as output:
        done = subprocess.run(
            [sys.executable, "-c", program, *COMMAND, "inspect", str(MODEL)],
            stdout=output, stderr=subprocess.PIPE, text=True, env=environment(), check=False, timeout=120,
        )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == "error: standard output: File too large\n"


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_help_that_cannot_be_written_is_one_line(option: str, tmp_path: pathlib.Path) -> None:
    program = """if True:
        import os, resource, sys
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        os.execv(sys.argv[1], sys.argv[1:])
    """
    with (tmp_path / "output").open("wb") as output:
        done = subprocess.run(
            [sys.executable, "-c", program, *COMMAND, option],
            stdout=output, stderr=subprocess.PIPE, text=True, env=environment(), check=False, timeout=120,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (2, "error: standard output: File too large\n")


def test_closed_output_is_no_error(tmp_path: pathlib.Path) -> None:
    target = tmp_path / "g.onnx"
    done = subprocess.run(
        ["sh", "-c", 'exec "$0" "$@" >&-', *COMMAND, "transform", str(MODEL), "-o", str(target)],
        stderr=subprocess.PIPE, text=True, env=environment(), check=False, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert target.exists()
