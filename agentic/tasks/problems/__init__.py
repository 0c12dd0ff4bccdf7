"""Mathematics problems with an answer that can be checked: sources, the prompt, the comparison of answers."""
