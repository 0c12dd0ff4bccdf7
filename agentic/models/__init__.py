"""Getting a policy: downloads, local folders, the tiny policy that is made here."""
