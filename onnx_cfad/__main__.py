"""``python -m onnx_cfad`` and the command ``onnx-cfad``: the command line, interrupted at any time with one line."""

import sys


def main() -> None:
    """Runs the command line."""
    try:
        from onnx_cfad.cli import main as run  # noqa: PLC0415 - its import may be interrupted too

        run()
    except KeyboardInterrupt:
        from onnx_cfad.interruptions import say_interrupted  # noqa: PLC0415

        sys.exit(say_interrupted())


if __name__ == "__main__":
    main()
