"""An LSTM and a GRU over tokens."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(100, 16)
        self.lstm = nn.LSTM(16, 32, 2, batch_first=True, dropout=0.1, bidirectional=True)
        self.gru = nn.GRU(64, 16, batch_first=True)
        self.head = nn.Linear(16, 100)

    def forward(self, tokens):
        states, _ = self.lstm(self.embedding(tokens))
        states, _ = self.gru(states)
        return self.head(states)


model = Model().cuda()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(100):
    tokens = torch.randint(0, 100, (4, 12)).cuda()
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
