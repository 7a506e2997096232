"""Federated averaging in a few obvious lines."""

import torch

from feddrop.seeds import derive, permutation


def fedavg(model, data, parts, rounds):
    """McMahan's algorithm with torch.optim; only the order of the samples is feddrop's."""
    w = {name: p.detach().clone() for name, p in model.named_parameters()}
    for t in range(1, rounds + 1):
        total = {name: torch.zeros_like(p) for name, p in w.items()}
        for k, part in enumerate(parts):
            with torch.no_grad():
                for name, p in model.named_parameters():
                    p.copy_(w[name])
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            order = part[permutation(derive(derive(0, "device", t, k), "order", 0), len(part))]
            for batch in torch.from_numpy(order).split(32):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(data.train_x[batch]), data.train_y[batch]).backward()
                optimizer.step()
            for name, p in model.named_parameters():
                total[name] += p.detach() * (len(part) / len(data.train_y))
        w = total
    return w
