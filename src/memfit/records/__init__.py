"""What the stages hand each other: frozen dataclasses that can be saved. No torch."""
