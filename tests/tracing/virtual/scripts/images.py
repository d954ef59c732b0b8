"""A convolutional network in channels_last, a data loader with workers and pinned memory, and an
optimizer that is made before the model moves."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        return torch.randn(3, 16, 16), index % 10


def main():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(8, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model.to("cuda:0", memory_format=torch.channels_last)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1).cuda()
    loader = DataLoader(
        Images(),
        batch_size=8,
        shuffle=True,
        num_workers=2,
        pin_memory=True,
        persistent_workers=True,
    )
    for _ in range(10):
        correct = 0
        for images, labels in loader:
            images = images.to("cuda", non_blocking=True, memory_format=torch.channels_last)
            labels = labels.to("cuda", non_blocking=True)
            optimizer.zero_grad(set_to_none=True)
            scores = model(images)
            criterion(scores, labels).backward()
            optimizer.step()
            correct += scores.argmax(1).eq(labels).sum().item()
        model.eval()
        with torch.no_grad():
            for images, _ in loader:
                model(images.cuda()).argmax(1).cpu().numpy()
        model.train()


if __name__ == "__main__":
    main()
