"""The learner: DeepSpeed training of a policy, one actor a rank. deepspeed is imported here alone."""
