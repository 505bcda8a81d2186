"""Pictures for the table of speeds, and what each library does with them.

Every loader yields the same batches of two tensors, pixels of shape (64, 3, height, width) and
classes, in an order of its own. The old library runs here too, so this imports nothing else of
this project at the top. The pictures are noise with the spectrum of a photograph: 256 by 256 pixels
take 20 kB at quality 90, and 1500 by 2250 take 500 kB at quality 85, as real ones do.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

BATCH_SIZE = 64


def photograph(height: int, width: int, quality: int, seed: int) -> bytes:
    """Return a JPEG that takes as long to decode as a photograph of this size."""
    import numpy as np
    from PIL import Image

    random = np.random.default_rng(seed)
    across, down = np.fft.rfftfreq(width), np.fft.fftfreq(height)[:, None]
    frequency = np.hypot(across, down)
    frequency[0, 0] = 1

    def plane() -> Any:
        noise = np.fft.rfft2(random.standard_normal((height, width)))
        values = np.fft.irfft2(noise / frequency**1.5, s=(height, width))
        return values / values.std()

    grey = plane()
    pixels = np.stack([128 + 50 * (grey + 0.3 * plane()) for _ in range(3)], axis=-1)
    stream = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(stream, "JPEG", quality=quality)
    return stream.getvalue()


def write_photographs(folder: Path, height: int, width: int, quality: int, count: int) -> list[str]:
    """Write some JPEG files, if they are not there yet; return their paths."""
    paths = [folder / f"{height}-{width}-{number}.jpg" for number in range(count)]
    for seed, path in enumerate(paths):
        if not path.exists():
            path.write_bytes(photograph(height, width, quality, seed))
    return [str(path) for path in paths]


def write_dataset(folder: Path, photographs: list[str], shards: int, samples: int) -> str:
    """Write samples of a picture and a class as shards and as files; return the spec's path.

    The files are in ``folder/files``, in one folder for each class.
    """
    path = folder / "pictures.json"
    if path.exists():
        return str(path)
    contents = [Path(photograph).read_bytes() for photograph in photographs]
    shardlist = []
    for shard in range(shards):
        tar = folder / f"pictures-{shard:05d}.tar"
        with tarfile.open(tar, "w") as archive:
            for number in range(shard * samples, (shard + 1) * samples):
                content, label = contents[number % len(contents)], number % 10
                for field, data in ((".jpg", content), (".cls", b"%d" % label)):
                    info = tarfile.TarInfo(f"{number:06d}{field}")
                    info.size = len(data)
                    archive.addfile(info, io.BytesIO(data))
                file = folder / "files" / str(label) / f"{number:06d}.jpg"
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
        shardlist.append({"url": str(tar), "nsamples": samples})
    path.write_text(json.dumps({"wids_version": 1, "shardlist": shardlist}))
    return str(path)


# What a library does with the bytes of one picture


def decode_new(at_least: tuple[int, int] | None) -> Callable[[bytes], Any]:
    import wids

    options: dict[str, Any] = {} if at_least is None else {"at_least": at_least}
    decode = wids.Decoder("torch", **options)
    return lambda data: decode({".jpg": data})


def decode_pillow(_: tuple[int, int] | None) -> Callable[[bytes], Any]:
    """Full size whatever is wanted, and the array read-only, which saves its copy."""
    import numpy as np
    from PIL import Image

    return lambda data: np.asarray(Image.open(io.BytesIO(data)))


# What a library does with a dataset


def tensor_of(image: Any) -> Any:
    """Return the tensor of a PIL image as torchvision's ``pil_to_tensor`` does."""
    import numpy as np
    import torch

    return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)


def load_new(spec: str, workers: int) -> Any:
    from torch.utils.data import DataLoader

    import wids

    dataset = wids.ShardListDataset(spec, transformations="torch").to_tuple(".jpg", ".cls")
    sampler = wids.ChunkedSampler(dataset, shuffle=True)
    return DataLoader(dataset, BATCH_SIZE, sampler=sampler, num_workers=workers)


def load_old(spec: str, workers: int) -> Any:
    from torch.utils.data import DataLoader

    import wids

    shards = json.loads(Path(spec).read_text(encoding="utf-8"))["shardlist"]
    dataset = wids.ShardListDataset(shards, localname=str, dataset_name="x")
    dataset.add_transform(_tuple_of_old)
    sampler = wids.ChunkedSampler(dataset, shuffle=True)
    return DataLoader(dataset, BATCH_SIZE, sampler=sampler, num_workers=workers)


def _tuple_of_old(sample: dict[str, Any]) -> tuple[Any, int]:
    return tensor_of(sample[".jpg"]), sample[".cls"]


def load_webdataset(spec: str, workers: int) -> Any:
    import webdataset

    shards = json.loads(Path(spec).read_text(encoding="utf-8"))["shardlist"]
    urls = [shard["url"] for shard in shards]
    dataset = (
        webdataset.WebDataset(urls, shardshuffle=len(urls), empty_check=False)
        .shuffle(1000)
        .decode("torchrgb8")
        .to_tuple("jpg", "cls")
        .batched(BATCH_SIZE)
    )
    return webdataset.WebLoader(dataset, batch_size=None, num_workers=workers)


def load_files(spec: str, workers: int) -> Any:
    from torch.utils.data import DataLoader

    dataset = Files(Path(spec).with_name("files"))
    return DataLoader(dataset, BATCH_SIZE, shuffle=True, num_workers=workers)


class Files:
    """Class folders of pictures, as torchvision's ``ImageFolder`` reads them."""

    def __init__(self, folder: Path) -> None:
        names = sorted(path.name for path in folder.iterdir())
        self.items = [
            (str(path), label)
            for label, name in enumerate(names)
            for path in sorted((folder / name).iterdir())
        ]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        from PIL import Image

        path, label = self.items[index]
        with open(path, "rb") as stream:
            return tensor_of(Image.open(stream)), label


DECODERS: dict[str, Callable[[tuple[int, int] | None], Callable[[bytes], Any]]] = {
    "new": decode_new,
    "pillow": decode_pillow,
}
LOADERS: dict[str, Callable[[str, int], Any]] = {
    "new": load_new,
    "old": load_old,
    "webdataset": load_webdataset,
    "files": load_files,
}


def batches(loader: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the batches of a loader, each as a pair of tensors."""
    import torch

    for pictures, labels in loader:
        yield pictures, torch.as_tensor(labels)
