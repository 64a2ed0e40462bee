"""Arrays split over clients, and read from files that other tools wrote."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from PIL import Image

import fedscaffold as fs
from fedscaffold.data import from_arrays, load_records, partition

PIXELS = np.random.default_rng(0).integers(0, 256, size=(6, 4, 5), dtype=np.uint8)
LABELS = np.array([0, 1, 1, 0, 1, 0])


def test_clients_get_their_records_in_order() -> None:
    X, y, owners = np.arange(24.0).reshape(6, 2, 2), np.arange(6), np.array([3, 1, 3, 3, 1, 2])
    found = from_arrays(X, y, owners)
    assert [targets.tolist() for _, targets in found] == [[1, 4], [5], [0, 2, 3]]
    for inputs, targets in found:
        np.testing.assert_array_equal(inputs, X[targets])
    for wrong in (owners[:5], owners.reshape(2, 3), owners[:0]):
        with pytest.raises(fs.InvalidInput, match="must have one entry per record"):
            from_arrays(X, y, wrong)


def images(folder: Path, *, colour: bool = False) -> Path:
    for i, (pixels, label) in enumerate(zip(PIXELS, LABELS, strict=True)):
        (folder / f"class-{label}").mkdir(parents=True, exist_ok=True)
        image = Image.fromarray(pixels)
        (image.convert("RGB") if colour else image).save(folder / f"class-{label}" / f"{i}.png")
    return folder


@pytest.mark.parametrize("colour", [False, True])
def test_folders_of_images(tmp_path: Path, colour: bool) -> None:
    found = load_records(images(tmp_path / "train", colour=colour))
    order = np.argsort(LABELS, kind="stable")
    assert found.classes == ("class-0", "class-1")
    np.testing.assert_array_equal(found.y, LABELS[order])
    wanted = (PIXELS[order] / 255.0)[:, None].repeat(3 if colour else 1, axis=1)
    np.testing.assert_allclose(found.X, wanted, atol=1e-7)
    assert found.X.dtype == np.float32


def columns(tmp_path: Path) -> dict[str, Any]:
    images(tmp_path / "some")
    files = {int(file.stem): file for file in (tmp_path / "some").glob("*/*.png")}
    return {
        "image": [{"bytes": files[i].read_bytes(), "path": None} for i in range(6)],
        "pixels": [(one / 255.0).ravel().tolist() for one in PIXELS],
        "label": LABELS.tolist(),
        "writer": list("aabbbc"),
    }


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize("inputs", ["image", "pixels"])
def test_columns_of_parquet_and_of_saved_datasets(tmp_path: Path, kind: str, inputs: str) -> None:
    """A saved Dataset is a folder of Arrow streams, with images as their files' bytes."""
    table, path = pa.table(columns(tmp_path)), tmp_path / "data"
    if kind == "parquet":
        pyarrow.parquet.write_table(table, path)
    else:
        path.mkdir()
        for part in (0, 1):
            name = str(path / f"data-0000{part}-of-00002.arrow")
            with pa.OSFile(name, "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table.slice(3 * part, 3))
        (path / "state.json").write_text("{}")
    found = load_records(path, inputs=inputs, target="label", client="writer")
    np.testing.assert_allclose(found.X.reshape(6, -1), PIXELS.reshape(6, -1) / 255.0, atol=1e-7)
    np.testing.assert_array_equal(found.y, LABELS)
    assert found.clients is not None
    assert partition.natural(found.clients).tolist() == [0, 0, 1, 1, 1, 2]


def test_what_cannot_be_read_is_rejected(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", X=np.zeros((3, 2)), y=np.zeros(2))
    np.savez(tmp_path / "objects.npz", X=np.array([{}], dtype=object), y=np.zeros(1))
    (tmp_path / "b.csv").write_text("x,y\n1,2\n")
    (tmp_path / "empty").mkdir()
    images(tmp_path / "mixed")
    Image.fromarray(PIXELS[0][:2]).save(tmp_path / "mixed" / "class-1" / "9.png")
    for name, more, message in [
        ("a.npz", {}, r"X, y have lengths \[3, 2\]"),
        ("a.npz", {"target": "z"}, "has no 'z'; it has 'X', 'y'"),
        ("objects.npz", {}, "cannot read arrays from"),
        ("b.csv", {}, "must be .npz, Parquet, a Dataset that was saved, or a folder of images"),
        ("missing", {}, "does not exist"),
        ("empty", {}, "holds no folders of images"),
        ("mixed", {}, "make them all the same"),
        ("mixed", {"client": "writer"}, "do not say whose an image is"),
    ]:
        with pytest.raises(fs.InvalidInput, match=message):
            load_records(tmp_path / name, **more)


def test_the_plot_shows_every_client_s_classes() -> None:
    found = partition.summary([0, 0, 0, 1], ["a", "b", "b", "a"])
    ax = found.plot()
    heights = [[bar.get_height() for bar in bars] for bars in ax.containers]
    assert heights == [[1, 1], [2, 0]]
    assert ax.containers[1][0].get_y() == 1
