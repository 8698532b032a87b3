"""Image files for TensorFlow: tf.data over the same folder, with the same augmentation as `torch_input`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:
    from paceline_lab.bench.ranks.rank_spec import RankSpec

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif")
# RandomResizedCrop's own (torchvision): the share of the area, and the ratio of the sides.
_AREA, _RATIO = (0.08, 1.0), (3 / 4, 4 / 3)


def image_files(spec: RankSpec, rank: int, size: int) -> Any:  # noqa: ANN401 - a dataset
    """Return endless batches: images (N, height, width, 3), float32, and labels (N,), int64."""
    root = Path(str(spec.data_dir))
    classes = sorted(folder.name for folder in root.iterdir() if folder.is_dir())
    pictures = [
        (str(path), number)
        for number, name in enumerate(classes)
        for path in sorted((root / name).rglob("*"))
        if path.suffix.lower() in SUFFIXES
    ]
    own = pictures[rank::size]
    paths, labels = [path for path, _ in own], [label for _, label in own]
    files = tf.data.Dataset.from_tensor_slices((paths, tf.constant(labels, tf.int64)))
    files = files.shuffle(len(own), seed=spec.seed + rank, reshuffle_each_iteration=True).repeat()
    workers = max(1, spec.loader_workers)
    images = files.map(lambda path, label: (_augmented(path, spec.image_size), label), num_parallel_calls=workers)
    return images.batch(spec.batch, drop_remainder=True).prefetch(2)


def _augmented(path: Any, size: int) -> Any:  # noqa: ANN401 - tensors
    image = tf.io.decode_image(tf.io.read_file(path), channels=3, expand_animations=False)
    begin, extent, _ = tf.image.sample_distorted_bounding_box(
        tf.shape(image),
        tf.zeros([1, 0, 4]),
        area_range=_AREA,
        aspect_ratio_range=_RATIO,
        use_image_if_no_bounding_boxes=True,
    )
    cut = tf.slice(image, begin, extent)
    resized = tf.image.resize(cut, [size, size], antialias=True) / 255.0
    return (tf.image.random_flip_left_right(resized) - tf.constant(MEAN)) / tf.constant(DEVIATION)
