"""What `bridge_train.py` is made of: standard library, torch and megatron only, so that it runs in any target environment."""
