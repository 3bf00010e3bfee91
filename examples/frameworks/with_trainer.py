r"""Fine-tune a language model with transformers' Trainer.

    python with_trainer.py                              one process, a tiny random model, a text made here
    echelon run -n 2 with_trainer.py                    two ranks on this machine
    salloc --nodes=2 echelon run -n 2 with_trainer.py   two on each of two nodes

On a machine with devices, and with the Hub in reach or the model in a cache, the exercise of the LUMI course:

    echelon run with_trainer.py --model EleutherAI/gpt-neo-1.3B --data stanfordnlp/imdb \
      --batch-size 32 --length 512 --steps 1000 --learning-rate 2e-5

The Trainer finds its place in the variables of the rank. It takes the batch per rank: --batch-size is over all of them
and is divided here.
"""

import argparse
import os
from pathlib import Path

import task
import torch
from task_torch import end_well
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GPTNeoConfig,
    GPTNeoForCausalLM,
    PreTrainedModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

END = 256  # after the 256 bytes, where there is no tokenizer


class PrintLoss(TrainerCallback):
    """Print one line a step, on rank 0."""

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:  # noqa: ARG002
        if state.is_world_process_zero and "loss" in logs:
            print(f"step {state.global_step} loss {float(logs['loss']):.6f}", flush=True)


def make_text() -> str:
    """Return reviews that somebody might have written."""
    things, verdicts = ("film", "plot", "cast", "score", "ending"), ("moved me", "was too long", "made me laugh")
    return "\n".join(f"The {thing} {verdict}, and I would see it again {number} times."
                     for number in range(40) for thing in things for verdict in verdicts)  # fmt: skip


def read_text(name: str) -> str:
    """Return a text file, or the column `text` of a dataset of the Hub or in a folder."""
    if Path(name).is_file():
        return Path(name).read_text()
    from datasets import load_dataset  # pip install datasets

    return "\n".join(load_dataset(name, split="train")["text"])


def load(options: argparse.Namespace) -> tuple[PreTrainedModel, list[int]]:
    """Return the model and the text as its tokens."""
    text = read_text(options.data) if options.data else make_text()
    if options.model:
        model = AutoModelForCausalLM.from_pretrained(options.model)
        return model, AutoTokenizer.from_pretrained(options.model)(text)["input_ids"]
    sizes = GPTNeoConfig(
        vocab_size=END + 1, bos_token_id=END, eos_token_id=END, max_position_embeddings=options.length,
        hidden_size=options.width, num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]],
        resid_dropout=0, embed_dropout=0, attention_dropout=0,
    )  # fmt: skip
    return GPTNeoForCausalLM(sizes), list(text.encode())


def main() -> None:
    parser = task.new_parser(__doc__)
    parser.add_argument("--model", help="a folder or a name on the Hub; default: a tiny random GPT-Neo")
    parser.add_argument("--data", help="a text file, or a dataset with a column text: its name on the Hub or its "
                        "folder; default: a text made here")  # fmt: skip
    parser.add_argument("--length", type=int, default=64, help="tokens in a row")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("ECHELON_RUN_DIR", "."), "trained"))
    options = parser.parse_args()
    arguments = TrainingArguments(
        output_dir=str(options.out),
        per_device_train_batch_size=task.rows_of_a_rank(options.batch_size, int(os.environ.get("WORLD_SIZE", "1"))),
        max_steps=options.steps,
        learning_rate=options.learning_rate,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
        ddp_find_unused_parameters=False,
    )
    set_seed(0)
    model, tokens = load(options)
    rows = [tokens[start : start + options.length] for start in range(0, len(tokens) - options.length, options.length)]
    dataset = [{"input_ids": row, "labels": row} for row in rows]
    trainer = Trainer(model=model, args=arguments, train_dataset=dataset, callbacks=[PrintLoss()])
    trainer.train()
    trainer.save_model()
    end_well()


if __name__ == "__main__":
    main()
