import torch
import torch.distributed as dist
from accelerate import Accelerator

torch.manual_seed(0)
accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(4, 2)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
for _ in range(3):
    accelerator.backward(model(torch.ones(2, 4) * (accelerator.process_index + 1)).sum())
    optimizer.step()
    optimizer.zero_grad()
ranks = accelerator.gather(torch.tensor([accelerator.process_index])).tolist()
total = sum(parameter.detach().sum().item() for parameter in model.parameters())
# In one write, as the ranks share a terminal.
print(f"weights {total:.6f} ranks {ranks} by {type(dist.group.WORLD).__name__}\n", end="", flush=True)
accelerator.end_training()
