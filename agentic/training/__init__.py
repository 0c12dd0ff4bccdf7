"""Training with verl: settings to overrides, sizing, the CPU platform, Ray on one machine, the job, evaluation."""
