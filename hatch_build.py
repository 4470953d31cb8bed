"""What the package's build does beside copying files: it compiles the executor's kernels for CPUs."""

from __future__ import annotations

import importlib.util
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_KERNELS = Path("executor", "native")


class KernelBuild(BuildHookInterface):  # type: ignore[type-arg]
    """Compiles the kernels into the wheel, or into the working tree where the install is an editable one.

    Without a compiler the wheel holds no kernels and fits every platform; the executor then computes with torch.
    """

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it collects the wheel's files."""
        build = _load(Path(self.root) / _KERNELS / "build.py")
        try:
            libraries = build.build()
        except build.NoCompiler as reason:
            self.app.display_warning(f"The kernels for CPUs are not compiled ({reason}): the executor will be slower")
            return
        build_data["artifacts"] += [(_KERNELS / "lib" / library.name).as_posix() for library in libraries]
        build_data["pure_python"] = False
        # Called through ctypes, so that one wheel does for every Python.
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"


def _load(script: Path) -> ModuleType:
    """A module by its path: the package that it belongs to cannot be imported yet."""
    spec = importlib.util.spec_from_file_location("kernel_build", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
