"""How core and workers speak: header, framing, messages. Pure: bytes in, values out, and back."""
