"""What others take, measured on one NVIDIA H200 (torch 2.11, CUDA 13.0): absolute times mean nothing elsewhere."""

from dataclasses import dataclass

import torch

ANCHOR_CHANNELS, ANCHOR_STATES = 400, 16  # of every scan below


@dataclass(frozen=True, slots=True)
class ScanAnchor:
    """mamba_ssm 2.3.2: ms forward, ms forward + backward, MiB beyond the inputs; bf16 last."""

    q: int
    length: int
    forward: float
    both: float
    mib: float
    forward16: float
    both16: float


# the three shapes that a plan is chosen by come first
SCANS = (
    ScanAnchor(400, 256, 1.116, 4.826, 1070, 0.699, 4.157),
    ScanAnchor(400, 1024, 6.200, 25.291, 3456, 2.969, 19.099),
    ScanAnchor(64, 8192, 7.707, 25.851, 4333, 4.320, 20.134),
    ScanAnchor(400, 2048, 14.827, 55.587, 6626, 7.790, 44.489),
    ScanAnchor(400, 512, 2.993, 11.179, 1864, 1.287, 6.749),
    ScanAnchor(400, 64, 0.720, 2.649, 477, 0.727, 2.669),
    ScanAnchor(400, 32, 0.704, 2.603, 378, 0.709, 2.607),
)


@dataclass(frozen=True, slots=True)
class EpochAnchor:
    """Seconds of one training epoch on UCI: 34,352 events, batch 200, one negative each; the best of its runs."""

    model: str
    length: int | None
    by: str
    seconds: float


EPOCHS = (
    EpochAnchor("dyg-mamba", 32, "the authors' release", 23.9),
    EpochAnchor("dyg-mamba", 1024, "the authors' release", 73.7),
    EpochAnchor("dygformer", 32, "the authors' release", 21.9),
    EpochAnchor("dygformer", 32, "TGM 0.1.0b1", 8.1),
    EpochAnchor("tgn", None, "TGM 0.1.0b1", 6.1),
)


def hold_on(device: str) -> bool:
    """Whether this device is of the kind the anchors were measured on."""
    return device == "cuda" and "H200" in torch.cuda.get_device_name()
