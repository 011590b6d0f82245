"""What `bridge_train.py` is made of: standard library, torch and megatron only, to run in any environment."""
