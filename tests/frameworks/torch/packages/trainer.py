"""transformers: HF's Trainer with a small BERT, training and evaluation. It finds the backend itself."""

import sys

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed


class Words(Dataset):
    def __init__(self) -> None:
        self.words = torch.randint(0, 50, (70, 12), generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, i: int):
        return {"input_ids": self.words[i], "labels": int(self.words[i].sum() % 2)}


def main() -> None:
    set_seed(0)
    config = BertConfig(vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)
    model = BertForSequenceClassification(config)
    args = TrainingArguments(sys.argv[1], use_cpu=True, per_device_train_batch_size=4, num_train_epochs=2, report_to=[],
                             logging_steps=5, save_strategy="no", eval_strategy="epoch", disable_tqdm=True)
    trainer = Trainer(model, args, train_dataset=Words(), eval_dataset=Words())
    trainer.train()
    assert torch.distributed.get_backend() == "gloo"
    found = {"evaluated": torch.tensor(trainer.evaluate()["eval_loss"])}
    torch.save({**model.state_dict(), **found}, f"{sys.argv[1]}/{args.process_index}.pt")


main()
