"""What a memory allocator makes of a Timeline. No torch."""
