"""The builds of TVM that there are: what each is, the version it must have, the functions that it must register."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Build:
    """A build of TVM.

    Attributes:
        kind: Its name here.
        title: Its name for readers.
        release: The release that this package is made for; any patch of it will do.
        functions: What TVM must have registered, or it was built without a part that is needed.
    """

    kind: str
    title: str
    release: str
    functions: tuple[str, ...]

    def fault(self, version: str, missing: tuple[str, ...]) -> str | None:
        """Why a TVM of that version, which lacks the functions ``missing``, is none for this package."""
        if version.split(".")[:2] != self.release.split("."):
            return f"it has TVM {version}, expected {self.release}"
        return f"its TVM was built without {missing[0]}" if missing else None


BUILDS = {
    build.kind: build
    for build in (
        Build(
            "relay", "TVM Relay", "0.19",
            ("target.build.llvm", "relay._vm._VMCompiler", "relay.build_module._BuildModule",
             "tvm.graph_executor.create"),
        ),
        Build("relax", "TVM Relax", "0.27", ("target.build.llvm", "relax.VMCodeGen", "relax.transform.FuseTIR")),
    )
}  # fmt: skip
