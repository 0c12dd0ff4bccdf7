"""Rollouts: one Harbor trial per sample, its outcome, its reward, and the tokens that verl trains on."""
