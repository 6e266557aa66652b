"""Where everything stands: gathered from the other rooms, and shown."""
