"""The laboratory: simulator, checker, chaos, benchmarks, rivals; nothing else imports it."""
