"""The scripts and includes are found in an installed wheel and in a checkout."""

from pathlib import Path

import pytest

from extproc import assets


def test_a_checkout_has_them_beside_the_package() -> None:
    assert (assets.lua_folder() / "reserve.lua").is_file()


def test_a_wheel_has_them_inside_the_package_and_those_win(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "extproc"
    (tmp_path / "lua").mkdir()
    (package / "_assets" / "lua").mkdir(parents=True)
    monkeypatch.setattr(assets, "_PACKAGE", package)
    assert assets.lua_folder() == package / "_assets" / "lua"
    with pytest.raises(FileNotFoundError, match="envoy"):
        assets.envoy_folder()
