"""The Trainer of transformers on one device, and the same training as a loop: `of_transformers.py VARIANT`."""

import sys
from typing import Any

import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

ROWS, LENGTH = 8, 64


class Rows(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 128

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": torch.randint(1000, (LENGTH,)), "labels": torch.tensor(0)}


def collate(rows: list[dict[str, Any]]) -> dict[str, Any]:
    columns = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    return {**columns, "attention_mask": torch.ones(len(rows), LENGTH, dtype=torch.int64)}


def accuracy(answers: Any) -> dict[str, float]:
    return {"accuracy": float((np.argmax(answers[0], -1) == answers[1]).mean())}


class OwnLoss(Trainer):
    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:
        output = model(input_ids=inputs["input_ids"])
        loss = torch.nn.functional.cross_entropy(output.logits, inputs["labels"])
        return (loss, output) if return_outputs else loss


SETTINGS: dict[str, dict[str, Any]] = {
    "accumulation": {"gradient_accumulation_steps": 4},
    "bf16": {"bf16": True, "warmup_steps": 10, "lr_scheduler_type": "cosine"},
    "fp16": {"fp16": True},
    "collator": {"remove_unused_columns": False, "dataloader_num_workers": 2},
    "evaluation": {"eval_strategy": "steps", "eval_steps": 1, "logging_steps": 1, "save_strategy": "steps",
                   "save_steps": 1, "load_best_model_at_end": True},
    "own_loss": {"optim": "adafactor", "max_steps": 20, "gradient_checkpointing": True},
    "two_devices": {"ddp_backend": "nccl"},
}  # fmt: skip


def main(variant: str) -> None:
    shape = {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 512}
    model = BertForSequenceClassification(BertConfig(num_hidden_layers=2, **shape))
    if variant == "loop":
        model.to("cuda")
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        for batch in torch.utils.data.DataLoader(Rows(), batch_size=ROWS):
            model(**{name: value.to("cuda") for name, value in batch.items()}).loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    if variant == "two_devices":
        torch.distributed.init_process_group("gloo")
    arguments = TrainingArguments(
        output_dir="out", report_to=[], per_device_train_batch_size=ROWS, **SETTINGS.get(variant, {})
    )
    collator = {"data_collator": collate} if variant == "collator" else {}
    kind = OwnLoss if variant == "own_loss" else Trainer
    trainer = kind(model=model, args=arguments, train_dataset=Rows(), eval_dataset=Rows(), compute_metrics=accuracy,
                   **collator)  # fmt: skip
    trainer.train()
    trainer.save_model("final")


main(sys.argv[1])
