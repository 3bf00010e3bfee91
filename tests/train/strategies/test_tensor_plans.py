"""What of a block is cut is told by the names of its layers."""

from tests.train.strategies import models
from torch import nn

from echelon.train.strategies.tensor_plans import CutModule, cuts_of


def test_attention_and_mlp_of_a_block() -> None:
    """Where the block itself holds layers beside an attention, activations are cut between these layers alone."""
    assert cuts_of(models.Block(4), "h.0") == {
        "h.0.attn": CutModule(("c_attn",), ("c_proj",)),
        "h.0.mlp": CutModule(("c_fc",), ("c_proj",)),
    }
    assert cuts_of(nn.TransformerEncoderLayer(16, 4), "0") == {
        "0": CutModule(("linear1",), ("linear2",), by_layer=True),
        "0.self_attn": CutModule((), ("out_proj",)),
    }
    layers = {"fc1": nn.Linear(4, 8), "fc2": nn.Linear(8, 4)}
    assert cuts_of(nn.ModuleDict(layers), "0") == {"0": CutModule(("fc1",), ("fc2",), by_layer=True)}
    assert cuts_of(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)), "0") == {"0": CutModule(("0",), ("2",))}
    assert cuts_of(nn.Linear(4, 8), "0") == {}
