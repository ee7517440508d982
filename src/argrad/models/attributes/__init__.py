"""Images with attributes that can be read and switched, and a continuous remainder."""
