"""The torch.distributed backend "paceline".

| module | holds |
| --- | --- |
| register | telling torch.distributed of the backend; making its process groups |
| process_group | the process group that torch calls |
| collectives, tensor_collectives | its operations on lists of tensors, and on single ones |
| reductions | reduction operations, averages of integers |
| buffers | tensors as memory |
| work | operations in flight, futures |
| group, job | groups of ranks and the job of this process |
| hook | a strategy for the gradients of one DDP model |
| store_exchange | how ranks meet through torch's store |
| disable_dynamo | what torch.compile must not trace |
"""
