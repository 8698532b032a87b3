import sys

import lightning
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader, TensorDataset


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, _):
        loss = self.layer(batch[0]).square().mean()
        # Lightning averages its batch counter, an int64, along with the loss.
        self.log("loss", loss, on_epoch=True, sync_dist=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


torch.manual_seed(0)
data = DataLoader(TensorDataset(torch.randn(16, 4)), batch_size=2)
strategy = DDPStrategy(process_group_backend=sys.argv[2]) if len(sys.argv) > 2 else "ddp"
trainer = lightning.Trainer(
    default_root_dir=sys.argv[1],
    accelerator="cpu",
    devices=2,
    strategy=strategy,
    max_epochs=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
model = Model()
made = []
model.on_train_start = lambda: made.append(type(dist.group.WORLD).__name__)
trainer.fit(model, data)
total = sum(parameter.detach().sum().item() for parameter in model.parameters())
# In one write, as the ranks share a terminal.
print(f"weights {total:.6f} by {made[0]}\n", end="", flush=True)
