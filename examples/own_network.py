"""Your own network and data, trained over a cell.

    python examples/own_network.py [FOLDER]

A small residual network with batch norm, on arrays. Devices get really smaller networks: the units of both branches of
the residual connection are found, and dropped together.
"""

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn

import feddrop

CONFIG = """
rounds = 10
data = { devices = 8, partition = "dirichlet", alpha = 0.5 }
method = { name = "feddrop", level = "unit" }  # drop whole units: smaller frames, less compute, less memory
train = { lr = 0.05, momentum = 0.9, batch_size = 16 }

[radio]
deadline_s = 0.1                              # rates and shares are decided anew in every round
bits_per_parameter = 32
"""


class Residual(nn.Module):
    """Two convolutions, and a way around them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add what the convolutions make of the input to the input."""
        return torch.relu(x + self.body(x))


def main(folder: str) -> None:
    """Train, and say what it took."""
    digits = load_digits()
    data = feddrop.from_arrays(digits.images[:1400], digits.target[:1400], digits.images[1400:], digits.target[1400:])
    body = [nn.Conv2d(1, 24, 3), nn.ReLU(), Residual(24), nn.AdaptiveAvgPool2d(2)]
    net = nn.Sequential(*body, nn.Flatten(), nn.Linear(4 * 24, 10))
    records = feddrop.run(feddrop.RunConfig.from_toml(CONFIG), folder, model=net, dataset=data)
    for record in records:
        rates = " ".join(f"{device['rate']:.2f}" for device in record["devices"])
        print(f"round {record['round']:2}   accuracy {record['test_accuracy']:.1%}   rates {rates}")
    print(f"Report: {folder}/report.html")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs/own-network")
