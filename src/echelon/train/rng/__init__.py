"""Random numbers: generators that all ranks share, and draws inside of models that are those of one device."""
