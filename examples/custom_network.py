"""Train a custom network on custom data over a cell.

    python examples/custom_network.py [FOLDER]

A small residual network with batch norm, on arrays. Devices train smaller networks: feddrop finds the units that both
branches of the residual connection share and drops them together.
"""

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn

import feddrop

CONFIG = feddrop.RunConfig(
    rounds=10,
    data=feddrop.Data(devices=8, partition="dirichlet", alpha=0.5),
    method=feddrop.FedDrop(level="unit"),  # drop units: smaller frames, less compute, less memory
    train=feddrop.Train(lr=0.05, momentum=0.9, batch_size=16),
    radio=feddrop.Radio(deadline_s=0.1, bits_per_parameter=32),  # chooses rates and shares in every round
)


class Residual(nn.Module):
    """Two convolutions with a skip connection."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add the output of the convolutions to the input."""
        return torch.relu(x + self.body(x))


def main(folder: str) -> None:
    """Train, and print accuracy and rates per round."""
    digits = load_digits()
    data = feddrop.from_arrays(digits.images[:1400], digits.target[:1400], digits.images[1400:], digits.target[1400:])
    body = [nn.Conv2d(1, 24, 3), nn.ReLU(), Residual(24), nn.AdaptiveAvgPool2d(2)]
    net = nn.Sequential(*body, nn.Flatten(), nn.Linear(4 * 24, 10))
    for record in feddrop.run(CONFIG, folder, model=net, dataset=data):
        rates = " ".join(f"{device.rate:.2f}" for device in record.devices)
        print(f"round {record.round:2}   accuracy {record.test_accuracy:.1%}   rates {rates}")
    print(f"Report: {folder}/report.html")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs/custom-network")
