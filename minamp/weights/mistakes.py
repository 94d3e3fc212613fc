"""What can go wrong with half weights: why it does, and what to write instead."""

NOT_HALF = (
    "half weights were asked for in {dtype}, which is not a 16-bit format: write "
    "dtype=torch.bfloat16, or dtype=torch.float16 together with a loss scaler."
)

NOTHING_TO_DO = (
    "the optimizer holds no half weight of this model, so there is nothing to keep in "
    "float32.  If the model is float32, say what it shall become: "
    "MasterWeights(model, optimizer, dtype=torch.bfloat16).  Otherwise build the "
    "optimizer from model.parameters(), and call this once."
)

TWICE = (
    "a weight of the new parameter group is in this optimizer already: each weight "
    "belongs to one group.  Leave it out of the new group."
)

TWO_GRADIENTS = (
    "a half weight got a second gradient after that of autograd had moved to its "
    "float32 master.  DistributedDataParallel does this: it averages gradients that "
    "are not there any more, and the ranks would drift apart.  Use the model without "
    "it, and average after backward: for p in masters.parameters(): "
    "dist.all_reduce(p.grad, op=dist.ReduceOp.AVG).  If you set weight.grad yourself, "
    "set the master's instead."
)

OTHER_MEMORY = (
    "the {key} of the checkpoint have shapes {saved}, those of this optimizer {here}: "
    "it was saved from another model, or with the parameters in another order.  Build "
    "model and optimizer as they were; nothing was loaded."
)
