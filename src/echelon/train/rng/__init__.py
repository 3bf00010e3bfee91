"""Random numbers: generators that all ranks share, and models that draw the numbers of one device."""
