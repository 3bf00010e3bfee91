"""A translation with GRUs and attention: teacher forcing by chance, a loop over words that stops at the last one."""

import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import optim
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SOS_token, EOS_token, MAX_LENGTH, WORDS, hidden_size = 0, 1, 10, 50, 32


class EncoderRNN(nn.Module):
    def __init__(self, dropout_p=0.1):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, hidden_size)
        self.gru = nn.GRU(hidden_size, hidden_size, batch_first=True)
        self.dropout = nn.Dropout(dropout_p)

    def forward(self, words, lengths):
        embedded = self.dropout(self.embedding(words))
        packed = pack_padded_sequence(embedded, lengths, batch_first=True, enforce_sorted=False)
        output, hidden = self.gru(packed)
        return pad_packed_sequence(output, batch_first=True, total_length=MAX_LENGTH)[0], hidden


class BahdanauAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.Wa, self.Ua, self.Va = (nn.Linear(hidden_size, n) for n in (hidden_size, hidden_size, 1))

    def forward(self, query, keys):
        scores = self.Va(torch.tanh(self.Wa(query) + self.Ua(keys))).squeeze(2).unsqueeze(1)
        weights = F.softmax(scores, dim=-1)
        return torch.bmm(weights, keys), weights


class AttnDecoderRNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.attention = nn.Embedding(WORDS, hidden_size), BahdanauAttention()
        self.gru, self.out = nn.GRU(2 * hidden_size, hidden_size, batch_first=True), nn.Linear(hidden_size, WORDS)

    def forward(self, encoder_outputs, encoder_hidden, target_tensor=None):
        batch_size = encoder_outputs.size(0)
        decoder_input = torch.empty(batch_size, 1, dtype=torch.long, device=device).fill_(SOS_token)
        decoder_hidden, decoder_outputs = encoder_hidden, []
        for i in range(MAX_LENGTH):
            embedded = self.embedding(decoder_input)
            context, _ = self.attention(decoder_hidden.permute(1, 0, 2), encoder_outputs)
            output, decoder_hidden = self.gru(torch.cat((embedded, context), dim=2), decoder_hidden)
            output = self.out(output)
            decoder_outputs.append(output)
            if target_tensor is not None:
                decoder_input = target_tensor[:, i].unsqueeze(1)
            else:
                _, topi = output.topk(1)
                decoder_input = topi.squeeze(-1).detach()
                if (decoder_input == EOS_token).all():
                    pass
        return F.log_softmax(torch.cat(decoder_outputs, dim=1), dim=-1), decoder_hidden


encoder, decoder = EncoderRNN().to(device), AttnDecoderRNN().to(device)
encoder_optimizer = optim.Adam(encoder.parameters(), lr=1e-3)
decoder_optimizer = optim.Adam(decoder.parameters(), lr=1e-3)
criterion = nn.NLLLoss(ignore_index=-1)
random.seed(0)
total_loss = 0
for step in range(6):
    lengths = torch.randint(3, MAX_LENGTH + 1, (8,))
    input_tensor, target_tensor = (torch.randint(2, WORDS, (8, MAX_LENGTH)).to(device) for _ in range(2))
    encoder_optimizer.zero_grad()
    decoder_optimizer.zero_grad()
    encoder_outputs, encoder_hidden = encoder(input_tensor, lengths)
    forced = target_tensor if random.random() < 0.5 else None
    decoder_outputs, _ = decoder(encoder_outputs, encoder_hidden, forced)
    loss = criterion(decoder_outputs.view(-1, decoder_outputs.size(-1)), target_tensor.view(-1))
    loss.backward()
    encoder_optimizer.step()
    decoder_optimizer.step()
    total_loss += loss.item()
    print(f"{step} {total_loss / (step + 1):.4f}")
